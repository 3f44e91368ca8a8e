//! Accounts at addresses that are derived from another account's with a seed (`create_with_seed`).
//!
//! Unlike a program-derived address such a one is computed with one hash: nothing is searched for, which costs hundreds
//! of compute units more for some addresses than for others. Only who signs for the other account can make it.

use crate::invoke::invoke;
use alloc::vec::Vec;
use anchor_lang::{
    cpi::rent_exempt_lamports, pinocchio::instruction::InstructionAccount, prelude::*, programs::System, Id,
};

/// An account to be made.
pub struct Seeded<'a> {
    /// Pays the rent.
    pub payer: &'a AccountView,
    /// The account.
    pub account: &'a AccountView,
    /// The account from whose address it is derived: a program-derived one.
    pub base: &'a AccountView,
    /// Sign for `base`.
    pub base_seeds: &'a [&'a [u8]; 4],
    /// Text, by the system program's rules.
    pub seed: &'a [u8],
    /// Bytes.
    pub space: usize,
    /// The program that it belongs to.
    pub owner: &'a Address,
}

/// Makes an account of zero bytes. Lamports that are there already do not stop it.
///
/// The system program derives the address and refuses another one.
///
/// # Errors
/// `ArithmeticOverflow` when the space is beyond what can be rent-exempt.
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
        // SAFETY: nothing is written but lamports.
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
    // SAFETY: the account does not exist yet, so nothing refers to its data.
    unsafe { invoke(&system, &data, &metas, &[account, base], base_seeds) }
    Ok(())
}
