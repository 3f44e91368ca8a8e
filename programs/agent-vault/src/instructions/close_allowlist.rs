//! Discards an allowlist that is not in force.

use super::close_policy::close_list;
use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, AllowlistClosed},
    state::{same_address, AllowlistAccount, Org, Outlined, Policy},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `close_allowlist`.
    #[derive(Accounts)]
    pub struct CloseAllowlist {
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The policy that the list belongs to.
        #[account(mut, constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg)]
        pub policy: Outlined<Account<Policy>>,
        /// The policy's next list, sealed or not.
        #[account(mut,
            constraint = same_address(&allowlist.policy, policy.address()) @ VaultError::WrongAllowlist,
            constraint = allowlist.version == policy.next_allowlist_version @ VaultError::WrongAllowlist)]
        pub allowlist: Outlined<AllowlistAccount>,
        /// Payer of the list's rent, refunded here.
        #[account(mut, unsafe(dup))]
        pub rent_receiver: UncheckedAccount,
    }
}

/// See [`crate::agent_vault::close_allowlist`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the authority does not sign; [`VaultError::WrongAllowlist`] if the list is not the
/// policy's next one; [`VaultError::WrongRentReceiver`] if the rent receiver did not pay the list's rent.
pub fn handler(ctx: &mut Context<CloseAllowlist>) -> Result<()> {
    let CloseAllowlist { org, policy, allowlist, rent_receiver, .. } = &mut ctx.accounts;
    let sequence = org.next_sequence()?;
    // Use up the version, so that a signature given for this list is not valid for a later one.
    policy.next_allowlist_version = sequence;
    let event = AllowlistClosed {
        org: *org.address(),
        policy: *policy.address(),
        allowlist: *allowlist.address(),
        sequence,
        version: allowlist.version,
    };
    close_list(allowlist, Some(rent_receiver))?;
    emit_event!(ctx, event);
    Ok(())
}
