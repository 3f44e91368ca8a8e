//! The contact for vulnerability reports, readable from the deployed program.
//!
//! The format is `security.txt` for Solana programs: <https://github.com/neodyme-labs/solana-security-txt>. Each
//! value ends with a NUL byte, and all are between two markers. If you deploy the program, put your own values here.

/// The contact data in that format. No code refers to them, so `used` keeps the linker from dropping them.
#[used]
#[link_section = ".security.txt"]
#[no_mangle]
#[allow(non_upper_case_globals)] // the name expected by readers of the format
pub static security_txt: &str = concat!(
    "=======BEGIN SECURITY.TXT V1=======\0",
    "name\0Agent Vault\0",
    "project_url\0https://agent-vault.example\0",
    "contacts\0email:security@agent-vault.example\0",
    "policy\0https://agent-vault.example/security\0",
    "preferred_languages\0en\0",
    "=======END SECURITY.TXT V1=======\0",
);
