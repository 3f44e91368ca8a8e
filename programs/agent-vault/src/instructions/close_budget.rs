//! Closes a budget.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, BudgetClosed},
    state::{check_parent, check_version, same_address, Budget, Org, Outlined},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `close_budget`.
    #[derive(Accounts)]
    pub struct CloseBudget {
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The budget.
        #[account(mut,
            constraint = same_address(&budget.org, org.address()) @ VaultError::WrongOrg,
            constraint = budget.wallet_count == 0 && budget.budget_count == 0 @ VaultError::BudgetInUse)]
        pub budget: Outlined<Account<Budget>>,
        /// The budget's parent, if it has one.
        #[account(mut)]
        pub parent: Option<Outlined<Account<Budget>>>,
        /// Payer of the rent, refunded here.
        #[account(mut, constraint = same_address(&budget.payer, rent_receiver.address()) @ VaultError::WrongRentReceiver, unsafe(dup))]
        pub rent_receiver: UncheckedAccount,
    }
}

/// See [`crate::agent_vault::close_budget`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the authority does not sign; [`VaultError::VersionMismatch`] if the budget is no
/// longer at `expected_version`; [`VaultError::BudgetInUse`] if vaults are attached or other budgets belong to it;
/// [`VaultError::WrongRentReceiver`] if the rent receiver did not pay the budget's rent; the errors of
/// [`check_parent`].
pub fn handler(ctx: &mut Context<CloseBudget>, expected_version: u64) -> Result<()> {
    let CloseBudget { org, budget, parent, rent_receiver, .. } = &mut ctx.accounts;
    check_version(expected_version, budget.version)?;
    check_parent(Some(budget), parent.as_ref())?;
    if let Some(parent) = parent {
        parent.release_child()?;
    }
    let event = BudgetClosed {
        org: *org.address(),
        budget: *budget.address(),
        sequence: org.next_authority_sequence()?,
    };
    budget.close(*rent_receiver.account())?;
    emit_event!(ctx, event);
    Ok(())
}
