//! Moves USDC from a vault into the reserve.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, WalletWithdrawn},
    state::{
        count_change, live_or_archived, same_address, seeds, sweep, ArchivedVault, Org, Outlined, Unloaded,
    },
    token::{self, Transfer},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `withdraw`.
    #[derive(Accounts)]
    pub struct Withdraw {
        /// The organisation's operator.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault, live or archived. Checked by [`live_or_archived`].
        #[account(mut)]
        pub vault: Unloaded<ArchivedVault>,
        /// The vault's token account.
        #[account(mut)]
        pub vault_tokens: UncheckedAccount,
        /// The reserve.
        #[account(mut, address = org.reserve_tokens @ VaultError::WrongTokenAccount)]
        pub reserve_tokens: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// Payer of the vault's rent, who receives the lamports above the vault's rent exemption.
        #[account(mut, unsafe(dup))]
        pub rent_receiver: Option<UncheckedAccount>,
    }
}

/// See [`crate::agent_vault::withdraw`]. Neither a freeze nor a pause stops it: money may always return to the reserve.
///
/// # Errors
/// [`VaultError::WrongVault`] if `vault` is not a vault; [`VaultError::WrongOrg`] if it belongs to a different
/// organisation; [`VaultError::WrongTokenAccount`] if `vault_tokens` is not its token account;
/// [`VaultError::ZeroAmount`] if there is nothing to move; [`VaultError::InsufficientBalance`] if the vault holds less
/// than the amount; [`VaultError::WrongRentReceiver`] if the rent receiver did not pay the vault's rent.
pub fn handler(ctx: &mut Context<Withdraw>, amount: Option<u64>, reference: [u8; 16]) -> Result<()> {
    let a = &mut ctx.accounts;
    let mut view = *a.vault.account();
    let mut vault = live_or_archived(&view)?;
    require!(same_address(&vault.org, a.org.address()), VaultError::WrongOrg);
    require!(same_address(&vault.tokens, a.vault_tokens.address()), VaultError::WrongTokenAccount);
    let token_program = a.org.token_program;
    let balance = token::balance(a.vault_tokens.account(), &token_program)?;
    let amount = amount.unwrap_or(balance);
    require!(amount > 0, VaultError::ZeroAmount);
    require!(amount <= balance, VaultError::InsufficientBalance);
    let sequence = count_change(&mut view, &mut vault)?;

    token::transfer(
        Transfer {
            token_program: &token_program,
            from: a.vault_tokens.account(),
            mint: a.mint.account(),
            to: a.reserve_tokens.account(),
            owner: a.vault.account(),
            amount,
            decimals: a.org.decimals,
        },
        &[seeds::VAULT, vault.org.as_ref(), &vault.agent_hash, &[vault.bump]],
    );

    let event = WalletWithdrawn {
        org: vault.org,
        vault: *a.vault.address(),
        sequence,
        amount,
        vault_balance: token::balance(a.vault_tokens.account(), &token_program)?,
        reserve_balance: token::balance(a.reserve_tokens.account(), &token_program)?,
        reference,
    };
    if let Some(receiver) = &a.rent_receiver {
        require!(same_address(&vault.payer, receiver.address()), VaultError::WrongRentReceiver);
        sweep(&mut view, receiver.account())?;
    }
    emit_event!(ctx, event);
    Ok(())
}
