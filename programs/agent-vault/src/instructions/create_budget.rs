//! Creates a budget.
#![allow(unused_variables)] // the framework's macro binds the #[instruction] arguments twice and uses them once

use crate::{
    errors::VaultError,
    events::{emit_borsh_event, with_event_accounts, BudgetCreated},
    state::{check_sequence, check_version, same_address, seeds, Budget, BudgetLimits, Org, Outlined, NONE},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `create_budget`.
    #[derive(Accounts)]
    #[instruction(key: [u8; 16])]
    pub struct CreateBudget {
        /// Payer of the rent, refunded when the budget is closed.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The budget to create.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::BUDGET, org.address().as_ref(), &key], bump))]
        pub budget: UncheckedAccount,
        /// The budget that the new one belongs to, if any. It has no parent itself.
        #[account(mut,
            constraint = same_address(&parent.org, org.address()) @ VaultError::WrongOrg,
            constraint = same_address(&parent.parent, &NONE) @ VaultError::BudgetTooDeep)]
        pub parent: Option<Outlined<Account<Budget>>>,
        /// The system program, used to create the account.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::create_budget`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the authority does not sign; [`VaultError::SequenceMismatch`] if the organisation is
/// no longer at `expected_sequence`; [`VaultError::VersionMismatch`] if the parent is no longer at `parent_version`;
/// [`VaultError::BudgetParentRequired`] if only one of `parent` and `parent_version` is given;
/// [`VaultError::BudgetTooDeep`] if the parent has a parent itself; the errors of [`Outlined::create`].
pub fn handler(
    ctx: &mut Context<CreateBudget>,
    key: [u8; 16],
    limits: BudgetLimits,
    expected_sequence: u64,
    parent_version: Option<u64>,
) -> Result<()> {
    let a = &mut ctx.accounts;
    check_sequence(expected_sequence, a.org.authority_sequence)?;
    require!(a.parent.is_some() == parent_version.is_some(), VaultError::BudgetParentRequired);
    let mut parent_address = NONE;
    if let (Some(parent), Some(version)) = (&mut a.parent, parent_version) {
        check_version(version, parent.version)?;
        parent.adopt()?;
        parent_address = *parent.address();
    }
    let org = *a.org.address();
    let seeds: [&[u8]; 3] = [seeds::BUDGET, org.as_ref(), &key];
    let (mut budget, bump) =
        Outlined::<Account<Budget>>::create(a.payer.account(), a.budget.account(), &seeds)?;
    let sequence = a.org.next_sequence()?;
    budget.org = org;
    budget.payer = *a.payer.address();
    budget.parent = parent_address;
    budget.key = key;
    budget.version = sequence;
    budget.created_version = sequence;
    budget.bump = bump;
    budget.set_limits(&limits);
    let event =
        BudgetCreated { org, budget: *budget.address(), sequence, key, parent: budget.parent, limits };
    emit_borsh_event!(ctx, event);
    Ok(())
}
