//! How this program calls others.

use anchor_lang::{
    pinocchio::{
        cpi::{invoke_signed_unchecked, CpiAccount, Seed, Signer},
        instruction::{InstructionAccount, InstructionView},
    },
    prelude::*,
};

/// Calls `program`, signing with `seeds` if there are any. A refusal aborts the transaction.
///
/// One function for all calls: the framework's is expanded at each, and keeps a list of borrows. None is needed, as no
/// program called here writes to data that this one holds a reference to: they write token accounts, which are read
/// anew after a call, and accounts that are not loaded yet.
///
/// # Safety
/// The caller holds no reference to the data of an account that `program` writes.
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
    // SAFETY: the caller's, see above.
    unsafe { invoke_signed_unchecked(&instruction, &accounts, signers) }
}
