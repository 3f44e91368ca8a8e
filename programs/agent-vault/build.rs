//! Computes the address that signs the program's events, and its bump, from the program id declared in `src/lib.rs`.
//! This keeps address and id consistent for every id that the program is built for.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src/lib.rs");
    let source = fs::read_to_string("src/lib.rs")?;
    let id = source
        .split("\ndeclare_id!(\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .ok_or("src/lib.rs declares no program id")?;
    let id: solana_address::Address = id.parse()?;
    let (address, bump) = solana_address::Address::find_program_address(&[b"__event_authority"], &id);
    let out = Path::new(&env::var("OUT_DIR")?).join("event_authority.rs");
    fs::write(out, format!("({:?}, {bump})", address.to_bytes()))?;
    Ok(())
}
