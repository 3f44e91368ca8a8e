//! Replaces the limits of a budget.

use crate::{
    errors::VaultError,
    events::{emit_borsh_event, with_event_accounts, BudgetUpdated},
    state::{check_version, same_address, Budget, BudgetLimits, Org, Outlined},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `update_budget`.
    #[derive(Accounts)]
    pub struct UpdateBudget {
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The budget.
        #[account(mut, constraint = same_address(&budget.org, org.address()) @ VaultError::WrongOrg)]
        pub budget: Outlined<Account<Budget>>,
    }
}

/// See [`crate::agent_vault::update_budget`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the authority does not sign; [`VaultError::VersionMismatch`] if the budget is no
/// longer at `expected_version`.
pub fn handler(ctx: &mut Context<UpdateBudget>, expected_version: u64, limits: BudgetLimits) -> Result<()> {
    let UpdateBudget { org, budget, .. } = &mut ctx.accounts;
    check_version(expected_version, budget.version)?;
    budget.set_limits(&limits);
    budget.version = org.next_sequence()?;
    let event =
        BudgetUpdated { org: *org.address(), budget: *budget.address(), sequence: budget.version, limits };
    emit_borsh_event!(ctx, event);
    Ok(())
}
