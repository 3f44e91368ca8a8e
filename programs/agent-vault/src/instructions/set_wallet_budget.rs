//! Attaches a vault to a budget, moves it to a different one, or detaches it.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletBudgetSet},
    state::{check_parent, check_version, same_address, Budget, Org, Outlined, Vault, NONE},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `set_wallet_budget`.
    #[derive(Accounts)]
    pub struct SetWalletBudget {
        /// The organisation's operator if the vault has no budget yet. If the vault has one, the organisation's
        /// authority must sign instead, because a vault that leaves a budget evades the budget's limits.
        pub signer: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The organisation's authority. Required for the first budget if the organisation has the flag
        /// `authority_attaches`.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Option<Signer>,
        /// The vault.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The vault's budget, if it has one.
        #[account(mut, constraint = same_address(&vault.budget, budget.address()) @ VaultError::WrongBudget)]
        pub budget: Option<Outlined<Account<Budget>>>,
        /// The parent of the vault's budget, if it has one.
        pub budget_parent: Option<Outlined<Account<Budget>>>,
        /// The budget to attach. Without it, the vault is left without a budget.
        #[account(mut, constraint = same_address(&new_budget.org, org.address()) @ VaultError::WrongOrg)]
        pub new_budget: Option<Outlined<Account<Budget>>>,
        /// The parent of the budget to attach, if it has one.
        pub new_parent: Option<Outlined<Account<Budget>>>,
    }
}

/// See [`crate::agent_vault::set_wallet_budget`].
///
/// The vault's spending stays where it was charged: nothing moves from one budget's ledger to another's. No account may
/// be both written and named as a parent, so a move between a budget and its own parent takes two instructions.
///
/// # Errors
/// [`VaultError::SequenceMismatch`] if a policy or budget was attached since; [`VaultError::VersionMismatch`] if the
/// new budget is no longer at `budget_version`, or its parent at `parent_version`; [`VaultError::BudgetFrozen`] if the
/// vault's budget or its parent is frozen; the errors of [`check_parent`]; [`VaultError::BudgetRequired`] if the vault's budget is not among the
/// accounts, if the vault has none and `new_budget` is missing, or if only one of `new_budget` and `budget_version` is
/// given; [`VaultError::Unauthorized`] if the call needs a different signer; [`VaultError::AuthorityRequired`] if this
/// is the vault's first budget, the organisation has the flag `authority_attaches` and the authority does not sign.
pub fn handler(
    ctx: &mut Context<SetWalletBudget>,
    expected_attachments: u64,
    budget_version: Option<u64>,
    parent_version: Option<u64>,
) -> Result<()> {
    let SetWalletBudget {
        signer, org, authority, vault, budget, budget_parent, new_budget, new_parent, ..
    } = &mut ctx.accounts;
    vault.check_budget(budget.as_ref())?;
    check_parent(budget.as_deref(), budget_parent.as_ref())?;
    check_parent(new_budget.as_deref(), new_parent.as_ref())?;
    require!(new_parent.is_some() == parent_version.is_some(), VaultError::BudgetParentRequired);
    if let (Some(parent), Some(version)) = (new_parent, parent_version) {
        check_version(version, parent.version)?;
    }
    match budget {
        Some(budget) => {
            require!(org.is_authority(signer.address()), VaultError::Unauthorized);
            let frozen =
                budget.is_frozen() || budget_parent.as_ref().is_some_and(|parent| parent.is_frozen());
            require!(!frozen, VaultError::BudgetFrozen);
            budget.detach()?;
        }
        None => {
            require!(org.is_operator(signer.address()), VaultError::Unauthorized);
            require!(new_budget.is_some(), VaultError::BudgetRequired);
            org.check_attaching(authority.as_ref())?;
        }
    }
    vault.count_attachment(expected_attachments)?;
    require!(new_budget.is_some() == budget_version.is_some(), VaultError::BudgetRequired);
    let previous = vault.budget;
    vault.budget = match new_budget {
        Some(budget) => {
            check_version(budget_version.unwrap_or_default(), budget.version)?;
            budget.attach()?;
            *budget.address()
        }
        None => NONE,
    };
    let event = WalletBudgetSet {
        org: vault.org,
        vault: *vault.address(),
        sequence: vault.next_sequence()?,
        budget: vault.budget,
        previous,
        signer: *signer.address(),
    };
    emit_event!(ctx, event);
    Ok(())
}
