//! Typed accounts of the framework with their layout checked.

use super::{check_layout, head_of, Layout, Outlined};
use anchor_lang::{
    accounts::Slab,
    bytemuck::{Pod, Zeroable},
    prelude::*,
    IdlAccountType,
};
use core::ops::{Deref, DerefMut};

/// A typed account of the framework that must have the current layout. The check comes first, because an account of a
/// smaller layout would be too small for the framework. Instructions that run often use this type; see
/// [`super::Outlined`] for the others.
pub struct Versioned<A>(pub A);

impl<H: Owner + Layout + Pod + Zeroable, T> Versioned<Slab<H, T>>
where
    Slab<H, T>: AnchorAccount<Data = H>,
{
    /// Returns the address of the account.
    #[inline(always)]
    pub fn address(&self) -> &Address {
        self.0.address()
    }
}

impl<H: Owner + Layout + Pod + Zeroable, T> AnchorAccount for Versioned<Slab<H, T>>
where
    Slab<H, T>: AnchorAccount<Data = H>,
{
    type Data = H;
    const MIN_DATA_LEN: usize = <Slab<H, T> as AnchorAccount>::MIN_DATA_LEN;

    #[inline(always)]
    fn load(view: AccountView) -> Result<Self> {
        check_layout(&view, head_of::<H>())?;
        Ok(Self(Slab::load(view)?))
    }

    #[inline(always)]
    unsafe fn load_mut(view: AccountView) -> Result<Self> {
        check_layout(&view, head_of::<H>())?;
        Ok(Self(Slab::load_mut(view)?))
    }

    #[inline(always)]
    fn account(&self) -> &AccountView {
        self.0.account()
    }
}

impl<A: Deref> Deref for Versioned<A> {
    type Target = A::Target;

    #[inline(always)]
    fn deref(&self) -> &A::Target {
        &self.0
    }
}

impl<A: DerefMut> DerefMut for Versioned<A> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut A::Target {
        &mut self.0
    }
}

/// Makes a wrapper of a typed account stand for that account in the IDL.
macro_rules! same_in_idl {
    ($($wrapper:ident),+) => {
        $(impl<A: IdlAccountType> IdlAccountType for $wrapper<A> {
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
        })+
    };
}

same_in_idl!(Versioned, Outlined);
