//! Replaces the rules of a policy.

use super::close_policy::close_list;
use crate::{
    errors::VaultError,
    events::{emit_borsh_event, with_event_accounts, PolicyUpdated},
    state::{
        check_version, same_address, AllowlistAccount, AllowlistDigest, Org, Outlined, Policy, PolicyRules,
        Unloaded, Versioned, NONE,
    },
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
        /// The policy's next list, sealed, to be put in force. Checked in the handler.
        pub new_allowlist: Option<Unloaded<AllowlistAccount>>,
        /// The list in force, to be closed because it is replaced or dropped.
        #[account(mut)]
        pub old_allowlist: Option<Outlined<AllowlistAccount>>,
        /// Payer of that list's rent, refunded here.
        #[account(mut, unsafe(dup))]
        pub rent_receiver: Option<UncheckedAccount>,
    }
}

/// See [`crate::agent_vault::update_policy`].
///
/// # Errors
/// [`VaultError::VersionMismatch`] if the policy is no longer at `expected_version`; [`VaultError::UnknownCategory`] if
/// the rules block a category that does not exist; [`VaultError::AllowlistRequired`] if only one of `new_allowlist` and
/// `digest` is given, or if the replaced list is missing; [`VaultError::WrongAllowlist`] if a given list is not the
/// next or the replaced one; [`VaultError::AllowlistNotSealed`] if the new list is not sealed;
/// [`VaultError::AllowlistMismatch`] if its entries do not match the digest; the errors of [`close_list`].
pub fn handler(
    ctx: &mut Context<UpdatePolicy>,
    expected_version: u64,
    rules: PolicyRules,
    digest: Option<AllowlistDigest>,
) -> Result<()> {
    let UpdatePolicy { org, policy, new_allowlist, old_allowlist, rent_receiver, .. } = &mut ctx.accounts;
    check_version(expected_version, policy.version)?;
    let previous = policy.values();
    let previous_allowlist = policy.allowlist;
    policy.set_rules(&rules)?;
    let sequence = org.next_sequence()?;
    policy.version = sequence;

    // A new list replaces the one in force. A policy that is not restricted has no list.
    require!(new_allowlist.is_some() == digest.is_some(), VaultError::AllowlistRequired);
    if let (Some(list), Some(digest)) = (new_allowlist, digest) {
        let Versioned(list) = Versioned::<AllowlistAccount>::load(**list)?;
        let fits = rules.restricted
            && same_address(&list.policy, policy.address())
            && list.version == policy.next_allowlist_version;
        require!(fits, VaultError::WrongAllowlist);
        require!(list.sealed != 0, VaultError::AllowlistNotSealed);
        require!(digest.is_of(list.as_slice()), VaultError::AllowlistMismatch);
        policy.allowlist = *list.address();
        policy.next_allowlist_version = sequence;
    } else if !rules.restricted {
        policy.allowlist = NONE;
    }

    let replaced =
        !same_address(&previous_allowlist, &policy.allowlist) && !same_address(&previous_allowlist, &NONE);
    require!(!replaced || old_allowlist.is_some(), VaultError::AllowlistRequired);
    if let Some(list) = old_allowlist {
        let right = replaced && same_address(list.address(), &previous_allowlist);
        require!(right, VaultError::WrongAllowlist);
        close_list(list, rent_receiver.as_ref())?;
    }

    let event = PolicyUpdated {
        org: *org.address(),
        policy: *policy.address(),
        sequence,
        previous,
        rules,
        previous_allowlist,
        allowlist: policy.allowlist,
    };
    emit_borsh_event!(ctx, event);
    Ok(())
}
