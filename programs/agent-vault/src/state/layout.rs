//! Layout versions of the accounts.

use super::{
    discriminator_of, Allowance, Allowlist, Approval, ArchivedVault, Budget, Escrow, Org, Policy, Recipient,
    Vault,
};
use crate::{errors::VaultError, ID};
use anchor_lang::{prelude::*, Discriminator};
use core::mem::offset_of;

/// A kind of account. Right after its discriminator, each account has the version of its layout.
///
/// A later layout only appends fields, for which zero means "none", so [`crate::agent_vault::migrate`] turns an account
/// of an earlier layout into one of the current by enlarging it. Other instructions refuse such an account.
pub trait Layout: Discriminator {
    /// The current version of the layout.
    const VERSION: u8;
}

macro_rules! layouts {
    ($($kind:ident: $version:literal),+) => {
        $(
            impl Layout for $kind {
                const VERSION: u8 = $version;
            }
            const _: () = assert!(offset_of!($kind, layout) == 0 && $kind::VERSION > 0);
        )+
    };
}

layouts!(
    Org: 1, Policy: 1, Allowlist: 1, Budget: 1, Vault: 1, ArchivedVault: 1, Escrow: 1, Allowance: 1, Approval: 1,
    Recipient: 1
);

/// The first bytes of an account: its discriminator and the version of its layout.
pub type Head = [u8; 9];

/// Returns the first bytes of an account of this kind in its current layout.
pub const fn head_of<T: Layout>() -> Head {
    let [a, b, c, d, e, f, g, h] = discriminator_of::<T>();
    [a, b, c, d, e, f, g, h, T::VERSION]
}

/// Writes the first bytes of a new account.
///
/// # Errors
/// [`VaultError::Overflow`] if the account is too small; fails while the account is borrowed.
#[inline(never)]
pub fn write_head(account: &AccountView, head: Head) -> Result<()> {
    let mut view = *account;
    let mut data = view.try_borrow_mut()?;
    *data.first_chunk_mut().ok_or(VaultError::Overflow)? = head;
    Ok(())
}

/// Refuses an account of the kind of `head` that has a different layout. Accepts accounts of other kinds, which other
/// checks refuse.
///
/// # Errors
/// [`VaultError::UnsupportedLayout`].
#[inline(always)]
pub fn check_layout(view: &AccountView, head: Head) -> Result<()> {
    let [.., version] = head;
    // SAFETY: the byte is within the account or, if that is shorter, within the runtime's room for it to grow.
    if unsafe { *view.data_ptr().add(8) } == version {
        return Ok(());
    }
    check_kind(view, head)
}

/// Refuses an account of the kind of `head`, and accepts others.
#[cold]
#[inline(never)]
fn check_kind(view: &AccountView, head: Head) -> Result<()> {
    let [discriminator @ .., _] = head;
    // SAFETY: the data is only read, and only here.
    let data = unsafe { view.borrow_unchecked() };
    require!(!view.owned_by(&ID) || !data.starts_with(&discriminator), VaultError::UnsupportedLayout);
    Ok(())
}
