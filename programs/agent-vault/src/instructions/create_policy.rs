//! Creates a policy.
#![allow(unused_variables)] // the framework's macro binds the #[instruction] arguments twice and uses them once

use crate::{
    errors::VaultError,
    events::{emit_borsh_event, with_event_accounts, PolicyCreated},
    state::{check_sequence, seeds, Org, Outlined, Policy, PolicyRules},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `create_policy`.
    #[derive(Accounts)]
    #[instruction(key: [u8; 16])]
    pub struct CreatePolicy {
        /// Payer of the rent, refunded when the policy is closed.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The policy to create.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::POLICY, org.address().as_ref(), &key], bump))]
        pub policy: UncheckedAccount,
        /// The system program, used to create the account.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::create_policy`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the authority does not sign; [`VaultError::SequenceMismatch`] if the organisation is
/// no longer at `expected_sequence`; the errors of [`make`].
pub fn handler(
    ctx: &mut Context<CreatePolicy>,
    key: [u8; 16],
    rules: PolicyRules,
    expected_sequence: u64,
) -> Result<()> {
    let a = &mut ctx.accounts;
    check_sequence(expected_sequence, a.org.authority_sequence)?;
    let event = make(&mut a.org, &a.payer, &a.policy, &key, &rules, false)?;
    emit_borsh_event!(ctx, event);
    Ok(())
}

/// Creates a policy.
///
/// # Errors
/// [`VaultError::UnknownCategory`] if the rules block a category that does not exist; the errors of
/// [`Outlined::create`].
#[inline(never)]
pub fn make(
    org: &mut Outlined<Account<Org>>,
    payer: &Signer,
    account: &UncheckedAccount,
    key: &[u8; 16],
    rules: &PolicyRules,
    immutable: bool,
) -> Result<PolicyCreated> {
    let address = *org.address();
    let seeds: [&[u8]; 3] = [seeds::POLICY, address.as_ref(), key];
    let (mut policy, bump) = Outlined::<Account<Policy>>::create(payer.account(), account.account(), &seeds)?;
    let sequence = org.next_sequence()?;
    policy.org = address;
    policy.payer = *payer.address();
    policy.key = *key;
    policy.version = sequence;
    policy.next_allowlist_version = sequence;
    policy.immutable = u8::from(immutable);
    policy.bump = bump;
    policy.set_rules(rules)?;
    Ok(PolicyCreated {
        org: address,
        policy: *policy.address(),
        sequence,
        key: *key,
        immutable,
        rules: *rules,
    })
}
