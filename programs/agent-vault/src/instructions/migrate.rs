//! Brings an account to the current layout, and adds the lists of payees to a vault.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, AccountMigrated},
    state::{
        head_of, space_of, write_head, Allowance, ArchivedVault, Budget, Escrow, Head, Org, Outlined, Policy,
        Recipient, Unloaded, Vault, SPACE_WITH_PAYEES,
    },
    ID,
};
use anchor_lang::{prelude::*, realloc_account};
use core::mem::offset_of;

with_event_accounts! {
    /// Accounts of `migrate`.
    #[derive(Accounts)]
    pub struct Migrate {
        /// Payer of the additional rent.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The organisation. It must have the current layout, unless it is migrated itself.
        #[account(mut)]
        pub org: Unloaded<Org>,
        /// The account to enlarge; without it, the organisation's. Checked in the handler.
        #[account(mut)]
        pub account: Option<UncheckedAccount>,
        /// The system program, used to pay the rent.
        pub system_program: Program<System>,
    }
}

/// The present layout of a kind of account.
struct Present {
    head: Head,
    /// Size of the account in bytes.
    space: usize,
    /// Position of the organisation's address.
    org: usize,
}

/// Position of the organisation's address in a vault.
const ORG_OF_VAULT: usize = offset_of!(Vault, org).saturating_add(8);

macro_rules! presents {
    ($($kind:ident),+) => {
        [$(Present { head: head_of::<$kind>(), space: space_of::<$kind>(), org: offset_of!($kind, org).saturating_add(8) }),+]
    };
}

/// Returns the present layout of an account's kind.
///
/// Approvals and allowlists have none. They are recreated instead of migrated: an approval ends within a day, and the
/// header of an allowlist cannot be enlarged, because its entries follow directly.
fn present(data: &[u8]) -> Option<Present> {
    // An organisation's account does not contain its own address.
    let own = Present { head: head_of::<Org>(), space: space_of::<Org>(), org: usize::MAX };
    let vault = Present { head: head_of::<Vault>(), space: SPACE_WITH_PAYEES, org: ORG_OF_VAULT };
    let others = presents!(Policy, Budget, ArchivedVault, Escrow, Allowance, Recipient);
    [own, vault].into_iter().chain(others).find(|one| data.get(..8) == one.head.get(..8))
}

/// See [`crate::agent_vault::migrate`].
///
/// # Errors
/// [`VaultError::UnsupportedLayout`] if the account's kind cannot be migrated, or there is nothing to add;
/// [`VaultError::WrongOrg`] if it belongs to a different organisation; `IllegalOwner` if it is not the program's.
pub fn handler(ctx: &mut Context<Migrate>) -> Result<()> {
    let a = &mut ctx.accounts;
    let mut view = *a.account.as_ref().map_or(a.org.account(), |account| account.account());
    require!(view.owned_by(&ID), ProgramError::IllegalOwner);
    // SAFETY: no typed account refers to the data.
    let data = unsafe { view.borrow_unchecked() };
    let Present { head, space, org } = present(data).ok_or(VaultError::UnsupportedLayout)?;
    let previous = data.get(8).copied().unwrap_or(u8::MAX);
    let [.., layout] = head;
    let larger = previous < layout && data.len() <= space || previous == layout && data.len() < space;
    require!(larger, VaultError::UnsupportedLayout);
    if a.account.is_some() {
        let ours = data.get(org..).is_some_and(|rest| rest.starts_with(a.org.address().as_ref()));
        require!(ours, VaultError::WrongOrg);
    }
    realloc_account(&mut view, space, a.payer.account(), true)?;
    write_head(&view, head)?;
    // SAFETY: the dispatcher has refused a second mutable reference to the account.
    let mut org = unsafe { Outlined::<Account<Org>>::load_mut(*a.org.account()) }?;
    let event = AccountMigrated {
        org: *org.address(),
        account: *view.address(),
        sequence: org.next_sequence()?,
        previous: u64::from(previous),
        layout: u64::from(layout),
    };
    emit_event!(ctx, event);
    Ok(())
}
