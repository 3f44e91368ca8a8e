//! Moves USDC from the reserve into a vault.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletFunded},
    instructions::clock,
    state::{same_address, Org, Outlined, Vault},
    token::{self, Transfer},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `fund_wallet`.
    #[derive(Accounts)]
    pub struct FundWallet {
        /// The organisation's operator.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The vault.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The reserve.
        #[account(mut, address = org.reserve_tokens @ VaultError::WrongTokenAccount)]
        pub reserve_tokens: UncheckedAccount,
        /// The vault's token account.
        #[account(mut, constraint = same_address(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
    }
}

/// See [`crate::agent_vault::fund_wallet`].
///
/// # Errors
/// In this order: [`VaultError::OrgPaused`] while the organisation is paused; [`VaultError::ZeroAmount`] if the amount
/// is zero; [`VaultError::BalanceNotBelow`] if the vault holds `only_below` or more;
/// [`VaultError::ReserveInsufficient`] if the reserve holds less than the amount; [`VaultError::OperatorLimitExceeded`]
/// if 24 hours would hold more than the operator's limit.
pub fn handler(
    ctx: &mut Context<FundWallet>,
    amount: u64,
    reference: [u8; 16],
    only_below: Option<u64>,
) -> Result<()> {
    let a = &mut ctx.accounts;
    require!(!a.org.is_paused(), VaultError::OrgPaused);
    require!(amount > 0, VaultError::ZeroAmount);
    let token_program = a.org.token_program;
    if let Some(threshold) = only_below {
        // Keep two callers that fill up the same vault from both doing so.
        let held = token::balance(a.vault_tokens.account(), &token_program)?;
        require!(held < threshold, VaultError::BalanceNotBelow);
    }
    let reserve = token::balance(a.reserve_tokens.account(), &token_program)?;
    require!(amount <= reserve, VaultError::ReserveInsufficient);
    // Check the limit after the reserve's balance, which the operator cannot overdraw whatever the limit.
    a.org.charge_funding(clock()?, amount)?;
    let sequence = a.vault.next_sequence()?;
    let org_sequence = a.org.next_sequence()?;

    let bump = [a.org.bump];
    let decimals = a.org.decimals;
    token::transfer(
        Transfer {
            token_program: &token_program,
            from: a.reserve_tokens.account(),
            mint: a.mint.account(),
            to: a.vault_tokens.account(),
            owner: a.org.account(),
            amount,
            decimals,
        },
        &a.org.signer_seeds(&bump),
    );

    let event = WalletFunded {
        org: *a.org.address(),
        vault: *a.vault.address(),
        sequence,
        org_sequence,
        amount,
        vault_balance: token::balance(a.vault_tokens.account(), &token_program)?,
        reserve_balance: token::balance(a.reserve_tokens.account(), &token_program)?,
        reference,
    };
    emit_event!(ctx, event);
    Ok(())
}
