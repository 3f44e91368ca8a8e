//! Archives a vault.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletClosed},
    state::{
        check_sequence, head_of, same_address, sweep, ArchivedVault, Budget, Org, Outlined, Policy, Session,
        Vault, ARCHIVED_SPACE, NONE,
    },
    token,
};
use anchor_lang::{prelude::*, realloc_account};

with_event_accounts! {
    /// Accounts of `close_wallet`.
    #[derive(Accounts)]
    pub struct CloseWallet {
        /// The organisation's operator.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault.
        #[account(mut,
            constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg,
            constraint = same_address(&vault.policy, policy.address()) @ VaultError::WrongPolicy,
            constraint = vault.open_escrows == 0 @ VaultError::OpenEscrows,
            constraint = vault.open_allowances == 0 @ VaultError::OpenAllowances)]
        pub vault: Outlined<Account<Vault>>,
        /// The attached policy.
        #[account(mut)]
        pub policy: Outlined<Account<Policy>>,
        /// The vault's budget, if it has one.
        #[account(mut, constraint = same_address(&vault.budget, budget.address()) @ VaultError::WrongBudget)]
        pub budget: Option<Outlined<Account<Budget>>>,
        /// The vault's token account.
        #[account(constraint = same_address(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// Payer of the vault's rent, most of it refunded here.
        #[account(mut, constraint = same_address(&vault.payer, rent_receiver.address()) @ VaultError::WrongRentReceiver, unsafe(dup))]
        pub rent_receiver: UncheckedAccount,
    }
}

/// See [`crate::agent_vault::close_wallet`].
///
/// The account remains, so that the agent's id cannot be reused and a stray deposit can still be withdrawn. It shrinks
/// to fields that suffice for these two purposes. Its session ends: an escrow that it still has to receive is completed
/// by the operator or refunded.
///
/// # Errors
/// [`VaultError::SequenceMismatch`] if the vault has changed since `expected_sequence`;
/// [`VaultError::WalletNotEmpty`] if the vault holds USDC; [`VaultError::OpenEscrows`] and
/// [`VaultError::OpenAllowances`] if the vault has unsettled ones; [`VaultError::BudgetRequired`] if the vault's budget
/// is not among the accounts.
pub fn handler(ctx: &mut Context<CloseWallet>, expected_sequence: u64) -> Result<()> {
    let CloseWallet { org, vault, policy, budget, vault_tokens, rent_receiver, .. } = &mut ctx.accounts;
    check_sequence(expected_sequence, vault.sequence)?;
    let balance = token::balance(vault_tokens.account(), &org.token_program)?;
    require!(balance == 0, VaultError::WalletNotEmpty);
    policy.detach()?;
    vault.check_budget(budget.as_ref())?;
    if let Some(budget) = budget {
        budget.detach()?;
    }
    vault.set_session(&Session { authority: NONE, expires_at: 0 })?;
    let event = WalletClosed {
        org: vault.org,
        vault: *vault.address(),
        policy: vault.policy,
        sequence: vault.next_sequence()?,
    };
    let mut view = *vault.account();
    // SAFETY: the vault is not read through its typed account after this.
    let data = unsafe { view.borrow_unchecked_mut() };
    *data.first_chunk_mut().ok_or(VaultError::WrongVault)? = head_of::<ArchivedVault>();
    realloc_account(&mut view, ARCHIVED_SPACE, rent_receiver.account(), false)?;
    sweep(&mut view, rent_receiver.account())?;
    emit_event!(ctx, event);
    Ok(())
}
