//! The operator approves a payment, an escrow or an allowance in advance.
#![allow(unused_variables)] // the framework's macro binds the #[instruction] arguments twice and uses them once

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, PaymentApproved},
    instructions::clock,
    state::{
        check_sequence, check_version, next_sequence, same_address, seeds, Approval, Org, Outlined, Policy,
        SpendingKind, Vault, MAX_APPROVAL_SECONDS,
    },
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `approve_payment`.
    #[derive(Accounts)]
    #[instruction(reference: [u8; 16])]
    pub struct ApprovePayment {
        /// Payer of the rent, refunded when the approval is used or withdrawn.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The organisation's operator.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault that may pay.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg, constraint = same_address(&vault.policy, policy.address()) @ VaultError::WrongPolicy)]
        pub vault: Outlined<Account<Vault>>,
        /// The attached policy. The approval is valid only for its current version.
        pub policy: Outlined<Account<Policy>>,
        /// The approval to create.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::APPROVAL, vault.address().as_ref(), &reference], bump))]
        pub approval: UncheckedAccount,
        /// The system program, used to create the account.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::approve_payment`].
///
/// # Errors
/// [`VaultError::VersionMismatch`] if the policy is no longer at `policy_version`; [`VaultError::SequenceMismatch`] if
/// the vault's number of approvals is not `expected_approvals`; [`VaultError::ZeroAmount`] if the amount is zero;
/// [`VaultError::InvalidTime`] unless `expires_at` is in the future, but at most [`MAX_APPROVAL_SECONDS`] seconds away.
pub fn handler(
    ctx: &mut Context<ApprovePayment>,
    reference: [u8; 16],
    recipient: Address,
    amount: u64,
    expires_at: i64,
    kind: SpendingKind,
    terms: [u8; 32],
    policy_version: u64,
    expected_approvals: u64,
) -> Result<()> {
    check_version(policy_version, ctx.accounts.policy.version)?;
    check_sequence(expected_approvals, ctx.accounts.vault.approvals)?;
    require!(amount > 0, VaultError::ZeroAmount);
    // Use the vault's time, because a payment will use it to judge if the approval is still valid.
    let now = ctx.accounts.vault.ledger.as_policy().time(clock()?).0;
    let latest = now.saturating_add(MAX_APPROVAL_SECONDS);
    require!(now < expires_at && expires_at <= latest, VaultError::InvalidTime);
    let a = &mut ctx.accounts;
    next_sequence(&mut a.vault.approvals)?;
    let vault = *a.vault.account();
    let seeds: [&[u8]; 3] = [seeds::APPROVAL, vault.address().as_ref(), &reference];
    let (mut approval, bump) =
        Outlined::<Account<Approval>>::create(a.payer.account(), a.approval.account(), &seeds)?;
    approval.vault = *vault.address();
    approval.policy = *a.policy.address();
    approval.operator = *a.operator.address();
    approval.recipient = recipient;
    approval.terms = terms;
    approval.payer = *a.payer.address();
    approval.reference = reference;
    approval.amount = amount;
    approval.policy_version = a.policy.version;
    approval.expires_at = expires_at;
    approval.bump = bump;
    approval.kind = kind as u8;
    let event = PaymentApproved {
        org: a.vault.org,
        vault: approval.vault,
        policy: approval.policy,
        approval: *approval.address(),
        recipient,
        payer: approval.payer,
        terms,
        sequence: a.vault.next_sequence()?,
        amount,
        policy_version: approval.policy_version,
        expires_at,
        reference,
        kind: approval.kind,
        reserved: [0; 7],
    };
    emit_event!(ctx, event);
    Ok(())
}
