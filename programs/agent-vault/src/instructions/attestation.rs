//! Signatures over the completion of a task, verified by the runtime's ed25519 program.

use crate::{errors::VaultError, state::same_address, ID};
use anchor_lang::{pinocchio::sysvars::instructions::Instructions, prelude::*};

/// The runtime's ed25519 program.
const ED25519_PROGRAM: Address = Address::from_str_const("Ed25519SigVerify111111111111111111111111111");

/// Byte offsets in the data of an ed25519 instruction with one signature, in the form that SDKs produce: header, key,
/// signature, message. <https://docs.solanalabs.com/runtime/programs#ed25519-program>
mod layout {
    pub const KEY: usize = 16;
    pub const SIGNATURE: usize = 48;
    pub const MESSAGE: usize = 112;
}

/// The attested statement: the output of one escrow's task.
pub struct Attested<'a> {
    /// The name of the kind of proof, as the signed message contains it.
    pub kind: &'a [u8],
    /// Genesis hash of the cluster, as stored in the organisation.
    pub genesis_hash: &'a [u8; 32],
    /// The escrow's address.
    pub escrow: &'a Address,
    /// SHA-256 of the task's description.
    pub task_hash: &'a [u8; 32],
    /// Hash of the output.
    pub output_hash: &'a [u8; 32],
}

/// Checks that the instruction right before this one makes the ed25519 program verify `key`'s signature over exactly
/// this statement.
///
/// The whole header is compared: it must declare one signature, with all three parts inside the same instruction. A
/// signature that was verified elsewhere in the transaction does not count.
///
/// # Errors
/// [`VaultError::InvalidProof`] if the preceding instruction does anything else, or if the instructions sysvar is
/// missing.
#[inline(never)]
pub fn verify(instructions: Option<&UncheckedAccount>, key: &Address, attested: &Attested) -> Result<()> {
    let sysvar = instructions.ok_or(VaultError::InvalidProof)?;
    let sysvar = Instructions::try_from(sysvar.account()).map_err(|_| VaultError::InvalidProof)?;
    let before = sysvar.get_instruction_relative(-1).map_err(|_| VaultError::InvalidProof)?;
    require!(same_address(before.get_program_id(), &ED25519_PROGRAM), VaultError::InvalidProof);
    require!(says(before.get_instruction_data(), key, attested), VaultError::InvalidProof);
    Ok(())
}

/// Returns true if the data of an ed25519 instruction consists of one signature by `key` over the message built from
/// `attested`.
fn says(data: &[u8], key: &Address, attested: &Attested) -> bool {
    let (Some(head), Some(message)) = (data.get(..layout::SIGNATURE), data.get(layout::MESSAGE..)) else {
        return false;
    };
    let Ok(length) = u16::try_from(message.len()) else {
        return false;
    };
    let [low, high] = length.to_le_bytes();
    let header: [u8; layout::KEY] = [1, 0, 48, 0, 255, 255, 16, 0, 255, 255, 112, 0, low, high, 255, 255];
    let expected: [&[u8]; 7] = [
        b"agent-vault:v2:",
        attested.kind,
        attested.genesis_hash,
        ID.as_ref(),
        attested.escrow.as_ref(),
        attested.task_hash,
        attested.output_hash,
    ];
    strip(head, &[&header, key.as_ref()]) && strip(message, &expected)
}

/// Returns true if `bytes` is exactly the concatenation of `parts`.
fn strip(bytes: &[u8], parts: &[&[u8]]) -> bool {
    let mut rest = Some(bytes);
    for part in parts {
        rest = rest.and_then(|rest| rest.strip_prefix(*part));
    }
    rest.is_some_and(<[u8]>::is_empty)
}
