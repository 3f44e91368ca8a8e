//! Replaces the rules of a policy.

use crate::{
    errors::VaultError,
    events::{emit_borsh_event, with_event_accounts, PolicyUpdated},
    state::{same_address, AllowlistAccount, Org, Outlined, Policy, PolicyRules, NONE},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `update_policy`.
    #[derive(Accounts)]
    pub struct UpdatePolicy {
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The policy.
        #[account(mut,
            constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg,
            constraint = policy.immutable == 0 @ VaultError::PolicyImmutable)]
        pub policy: Outlined<Account<Policy>>,
        /// A sealed list to be put in force.
        pub new_allowlist: Option<Outlined<AllowlistAccount>>,
        /// The list in force, to be closed because another takes its place or none does.
        #[account(mut)]
        pub old_allowlist: Option<Outlined<AllowlistAccount>>,
        /// Paid the rent of the list in force.
        #[account(mut, unsafe(dup))]
        pub rent_receiver: Option<UncheckedAccount>,
    }
}

/// See [`crate::agent_vault::update_policy`].
///
/// # Errors
/// [`VaultError::VersionMismatch`], [`VaultError::UnknownCategory`], [`VaultError::WrongAllowlist`],
/// [`VaultError::AllowlistNotSealed`], [`VaultError::WrongRentReceiver`].
pub fn handler(ctx: &mut Context<UpdatePolicy>, expected_version: u64, rules: PolicyRules) -> Result<()> {
    let UpdatePolicy { org, policy, new_allowlist, old_allowlist, rent_receiver, .. } = &mut ctx.accounts;
    require!(policy.version == expected_version, VaultError::VersionMismatch);
    let previous = policy.values();
    let previous_allowlist = policy.allowlist;
    policy.set_rules(&rules)?;
    policy.version = policy.version.checked_add(1).ok_or(VaultError::Overflow)?;

    // A new list takes the place of the one in force; without restriction there is no list.
    if let Some(list) = new_allowlist {
        let next = policy.allowlist_version.checked_add(1).ok_or(VaultError::Overflow)?;
        let fits = rules.restricted && same_address(&list.policy, policy.address()) && list.version == next;
        require!(fits, VaultError::WrongAllowlist);
        require!(list.sealed != 0, VaultError::AllowlistNotSealed);
        policy.allowlist = *list.address();
        policy.allowlist_version = next;
    } else if !rules.restricted {
        policy.allowlist = NONE;
    }

    let replaced =
        !same_address(&previous_allowlist, &policy.allowlist) && !same_address(&previous_allowlist, &NONE);
    require!(replaced == old_allowlist.is_some(), VaultError::WrongAllowlist);
    if let Some(list) = old_allowlist {
        require!(same_address(list.address(), &previous_allowlist), VaultError::WrongAllowlist);
        let receiver = rent_receiver.as_ref().ok_or(VaultError::WrongRentReceiver)?;
        require!(same_address(&list.payer, receiver.address()), VaultError::WrongRentReceiver);
        list.close(*receiver.account())?;
    }

    let event = PolicyUpdated {
        org: *org.address(),
        policy: *policy.address(),
        sequence: org.next_sequence()?,
        version: policy.version,
        previous,
        rules,
        previous_allowlist,
        allowlist: policy.allowlist,
    };
    emit_borsh_event!(ctx, event);
    Ok(())
}
