//! Accounts at addresses derived from another account's address and a seed (`create_with_seed`).
//!
//! Unlike a program-derived address, such an address is computed with a single hash. There is no search, which would
//! cost hundreds of compute units more for some addresses than for others. Only a signer for the other account can
//! create the account.

use crate::invoke::invoke;
use alloc::vec::Vec;
use anchor_lang::{
    cpi::rent_exempt_lamports, pinocchio::instruction::InstructionAccount, prelude::*, programs::System, Id,
};

/// The parameters for creating one account: see [`create_seeded`].
pub struct Seeded<'a> {
    /// The account that pays the rent.
    pub payer: &'a AccountView,
    /// The account to create.
    pub account: &'a AccountView,
    /// The base account of the derived address. It is itself a program-derived account.
    pub base: &'a AccountView,
    /// Seeds that sign for `base`.
    pub base_seeds: &'a [&'a [u8]; 4],
    /// The seed, which must be text under the system program's rules.
    pub seed: &'a [u8],
    /// Size in bytes.
    pub space: usize,
    /// The program that will own the account.
    pub owner: &'a Address,
}

/// Creates a zeroed account. Lamports that are already there do not prevent the creation.
///
/// The system program derives the address and refuses a different one.
///
/// # Errors
/// `InvalidArgument` if the rent exemption for this space does not fit into 64 bits of lamports.
#[inline(never)]
pub fn create_seeded(made: &Seeded) -> Result<()> {
    const TRANSFER: u32 = 2;
    const ALLOCATE_WITH_SEED: u32 = 9;
    let Seeded { payer, account, base, base_seeds, seed, space, owner } = *made;
    let system = System::id();
    let missing = rent_exempt_lamports(space)?.saturating_sub(account.lamports());
    if missing > 0 {
        let mut data = [0; 12];
        data[..4].copy_from_slice(&TRANSFER.to_le_bytes());
        data[4..].copy_from_slice(&missing.to_le_bytes());
        let metas = [
            InstructionAccount::writable_signer(payer.address()),
            InstructionAccount::writable(account.address()),
        ];
        // SAFETY: the instruction writes lamports only.
        unsafe { invoke(&system, &data, &metas, &[payer, account], &[]) }
    }
    let mut data = Vec::with_capacity(116);
    data.extend_from_slice(&ALLOCATE_WITH_SEED.to_le_bytes());
    data.extend_from_slice(base.address().as_ref());
    data.extend_from_slice(&(seed.len() as u64).to_le_bytes());
    data.extend_from_slice(seed);
    data.extend_from_slice(&(space as u64).to_le_bytes());
    data.extend_from_slice(owner.as_ref());
    let metas = [
        InstructionAccount::writable(account.address()),
        InstructionAccount::readonly_signer(base.address()),
    ];
    // SAFETY: the account does not exist yet, so no reference to its data exists.
    unsafe { invoke(&system, &data, &metas, &[account, base], base_seeds) }
    Ok(())
}
