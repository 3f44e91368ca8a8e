//! The accounts owned by the program: layout, invariants and the seeds of their addresses.
//!
//! All of them are zero-copy. Each starts with its discriminator, the version of its layout and its single-byte fields,
//! filled with zeros up to a multiple of eight bytes. No bytes are reserved: [`crate::agent_vault::migrate`] makes
//! room.

pub mod allowance;
pub mod allowlist;
pub mod approval;
pub mod budget;
pub mod charged;
pub mod escrow;
pub mod layout;
pub mod ledger;
pub mod org;
pub mod outlined;
pub mod policy;
pub mod recipient;
pub mod seeded;
pub mod seeds;
pub mod unloaded;
pub mod vault;
pub mod versioned;

pub use allowance::*;
pub use allowlist::*;
pub use approval::*;
pub use budget::*;
pub use charged::*;
pub use escrow::*;
pub use layout::*;
pub use ledger::*;
pub use org::*;
pub use outlined::*;
pub use policy::*;
pub use recipient::*;
pub use seeded::*;
pub use unloaded::*;
pub use vault::*;
pub use versioned::*;

use crate::{errors::VaultError, ID};
use alloc::vec::Vec;
use anchor_lang::{
    address_eq, create_account_signed, find_and_verify_program_address, prelude::*, Discriminator,
};
use core::mem::size_of;

/// The address that means "none" in an account field. No key can sign for it.
pub const NONE: Address = Address::new_from_array([0; 32]);

/// Returns true if two addresses are equal. This is a function, while `address_eq` is expanded inline. It makes the
/// program smaller and is used by instructions that run rarely.
#[inline(never)]
pub fn same_address(left: &Address, right: &Address) -> bool {
    address_eq(left, right)
}

/// Increments `sequence` and returns the new number, which the change's event carries.
///
/// # Errors
/// [`VaultError::Overflow`] if the number exceeds 64 bits.
#[inline(always)]
pub fn next_sequence(sequence: &mut u64) -> Result<u64> {
    *sequence = sequence.checked_add(1).ok_or(VaultError::Overflow)?;
    Ok(*sequence)
}

/// Checks that a signed change was built from the present state, which `present` counts. A change that was signed
/// earlier and kept fails once the state has changed.
///
/// # Errors
/// [`VaultError::SequenceMismatch`] if the numbers differ.
pub fn check_sequence(expected: u64, present: u64) -> Result<()> {
    require!(expected == present, VaultError::SequenceMismatch);
    Ok(())
}

/// [`check_sequence`] for the rules of a policy or budget: the signer agrees to rules, not to an address.
///
/// # Errors
/// [`VaultError::VersionMismatch`] if the numbers differ.
pub fn check_version(expected: u64, present: u64) -> Result<()> {
    require!(expected == present, VaultError::VersionMismatch);
    Ok(())
}

/// Adds one vault to the count of vaults attached to a policy or a budget.
///
/// # Errors
/// [`VaultError::Overflow`] if the count exceeds 64 bits.
fn count_in(wallets: &mut u64) -> Result<()> {
    *wallets = wallets.checked_add(1).ok_or(VaultError::Overflow)?;
    Ok(())
}

/// Removes one vault from the count of vaults attached to a policy or a budget.
///
/// # Errors
/// [`VaultError::Overflow`] if no vault was attached.
fn count_out(wallets: &mut u64) -> Result<()> {
    *wallets = wallets.checked_sub(1).ok_or(VaultError::Overflow)?;
    Ok(())
}

/// Returns an account's value if its bit is set in the account's `flags`.
#[inline(always)]
fn value_if_set<T>(flags: u32, flag: u32, value: T) -> Option<T> {
    (flags & flag != 0).then_some(value)
}

/// Returns the value to store in an account for `value`, which is zero for `None`. Sets the bit `flag` in `flags`
/// unless `value` is `None`.
fn set_value<T: Default>(flags: &mut u32, flag: u32, value: Option<T>) -> T {
    if value.is_some() {
        *flags |= flag;
    }
    value.unwrap_or_default()
}

/// Creates an account of this program at the canonical address of `seeds`, zeroed except for its head, and
/// returns the bump. Used in place of the framework's `init`, which cannot describe an account that only some calls of
/// an instruction create.
///
/// # Errors
/// `InvalidSeeds` if the account is at a different address; the system program's error if it already exists.
#[inline(never)]
pub fn create_pda(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]; 3],
    space: usize,
    head: Head,
) -> Result<u8> {
    let bump = find_and_verify_program_address(seeds, &ID, account.address())?;
    make_pda(payer, account, &[seeds[0], seeds[1], seeds[2], &[bump]], space, head)?;
    Ok(bump)
}

/// [`create_pda`] for seeds that end with their bump. The bump need not be the canonical one, so no search is
/// necessary.
///
/// # Errors
/// See [`create_pda`].
#[inline(never)]
pub fn create_pda_at(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]; 4],
    space: usize,
    head: Head,
) -> Result<()> {
    require!(same_address(&derived(seeds), account.address()), ProgramError::InvalidSeeds);
    make_pda(payer, account, seeds, space, head)
}

/// Creates the account; the shared part of [`create_pda`] and [`create_pda_at`]. Both have checked that `account` is at
/// the address of `seeds`. Without that check, an account that signs for itself could be created at any address.
#[inline(never)]
fn make_pda(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]; 4],
    space: usize,
    head: Head,
) -> Result<()> {
    create_account_signed(payer, account, space, &ID, seeds)?;
    write_head(account, head)
}

/// Returns the address of `seeds`, which end with their bump. Signing with them proves that the address is off the
/// curve.
fn derived(seeds: &[&[u8]; 4]) -> Address {
    let mut preimage = Vec::with_capacity(128);
    for part in [seeds[0], seeds[1], seeds[2], seeds[3], ID.as_ref(), b"ProgramDerivedAddress"] {
        preimage.extend_from_slice(part);
    }
    Address::new_from_array(sha256(&preimage))
}

/// Returns the discriminator of an account or event type by value, because a constant in memory needs a relocation at
/// each use.
pub const fn discriminator_of<T: Discriminator>() -> [u8; 8] {
    match T::DISCRIMINATOR.first_chunk() {
        Some(discriminator) => *discriminator,
        None => panic!("a discriminator has 8 bytes"),
    }
}

/// Returns the size in bytes of an account that holds a `T` after its discriminator.
pub const fn space_of<T>() -> usize {
    size_of::<T>().saturating_add(8)
}
