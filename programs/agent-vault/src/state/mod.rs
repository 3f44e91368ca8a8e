//! The accounts that the program owns: layout, invariants and the seeds of their addresses.
//!
//! All are zero-copy: fields are ordered so that there is no padding, flags are bytes, and reserved bytes are zero.

pub mod allowance;
pub mod allowlist;
pub mod approval;
pub mod budget;
pub mod charged;
pub mod escrow;
pub mod ledger;
pub mod org;
pub mod outlined;
pub mod policy;
pub mod recipient;
pub mod seeded;
pub mod seeds;
pub mod unloaded;
pub mod vault;

pub use allowance::*;
pub use allowlist::*;
pub use approval::*;
pub use budget::*;
pub use charged::*;
pub use escrow::*;
pub use ledger::*;
pub use org::*;
pub use outlined::*;
pub use policy::*;
pub use recipient::*;
pub use seeded::*;
pub use unloaded::*;
pub use vault::*;

use crate::{errors::VaultError, ID};
use alloc::vec::Vec;
use anchor_lang::{
    address_eq, create_account_signed, find_and_verify_program_address, prelude::*, Discriminator,
};
use core::mem::size_of;

/// The address that stands for "none" in an account field. Nobody can sign for it.
pub const NONE: Address = Address::new_from_array([0; 32]);

/// Whether two addresses are the same: a function where `address_eq` is expanded, for instructions that run rarely.
#[inline(never)]
pub fn same_address(left: &Address, right: &Address) -> bool {
    address_eq(left, right)
}

/// Counts `sequence` up and returns the new number, which the event of the change carries.
///
/// # Errors
/// [`VaultError::Overflow`] at the end of 64 bits.
#[inline(always)]
pub fn next_sequence(sequence: &mut u64) -> Result<u64> {
    *sequence = sequence.checked_add(1).ok_or(VaultError::Overflow)?;
    Ok(*sequence)
}

/// Counts one more vault attached to a policy or a budget.
///
/// # Errors
/// [`VaultError::Overflow`] at the end of 64 bits.
fn count_in(wallets: &mut u64) -> Result<()> {
    *wallets = wallets.checked_add(1).ok_or(VaultError::Overflow)?;
    Ok(())
}

/// Counts one vault less.
///
/// # Errors
/// [`VaultError::Overflow`] when none was attached.
fn count_out(wallets: &mut u64) -> Result<()> {
    *wallets = wallets.checked_sub(1).ok_or(VaultError::Overflow)?;
    Ok(())
}

/// A value of an account whose `flags` say which of them count.
#[inline(always)]
fn value_if_set<T>(flags: u32, flag: u32, value: T) -> Option<T> {
    (flags & flag != 0).then_some(value)
}

/// The value to store for `value`, whose flag is set where there is one.
fn set_value<T: Default>(flags: &mut u32, flag: u32, value: Option<T>) -> T {
    if value.is_some() {
        *flags |= flag;
    }
    value.unwrap_or_default()
}

/// Makes an account of this program at the canonical address of `seeds`, zero but for its discriminator, and returns
/// the bump. For accounts that not every call makes, which `init` cannot describe.
///
/// # Errors
/// `InvalidSeeds` when the account is at another address; the system program's error when it exists.
#[inline(never)]
pub fn create_pda(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]; 3],
    space: usize,
    discriminator: [u8; 8],
) -> Result<u8> {
    let bump = find_and_verify_program_address(seeds, &ID, account.address())?;
    make_pda(payer, account, &[seeds[0], seeds[1], seeds[2], &[bump]], space, discriminator)?;
    Ok(bump)
}

/// [`create_pda`] for seeds that end with their bump, which need not be the canonical one: nothing is searched for.
///
/// # Errors
/// See [`create_pda`].
#[inline(never)]
pub fn create_pda_at(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]; 4],
    space: usize,
    discriminator: [u8; 8],
) -> Result<()> {
    require!(same_address(&derived(seeds), account.address()), ProgramError::InvalidSeeds);
    make_pda(payer, account, seeds, space, discriminator)
}

/// What the two ways to an address have in common. `account` has been found to be at the address of `seeds`: one that
/// signed for itself would be made at any other.
#[inline(never)]
fn make_pda(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]; 4],
    space: usize,
    discriminator: [u8; 8],
) -> Result<()> {
    create_account_signed(payer, account, space, &ID, seeds)?;
    let mut view = *account;
    let mut data = view.try_borrow_mut()?;
    data.get_mut(..discriminator.len()).ok_or(VaultError::Overflow)?.copy_from_slice(&discriminator);
    Ok(())
}

/// The address of `seeds`, which end with their bump. That it is on no curve shows when they sign.
fn derived(seeds: &[&[u8]; 4]) -> Address {
    let mut preimage = Vec::with_capacity(128);
    for part in [seeds[0], seeds[1], seeds[2], seeds[3], ID.as_ref(), b"ProgramDerivedAddress"] {
        preimage.extend_from_slice(part);
    }
    Address::new_from_array(sha256(&preimage))
}

/// The discriminator of an account's or an event's type, by value: a constant in memory takes a relocation at each use.
pub const fn discriminator_of<T: Discriminator>() -> [u8; 8] {
    match T::DISCRIMINATOR.first_chunk() {
        Some(discriminator) => *discriminator,
        None => panic!("a discriminator has 8 bytes"),
    }
}

/// Bytes of an account that holds a `T` behind its discriminator.
pub const fn space_of<T>() -> usize {
    size_of::<T>().saturating_add(8)
}
