//! The program's entrypoint, for old and new runtimes alike.
//!
//! Runtimes with SIMD-0321 pass the address of the instruction data in the second register. Older ones leave it zero,
//! and the program must locate the data after the serialized accounts.
//! <https://github.com/solana-foundation/solana-improvement-documents/blob/main/proposals/0321-vm-r2-instruction-data-pointer.md>
//!
//! Every payment runs two instructions, `execute_payment` and an event. Both are handled here, before the framework's
//! dispatch: see `docs/decisions/0025-payments-before-the-dispatch.md`. Malformed instructions go on to the framework,
//! which returns the appropriate error.

use crate::{
    instructions::{execute_payment, ExecutePayment},
    state::discriminator_of,
    ID,
};
use anchor_lang::{
    address_eq,
    cursor::NON_DUP_MARKER,
    pinocchio::account::{RuntimeAccount, MAX_PERMITTED_DATA_INCREASE},
    prelude::*,
    TryAccounts,
};
use core::mem::{forget, size_of, MaybeUninit};

#[cfg(target_os = "solana")]
anchor_lang::pinocchio::default_allocator!();
#[cfg(target_os = "solana")]
anchor_lang::pinocchio::default_panic_handler!();

/// Called by the runtime.
///
/// # Safety
/// `input` is the runtime's serialization of accounts and instruction; `data` is null or points at the instruction data
/// in it.
#[cfg_attr(target_os = "solana", no_mangle)]
pub unsafe extern "C" fn entrypoint(input: *mut u8, mut data: *const u8) -> u64 {
    if let Some(code) = answer(input, &mut data) {
        return code;
    }
    crate::__anchor_dispatch(input, data)
}

/// Runs an event or a well-formed payment. Returns `None` for any other instruction, without changing anything. If
/// `data` is null, sets it to the instruction data.
///
/// # Safety
/// See [`entrypoint`].
#[inline(never)]
unsafe fn answer(input: *mut u8, data: &mut *const u8) -> Option<u64> {
    let count = *input.cast::<u64>();
    let mut named = Named { views: [const { MaybeUninit::uninit() }; NAMED], own: NONE_YET, repeats: false };
    // SAFETY: the accounts follow their number. The named accounts are walked only if at least that many exist, and
    // `behind_all` gets the number of the remaining ones.
    if !data.is_null() || count < NAMED as u64 {
        if data.is_null() {
            *data = behind_all(input.add(LENGTH), count);
        }
        // Reading eight bytes is safe for shorter data too: the program's address follows the data.
        if count < NAMED as u64 || data.cast::<u64>().read_unaligned() != PAYMENT {
            return crate::events::is_own(input, *data).then_some(0);
        }
        named.walk(input.add(LENGTH));
    } else {
        // This is no event, because an event has one account.
        let walked = named.walk(input.add(LENGTH));
        *data = behind_all(walked, count.wrapping_sub(NAMED as u64));
    }
    let data = *data;
    (!named.repeats && is_payment(data)).then(|| pay(&named, data))
}

/// Discriminator of `execute_payment`.
const PAYMENT: u64 = u64::from_le_bytes(discriminator_of::<crate::instruction::ExecutePayment>());
/// The number of accounts that `execute_payment` names.
const NAMED: usize = ExecutePayment::HEADER_SIZE;
/// The length of the data of `execute_payment`: the discriminator, the amount and the reference.
const PAYMENT_LENGTH: u64 = 8 + 8 + 16;
/// The size in bytes of a length field, for accounts or bytes.
const LENGTH: usize = 8;
/// A value that is not the index of any account.
const NONE_YET: u8 = NON_DUP_MARKER;

/// The first accounts of an instruction, up to the number that `execute_payment` names.
struct Named {
    /// The accounts, initialized by [`Named::walk`].
    views: [MaybeUninit<AccountView>; NAMED],
    /// Index of the first occurrence of this program, set once it occurs again. This program is passed in place of
    /// every omitted optional account.
    own: u8,
    /// True if any other account was passed more than once.
    repeats: bool,
}

impl Named {
    /// Walks the serialized accounts and returns the start of the next one.
    ///
    /// # Safety
    /// See [`entrypoint`]; the instruction has at least as many accounts as are named, and they start at `at`.
    #[inline(always)]
    unsafe fn walk(&mut self, at: *mut u8) -> *mut u8 {
        /// An unrolled loop with constant indexes. A loop counter took a third of the walk's compute units.
        macro_rules! take {
            ($at:expr, $($index:literal)*) => {{
                const { assert!(NAMED == [$($index),*].len()) };
                let at = $at;
                $(let at = self.take::<$index>(at);)*
                at
            }};
        }
        take!(at, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
    }

    /// Takes the account at `at` as the one with this index, and returns the start of the next one.
    ///
    /// # Safety
    /// See [`Named::walk`]; the accounts with lower indexes have been taken.
    #[inline(always)]
    unsafe fn take<const INDEX: usize>(&mut self, at: *mut u8) -> *mut u8 {
        const { assert!(INDEX < NAMED && NAMED <= NONE_YET as usize) };
        let views = self.views.as_mut_ptr();
        let account = at.cast::<RuntimeAccount>();
        let earlier = (*account).borrow_state;
        // SAFETY: `INDEX` is within `views`. `earlier` is the index of an account that the runtime serialized before
        // this one, so it is lower and that account has been taken.
        if earlier == NON_DUP_MARKER {
            views.add(INDEX).write(MaybeUninit::new(AccountView::new_unchecked(account)));
        } else {
            let view = *views.add(usize::from(earlier));
            views.add(INDEX).write(view);
            if earlier != self.own {
                if address_eq(view.assume_init_ref().address(), &ID) {
                    self.own = earlier;
                } else {
                    self.repeats = true;
                }
            }
        }
        behind(at)
    }
}

/// Returns true if the instruction is for this program and its data are exactly a payment's.
///
/// # Safety
/// See [`entrypoint`].
#[inline(always)]
unsafe fn is_payment(data: *const u8) -> bool {
    // SAFETY: the data follow their length, aligned to 8 bytes, and the program's address follows them.
    data.cast::<u64>().read_unaligned() == PAYMENT
        && *data.sub(LENGTH).cast::<u64>() == PAYMENT_LENGTH
        && address_eq(&*data.add(PAYMENT_LENGTH as usize).cast(), &ID)
}

/// Runs `execute_payment` as the framework does, except that the accounts' borrows are not released: they end with the
/// instruction.
///
/// # Safety
/// See [`entrypoint`]; `named` was walked, only this program was passed more than once, and the data are a payment's.
#[inline(never)]
unsafe fn pay(named: &Named, data: *const u8) -> u64 {
    // SAFETY: the walk initialized all views.
    let views = &*named.views.as_ptr().cast::<[AccountView; NAMED]>();
    // SAFETY: a payment's data have 32 bytes.
    let amount = data.add(8).cast::<u64>().read_unaligned();
    let reference = &*data.add(16).cast::<[u8; 16]>();
    // Pass no list of duplicate accounts, because this program is the only one and is never written. The result is
    // large, so it is used in place and not dropped.
    let mut loaded = ExecutePayment::validate_accounts(&ID, views, None, 0, &[]);
    let paid = match &mut loaded {
        Ok((accounts, ..)) => accounts
            .update_accounts()
            .and_then(|()| execute_payment::handler(accounts, amount, reference))
            .and_then(|()| accounts.exit_accounts(&[])),
        Err(error) => Err(error.clone()),
    };
    forget(loaded);
    paid.map_or_else(u64::from, |()| 0)
}

/// Returns the start of the next account. For the layout see `solana_program_entrypoint::deserialize`. A duplicate
/// account consists only of the index of its first occurrence.
///
/// # Safety
/// A serialized account is at `at`.
#[inline(always)]
unsafe fn behind(at: *mut u8) -> *mut u8 {
    const RENT_EPOCH: usize = 8;
    const DUPLICATE: usize = 8;
    let account = at.cast::<RuntimeAccount>();
    // SAFETY: the runtime aligns each account to 8 bytes; room to grow and the rent epoch follow the data.
    if (*account).borrow_state != NON_DUP_MARKER {
        return at.add(DUPLICATE);
    }
    let end =
        at.add(size_of::<RuntimeAccount>() + MAX_PERMITTED_DATA_INCREASE).add((*account).data_len as usize);
    end.add(end.align_offset(8)).add(RENT_EPOCH)
}

/// Returns the start of the instruction data, given the start of the last `count` accounts.
///
/// # Safety
/// See [`entrypoint`]; `count` accounts start at `at`.
#[inline(always)]
unsafe fn behind_all(mut at: *mut u8, count: u64) -> *const u8 {
    for _ in 0..count {
        at = behind(at);
    }
    at.add(LENGTH)
}

#[cfg(test)]
#[path = "entrypoint_tests.rs"]
mod tests;
