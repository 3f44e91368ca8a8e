//! Closes a policy.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, PolicyClosed},
    state::{same_address, AllowlistAccount, Org, Outlined, Policy, NONE},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `close_policy`.
    #[derive(Accounts)]
    pub struct ClosePolicy {
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The policy.
        #[account(mut,
            constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg,
            constraint = policy.immutable == 0 @ VaultError::PolicyImmutable,
            constraint = policy.wallet_count == 0 @ VaultError::PolicyInUse)]
        pub policy: Outlined<Account<Policy>>,
        /// Paid the policy's rent.
        #[account(mut, constraint = same_address(&policy.payer, policy_rent_receiver.address()) @ VaultError::WrongRentReceiver, unsafe(dup))]
        pub policy_rent_receiver: UncheckedAccount,
        /// The list in force.
        #[account(mut)]
        pub allowlist: Option<Outlined<AllowlistAccount>>,
        /// Paid the list's rent.
        #[account(mut, unsafe(dup))]
        pub allowlist_rent_receiver: Option<UncheckedAccount>,
    }
}

/// See [`crate::agent_vault::close_policy`].
///
/// # Errors
/// [`VaultError::PolicyInUse`], [`VaultError::PolicyImmutable`], [`VaultError::WrongAllowlist`],
/// [`VaultError::WrongRentReceiver`].
pub fn handler(ctx: &mut Context<ClosePolicy>) -> Result<()> {
    let ClosePolicy { org, policy, policy_rent_receiver, allowlist, allowlist_rent_receiver, .. } =
        &mut ctx.accounts;
    match allowlist {
        None => {
            require!(same_address(&policy.allowlist, &NONE), VaultError::WrongAllowlist);
        }
        Some(list) => {
            require!(same_address(list.address(), &policy.allowlist), VaultError::WrongAllowlist);
            let receiver = allowlist_rent_receiver.as_ref().ok_or(VaultError::WrongRentReceiver)?;
            require!(same_address(&list.payer, receiver.address()), VaultError::WrongRentReceiver);
            list.close(*receiver.account())?;
        }
    }
    let event =
        PolicyClosed { org: *org.address(), policy: *policy.address(), sequence: org.next_sequence()? };
    policy.close(*policy_rent_receiver.account())?;
    emit_event!(ctx, event);
    Ok(())
}
