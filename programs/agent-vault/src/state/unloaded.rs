//! Accounts that a handler checks itself, with the type to be declared in the IDL.

use anchor_lang::{prelude::*, IdlAccountType};
use core::{marker::PhantomData, ops::Deref};

/// An [`UncheckedAccount`] that holds a `T` now or later. It is unchecked because it may not exist yet, or because its
/// kind is only known once it is read. Each use documents where the check is.
pub struct Unloaded<T> {
    account: UncheckedAccount,
    _type: PhantomData<T>,
}

impl<T> Deref for Unloaded<T> {
    type Target = AccountView;

    #[inline(always)]
    fn deref(&self) -> &AccountView {
        &self.account
    }
}

impl<T> AnchorAccount for Unloaded<T> {
    type Data = AccountView;

    #[inline(always)]
    fn load(view: AccountView) -> Result<Self> {
        Ok(Self { account: UncheckedAccount::load(view)?, _type: PhantomData })
    }

    #[inline(always)]
    fn account(&self) -> &AccountView {
        self.account.account()
    }
}

impl<T: IdlAccountType> IdlAccountType for Unloaded<T> {
    fn __register_idl_deps(
        accounts: &mut alloc::vec::Vec<&'static str>,
        types: &mut alloc::vec::Vec<&'static str>,
    ) {
        T::__register_idl_deps(accounts, types);
    }
}
