//! Typed accounts that are loaded by a function instead of code expanded at each use.

use super::{check_layout, create_pda, create_pda_at, head_of, space_of, Head, Layout};
use crate::ID;
use anchor_lang::{
    accounts::Slab,
    bytemuck::{Pod, Zeroable},
    cursor::NON_DUP_MARKER,
    prelude::*,
    AccountClose,
};
use core::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// A typed account of this program, for instructions that run rarely. One function makes the same checks as the typed
/// account itself, for all types, and only the account's location is kept. Each use saves hundreds of bytes of program
/// and costs a few more compute units. [`crate::instructions::execute_payment`] runs often, so it uses the typed
/// accounts themselves, except for the optional approval and budget.
///
/// Writing requires `#[account(mut)]`, because the dispatcher's check for duplicate accounts relies on it. If the
/// attribute is missing, this type does not panic. Clients and tests pass accounts as declared in the IDL, so every use
/// of such an instruction fails: the runtime refuses to change an account that was passed read-only.
///
/// The account stays marked as borrowed until the instruction ends. An instruction's accounts live that long anyway, so
/// the many exits of an instruction need no cleanup.
pub struct Outlined<A> {
    view: AccountView,
    account: PhantomData<A>,
}

/// Values of an account's borrow state:
/// <https://docs.rs/solana-account-view/latest/solana_account_view/struct.RuntimeAccount.html>.
const NOT_BORROWED: u8 = NON_DUP_MARKER;
const BORROWED_TO_WRITE: u8 = 0;
const LAST_BORROW_TO_READ: u8 = 1;

/// Checks that an account belongs to this program, has the right kind and layout and is long enough, and marks it as
/// borrowed.
///
/// # Errors
/// The errors of [`Account`]: `UninitializedAccount`, `IllegalOwner`, `AccountDataTooSmall`, `InvalidAccountData`,
/// `AccountBorrowFailed`; [`crate::errors::VaultError::UnsupportedLayout`]; `ConstraintMut` if the account is to be
/// written but was passed read-only.
#[inline(never)]
fn borrow(mut view: AccountView, head: Head, space: usize, to_write: bool) -> Result<()> {
    check_layout(&view, head)?;
    if to_write {
        require!(view.is_writable(), ErrorCode::ConstraintMut);
        require!(view.data_len() >= space, ProgramError::AccountDataTooSmall);
    }
    if !view.owned_by(&ID) {
        let is_unused = view.lamports() == 0 && view.owned_by(&System::id());
        return Err(if is_unused { ProgramError::UninitializedAccount } else { ProgramError::IllegalOwner });
    }
    require!(view.data_len() >= space, ProgramError::AccountDataTooSmall);
    // SAFETY: the data is only read, and only here.
    let data = unsafe { view.borrow_unchecked() };
    let [discriminator @ .., _] = head;
    require!(data.first_chunk() == Some(&discriminator), ProgramError::InvalidAccountData);
    // SAFETY: this is the account's header, and no other reference to it exists.
    let mark = unsafe { &mut (*view.account_mut_ptr()).borrow_state };
    if to_write {
        require!(*mark == NOT_BORROWED, ProgramError::AccountBorrowFailed);
        *mark = BORROWED_TO_WRITE;
        return Ok(());
    }
    require!(*mark > LAST_BORROW_TO_READ, ProgramError::AccountBorrowFailed);
    *mark = mark.saturating_sub(1);
    Ok(())
}

/// Closes an account of this program: its lamports go to `destination`, and its data is erased.
///
/// # Errors
/// `ArithmeticOverflow` if the lamports do not fit.
#[inline(never)]
fn close(mut view: AccountView, mut destination: AccountView) -> Result<()> {
    let sum = destination.lamports().checked_add(view.lamports()).ok_or(ProgramError::ArithmeticOverflow)?;
    destination.set_lamports(sum);
    view.set_lamports(0);
    // SAFETY: the account is borrowed for writing, and its typed account is not used after this.
    unsafe {
        // Overwrite the discriminator, so that the closed account is not mistaken for a live one if it receives
        // lamports again in the same transaction.
        view.borrow_unchecked_mut().get_mut(..8).ok_or(ProgramError::AccountDataTooSmall)?.fill(u8::MAX);
        view.close_unchecked();
    }
    Ok(())
}

impl<A> Outlined<A> {
    /// Returns the address of the account.
    #[inline(always)]
    pub fn address(&self) -> &Address {
        self.view.address()
    }
}

impl<T: Owner + Layout + Pod + Zeroable> Outlined<Account<T>> {
    /// Creates the account at the canonical address of `seeds`, zeroed except for its head, and returns it
    /// with its bump. Does the same as the framework's `init`, but as a function.
    ///
    /// # Errors
    /// See [`create_pda`].
    #[inline(always)]
    pub fn create(payer: &AccountView, account: &AccountView, seeds: &[&[u8]; 3]) -> Result<(Self, u8)> {
        let bump = create_pda(payer, account, seeds, space_of::<T>(), head_of::<T>())?;
        // SAFETY: the dispatcher has refused a second mutable reference to an account that the instruction writes, and
        // an account that did not exist cannot have been loaded.
        Ok((unsafe { Self::load_mut(*account) }?, bump))
    }

    /// [`Outlined::create`] at the address of `seeds`, which end with their bump.
    ///
    /// # Errors
    /// See [`create_pda_at`].
    #[inline(always)]
    pub fn create_at(payer: &AccountView, account: &AccountView, seeds: &[&[u8]; 4]) -> Result<Self> {
        create_pda_at(payer, account, seeds, space_of::<T>(), head_of::<T>())?;
        // SAFETY: see above.
        unsafe { Self::load_mut(*account) }
    }
}

impl<H: Owner + Layout + Pod + Zeroable, T> Deref for Outlined<Slab<H, T>> {
    type Target = H;

    #[inline(always)]
    fn deref(&self) -> &H {
        // SAFETY: `borrow` has verified that an `H` is there; the runtime aligns account data to 8 bytes.
        unsafe { &*self.view.data_ptr().add(H::DISCRIMINATOR.len()).cast() }
    }
}

impl<H: Owner + Layout + Pod + Zeroable, T> DerefMut for Outlined<Slab<H, T>> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut H {
        // SAFETY: as in `deref`. The dispatcher also refuses a second reference to an account that the instruction
        // writes.
        unsafe { &mut *self.view.data_mut_ptr().add(H::DISCRIMINATOR.len()).cast() }
    }
}

impl<H: Owner + Layout + Pod + Zeroable, T> AnchorAccount for Outlined<Slab<H, T>> {
    type Data = H;
    const MIN_DATA_LEN: usize = <Slab<H, T> as AnchorAccount>::MIN_DATA_LEN;

    #[inline(always)]
    fn load(view: AccountView) -> Result<Self> {
        const { assert!(align_of::<H>() <= 8) };
        borrow(view, head_of::<H>(), Self::MIN_DATA_LEN, false)?;
        Ok(Self { view, account: PhantomData })
    }

    #[inline(always)]
    unsafe fn load_mut(view: AccountView) -> Result<Self> {
        const { assert!(align_of::<H>() <= 8) };
        borrow(view, head_of::<H>(), Self::MIN_DATA_LEN, true)?;
        Ok(Self { view, account: PhantomData })
    }

    #[inline(always)]
    fn account(&self) -> &AccountView {
        &self.view
    }
}

impl<H: Owner + Layout + Pod + Zeroable, T> AccountClose for Outlined<Slab<H, T>> {
    #[inline(always)]
    fn close(&mut self, destination: AccountView) -> Result<()> {
        close(self.view, destination)
    }
}

impl<A> AsRef<AccountView> for Outlined<A> {
    #[inline(always)]
    fn as_ref(&self) -> &AccountView {
        &self.view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Budget;
    use anchor_lang::testing::AccountBuffer;

    type Loaded = Result<Outlined<Account<Budget>>>;

    fn read(view: AccountView) -> Loaded {
        Outlined::load(view)
    }

    fn write(view: AccountView) -> Loaded {
        // SAFETY: nothing is read or written through the account.
        unsafe { Outlined::load_mut(view) }
    }

    #[test]
    fn account_is_borrowed_by_one_writer_or_by_readers() {
        type Load = fn(AccountView) -> Loaded;
        for (first, second, passes) in [
            (read as Load, read as Load, true),
            (read, write, false),
            (write, read, false),
            (write, write, false),
        ] {
            let buffer = AccountBuffer::<2048>::new();
            buffer.init([1; 32], ID.to_bytes(), space_of::<Budget>(), false, true, false);
            buffer.write_data(&head_of::<Budget>());
            // SAFETY: the buffer is initialized and outlives the view.
            let view = unsafe { buffer.view() };
            assert!(first(view).is_ok());
            assert_eq!(second(view).err(), (!passes).then_some(ProgramError::AccountBorrowFailed));
        }
    }
}
