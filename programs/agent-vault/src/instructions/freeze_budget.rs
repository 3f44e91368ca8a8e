//! Freezes or unfreezes a budget.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, BudgetFrozen, BudgetUnfrozen},
    state::{check_sequence, same_address, Budget, Org, Outlined},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `freeze_budget` and `unfreeze_budget`.
    #[derive(Accounts)]
    pub struct FreezeBudget {
        /// The organisation's authority. Its operator may freeze, too.
        pub signer: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The budget.
        #[account(mut, constraint = same_address(&budget.org, org.address()) @ VaultError::WrongOrg)]
        pub budget: Outlined<Account<Budget>>,
    }
}

/// See [`crate::agent_vault::freeze_budget`].
///
/// A freeze leaves the budget's version unchanged, so it does not invalidate what the authority has signed.
///
/// # Errors
/// [`VaultError::Unauthorized`] if neither the operator nor the authority signs; [`VaultError::AlreadyFrozen`] if the
/// budget is already frozen.
pub fn freeze(ctx: &mut Context<FreezeBudget>) -> Result<()> {
    let FreezeBudget { signer, org, budget, .. } = &mut ctx.accounts;
    let signer = *signer.address();
    require!(org.is_operator(&signer) || org.is_authority(&signer), VaultError::Unauthorized);
    require!(!budget.is_frozen(), VaultError::AlreadyFrozen);
    budget.frozen = 1;
    budget.frozen_sequence = org.next_sequence()?;
    let sequence = budget.frozen_sequence;
    let event = BudgetFrozen { org: *org.address(), budget: *budget.address(), signer, sequence };
    emit_event!(ctx, event);
    Ok(())
}

/// See [`crate::agent_vault::unfreeze_budget`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the authority does not sign; [`VaultError::NotFrozen`] if the budget is not frozen;
/// [`VaultError::SequenceMismatch`] if it was frozen again since.
pub fn unfreeze(ctx: &mut Context<FreezeBudget>, expected_sequence: u64) -> Result<()> {
    let FreezeBudget { signer, org, budget, .. } = &mut ctx.accounts;
    let signer = *signer.address();
    require!(org.is_authority(&signer), VaultError::Unauthorized);
    require!(budget.is_frozen(), VaultError::NotFrozen);
    check_sequence(expected_sequence, budget.frozen_sequence)?;
    budget.frozen = 0;
    budget.frozen_sequence = org.next_sequence()?;
    let sequence = budget.frozen_sequence;
    let event = BudgetUnfrozen { org: *org.address(), budget: *budget.address(), signer, sequence };
    emit_event!(ctx, event);
    Ok(())
}
