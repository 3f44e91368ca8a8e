//! The accounts that the program owns: layout, invariants and the seeds of their addresses.
//!
//! All are zero-copy: fields are ordered so that there is no padding, flags are bytes, and reserved bytes are zero.

pub mod allowlist;
pub mod approval;
pub mod escrow;
pub mod ledger;
pub mod org;
pub mod outlined;
pub mod policy;
pub mod recipient;
pub mod seeds;
pub mod unloaded;
pub mod vault;

pub use allowlist::*;
pub use approval::*;
pub use escrow::*;
pub use ledger::*;
pub use org::*;
pub use outlined::*;
pub use policy::*;
pub use recipient::*;
pub use unloaded::*;
pub use vault::*;

use crate::{errors::VaultError, ID};
use anchor_lang::{address_eq, create_account_signed, find_and_verify_program_address, prelude::*};
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

/// Makes an account of `space` zero bytes for the program `owner` at the address of `seeds`, and returns the canonical
/// bump. For accounts that not every call makes, which `init` cannot describe.
///
/// # Errors
/// `InvalidSeeds` when the account is at another address; the system program's error when it exists.
#[inline(never)]
pub fn create_owned(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]],
    space: usize,
    owner: &Address,
) -> Result<u8> {
    let bump = [find_and_verify_program_address(seeds, &ID, account.address())?];
    let mut signed: [&[u8]; 4] = [&bump; 4];
    signed.get_mut(..seeds.len()).ok_or(VaultError::Overflow)?.copy_from_slice(seeds);
    let signed = signed.get(..seeds.len().saturating_add(1)).ok_or(VaultError::Overflow)?;
    create_account_signed(payer, account, space, owner, signed)?;
    Ok(bump[0])
}

/// [`create_owned`] for an account of this program: zero but for its discriminator.
///
/// # Errors
/// See [`create_owned`].
#[inline(never)]
pub fn create_pda(
    payer: &AccountView,
    account: &AccountView,
    seeds: &[&[u8]; 3],
    space: usize,
    discriminator: &[u8],
) -> Result<u8> {
    let bump = create_owned(payer, account, seeds, space, &ID)?;
    let mut view = *account;
    let mut data = view.try_borrow_mut()?;
    data.get_mut(..discriminator.len()).ok_or(VaultError::Overflow)?.copy_from_slice(discriminator);
    Ok(bump)
}

/// Bytes of an account that holds a `T` behind its discriminator.
pub const fn space_of<T>() -> usize {
    size_of::<T>().saturating_add(8)
}
