//! Typed accounts whose loading is a function instead of being expanded where they are used.

use super::{create_pda, create_pda_at, discriminator_of, space_of};
use crate::ID;
use anchor_lang::{
    accounts::Slab,
    bytemuck::{Pod, Zeroable},
    prelude::*,
    AccountClose, IdlAccountType,
};
use core::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// A typed account of this program in an instruction that runs rarely: the same checks as of the type itself, by one
/// function for all types, and nothing kept but where the account is. Some hundred bytes of program less at each use
/// for a few compute units more. [`crate::instructions::execute_payment`], which runs often, uses the type itself.
///
/// Writing needs `#[account(mut)]`, which is also what the dispatcher's check for accounts given twice goes by. Here nothing
/// panics where that was forgotten; but clients and tests pass accounts as the IDL says, so that every use of such an
/// instruction fails: the runtime refuses the change of an account that was passed read-only.
///
/// The account stays marked as borrowed to the end of the instruction, which is as long as an instruction's accounts live
/// anyway; so nothing needs to be done on the many ways out of an instruction.
pub struct Outlined<A> {
    view: AccountView,
    account: PhantomData<A>,
}

/// Marks of an account's borrows: <https://docs.rs/solana-account-view/latest/solana_account_view/struct.RuntimeAccount.html>.
const BORROWED_TO_WRITE: u8 = 0;
const LAST_BORROW_TO_READ: u8 = 1;

/// Checks that an account is this program's, of this kind and long enough, and marks it as borrowed.
///
/// # Errors
/// Those of [`Account`]: `UninitializedAccount`, `IllegalOwner`, `AccountDataTooSmall`, `InvalidAccountData`,
/// `AccountBorrowFailed`; `ConstraintMut` when it is to be written and was passed read-only.
#[inline(never)]
fn borrow(mut view: AccountView, discriminator: [u8; 8], space: usize, to_write: bool) -> Result<()> {
    if to_write {
        require!(view.is_writable(), ErrorCode::ConstraintMut);
        require!(view.data_len() >= space, ProgramError::AccountDataTooSmall);
    }
    if !view.owned_by(&ID) {
        let is_unused = view.lamports() == 0 && view.owned_by(&System::id());
        return Err(if is_unused { ProgramError::UninitializedAccount } else { ProgramError::IllegalOwner });
    }
    require!(view.data_len() >= space, ProgramError::AccountDataTooSmall);
    // SAFETY: only read, and only here.
    let data = unsafe { view.borrow_unchecked() };
    require!(data.first_chunk() == Some(&discriminator), ProgramError::InvalidAccountData);
    // SAFETY: the account's header, which nothing else holds a reference to.
    let mark = unsafe { &mut (*view.account_mut_ptr()).borrow_state };
    if to_write {
        *mark = BORROWED_TO_WRITE;
        return Ok(());
    }
    require!(*mark > LAST_BORROW_TO_READ, ProgramError::AccountBorrowFailed);
    *mark = mark.saturating_sub(1);
    Ok(())
}

/// Closes an account of this program: its lamports go to `destination`, and its data to nobody.
///
/// # Errors
/// `ArithmeticOverflow` when the lamports do not fit.
#[inline(never)]
fn close(mut view: AccountView, mut destination: AccountView) -> Result<()> {
    let sum = destination.lamports().checked_add(view.lamports()).ok_or(ProgramError::ArithmeticOverflow)?;
    destination.set_lamports(sum);
    view.set_lamports(0);
    // SAFETY: the account is borrowed to be written, and its typed account is not used after this.
    unsafe {
        // Lest what is closed be taken for what it was, should it be given lamports again in the same transaction.
        view.borrow_unchecked_mut().get_mut(..8).ok_or(ProgramError::AccountDataTooSmall)?.fill(u8::MAX);
        view.close_unchecked();
    }
    Ok(())
}

impl<A> Outlined<A> {
    /// Address of the account.
    #[inline(always)]
    pub fn address(&self) -> &Address {
        self.view.address()
    }
}

impl<T: Owner + Discriminator + Pod + Zeroable> Outlined<Account<T>> {
    /// Makes the account at the canonical address of `seeds`, zero but for its discriminator, and returns it with its
    /// bump. What the framework's `init` does, in a function.
    ///
    /// # Errors
    /// See [`create_pda`].
    #[inline(always)]
    pub fn create(payer: &AccountView, account: &AccountView, seeds: &[&[u8]; 3]) -> Result<(Self, u8)> {
        let bump = create_pda(payer, account, seeds, space_of::<T>(), discriminator_of::<T>())?;
        // SAFETY: the dispatcher has refused a second mutable reference to an account that an instruction writes, and
        // nothing can have loaded one that did not exist.
        Ok((unsafe { Self::load_mut(*account) }?, bump))
    }

    /// [`Outlined::create`] at the address of `seeds`, which end with their bump.
    ///
    /// # Errors
    /// See [`create_pda_at`].
    #[inline(always)]
    pub fn create_at(payer: &AccountView, account: &AccountView, seeds: &[&[u8]; 4]) -> Result<Self> {
        create_pda_at(payer, account, seeds, space_of::<T>(), discriminator_of::<T>())?;
        // SAFETY: see above.
        unsafe { Self::load_mut(*account) }
    }
}

impl<H: Owner + Discriminator + Pod + Zeroable, T> Deref for Outlined<Slab<H, T>> {
    type Target = H;

    #[inline(always)]
    fn deref(&self) -> &H {
        // SAFETY: `borrow` has seen that an `H` is there; the runtime aligns account data to 8 bytes.
        unsafe { &*self.view.data_ptr().add(H::DISCRIMINATOR.len()).cast() }
    }
}

impl<H: Owner + Discriminator + Pod + Zeroable, T> DerefMut for Outlined<Slab<H, T>> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut H {
        // SAFETY: as in `deref`; the dispatcher refuses a second reference to an account that an instruction writes.
        unsafe { &mut *self.view.data_mut_ptr().add(H::DISCRIMINATOR.len()).cast() }
    }
}

impl<H: Owner + Discriminator + Pod + Zeroable, T> AnchorAccount for Outlined<Slab<H, T>> {
    type Data = H;
    const MIN_DATA_LEN: usize = <Slab<H, T> as AnchorAccount>::MIN_DATA_LEN;

    #[inline(always)]
    fn load(view: AccountView) -> Result<Self> {
        const { assert!(align_of::<H>() <= 8) };
        borrow(view, discriminator_of::<H>(), Self::MIN_DATA_LEN, false)?;
        Ok(Self { view, account: PhantomData })
    }

    #[inline(always)]
    unsafe fn load_mut(view: AccountView) -> Result<Self> {
        const { assert!(align_of::<H>() <= 8) };
        borrow(view, discriminator_of::<H>(), Self::MIN_DATA_LEN, true)?;
        Ok(Self { view, account: PhantomData })
    }

    #[inline(always)]
    fn account(&self) -> &AccountView {
        &self.view
    }
}

impl<H: Owner + Discriminator + Pod + Zeroable, T> AccountClose for Outlined<Slab<H, T>> {
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

impl<A: IdlAccountType> IdlAccountType for Outlined<A> {
    const __IDL_ACCOUNT_ENTRY: Option<&'static str> = <A as IdlAccountType>::__IDL_ACCOUNT_ENTRY;
    const __IDL_TYPE_DEF: Option<&'static str> = <A as IdlAccountType>::__IDL_TYPE_DEF;

    fn __idl_account_entry() -> Option<&'static str> {
        <A as IdlAccountType>::__idl_account_entry()
    }

    fn __idl_type_def() -> Option<&'static str> {
        <A as IdlAccountType>::__idl_type_def()
    }

    fn __register_idl_deps(
        accounts: &mut alloc::vec::Vec<&'static str>,
        types: &mut alloc::vec::Vec<&'static str>,
    ) {
        <A as IdlAccountType>::__register_idl_deps(accounts, types);
    }
}
