//! Typed accounts whose loading is a function instead of being expanded where they are used.

use super::{create_pda, space_of};
use anchor_lang::{
    bytemuck::{Pod, Zeroable},
    prelude::*,
    AccountClose, IdlAccountType, ToCpiHandle, ToCpiHandleMut,
};
use core::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};

/// A typed account in an instruction that runs rarely: loading it costs a few compute units more and takes some hundred
/// bytes of program less at each use. [`crate::instructions::execute_payment`], which runs often, uses the type itself.
///
/// The account stays marked as borrowed to the end of the instruction, which is as long as an instruction's accounts live
/// anyway; so nothing needs to be done on the many ways out of an instruction.
pub struct Outlined<A: AnchorAccount>(ManuallyDrop<A>);

impl<A: AnchorAccount> Outlined<A> {
    /// The account as its own type.
    #[inline(always)]
    pub fn typed(&self) -> &A {
        &self.0
    }

    /// Address of the account.
    #[inline(always)]
    pub fn address(&self) -> &Address {
        self.0.account().address()
    }
}

impl<T: Owner + Discriminator + Pod + Zeroable> Outlined<Account<T>> {
    /// Makes the account at the canonical address of `seeds`, zero but for its discriminator, and returns it with its
    /// bump. What the framework's `init` does, in a function.
    ///
    /// # Errors
    /// See [`create_pda`].
    pub fn create(payer: &AccountView, account: &AccountView, seeds: &[&[u8]; 3]) -> Result<(Self, u8)> {
        let bump = create_pda(payer, account, seeds, space_of::<T>(), T::DISCRIMINATOR)?;
        // SAFETY: the dispatcher has refused a second mutable reference to an account that an instruction writes, and
        // nothing can have loaded one that did not exist.
        Ok((unsafe { Self::load_mut(*account) }?, bump))
    }
}

impl<A: AnchorAccount> Deref for Outlined<A> {
    type Target = <A as Deref>::Target;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<A: AnchorAccount + DerefMut> DerefMut for Outlined<A> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<A: AnchorAccount> AnchorAccount for Outlined<A> {
    type Data = <A as AnchorAccount>::Data;
    const MIN_DATA_LEN: usize = <A as AnchorAccount>::MIN_DATA_LEN;
    const RELAX_READONLY_CPI_BORROW_FROM_MUT: bool = <A as AnchorAccount>::RELAX_READONLY_CPI_BORROW_FROM_MUT;

    #[inline(never)]
    fn load(view: AccountView) -> Result<Self> {
        A::load(view).map(|account| Self(ManuallyDrop::new(account)))
    }

    #[inline(never)]
    unsafe fn load_mut(view: AccountView) -> Result<Self> {
        A::load_mut(view).map(|account| Self(ManuallyDrop::new(account)))
    }

    #[inline(always)]
    fn account(&self) -> &AccountView {
        self.0.account()
    }

    #[inline(always)]
    fn cpi_handle(&self) -> CpiHandle<'_> {
        self.0.cpi_handle()
    }

    #[inline(always)]
    fn try_cpi_handle_mut(&mut self) -> Result<CpiHandleMut<'_>> {
        self.0.try_cpi_handle_mut()
    }
}

impl<A: AccountClose> AccountClose for Outlined<A> {
    #[inline(never)]
    fn close(&mut self, destination: AccountView) -> Result<()> {
        self.0.close(destination)
    }
}

impl<A: AnchorAccount> ToCpiHandle for Outlined<A> {
    #[inline(always)]
    fn to_cpi_handle(&self) -> CpiHandle<'_> {
        self.cpi_handle()
    }
}

impl<A: AnchorAccount> ToCpiHandleMut for Outlined<A> {
    #[inline(always)]
    fn try_to_cpi_handle_mut(&mut self) -> Result<CpiHandleMut<'_>> {
        self.try_cpi_handle_mut()
    }
}

impl<A: AnchorAccount> AsRef<AccountView> for Outlined<A> {
    #[inline(always)]
    fn as_ref(&self) -> &AccountView {
        self.0.account()
    }
}

impl<A: AnchorAccount + IdlAccountType> IdlAccountType for Outlined<A> {
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
