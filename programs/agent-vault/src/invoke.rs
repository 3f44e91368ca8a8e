//! Calls from this program to others.

use anchor_lang::{
    pinocchio::{
        cpi::{invoke_signed_unchecked, CpiAccount, Seed, Signer},
        instruction::{InstructionAccount, InstructionView},
    },
    prelude::*,
};

/// Calls `program`, signing with `seeds` if there are any. If the called program refuses, the transaction aborts.
///
/// One function serves all calls, because the framework's is expanded at each call and keeps a list of borrows. That
/// list is unnecessary here: no called program writes to data that this program holds a reference to. Called programs
/// write token accounts, which this program reads again after a call, and accounts that are not loaded yet.
///
/// # Safety
/// The caller must hold no reference to the data of an account that `program` writes.
pub unsafe fn invoke<const ACCOUNTS: usize, const SEEDS: usize>(
    program: &Address,
    data: &[u8],
    metas: &[InstructionAccount; ACCOUNTS],
    accounts: &[&AccountView; ACCOUNTS],
    seeds: &[&[u8]; SEEDS],
) {
    let instruction = InstructionView { program_id: program, data, accounts: metas };
    let accounts = accounts.map(CpiAccount::from);
    let seeds = seeds.map(Seed::from);
    let signer = [Signer::from(&seeds)];
    let signers = if SEEDS == 0 { &[] } else { signer.as_slice() };
    // SAFETY: guaranteed by the caller, see above.
    unsafe { invoke_signed_unchecked(&instruction, &accounts, signers) }
}
