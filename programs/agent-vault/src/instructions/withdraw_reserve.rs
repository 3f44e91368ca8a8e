//! Moves USDC out of the reserve.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, ReserveWithdrawn},
    state::{check_sequence, Org, Outlined},
    token::{self, Transfer},
};
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `withdraw_reserve`.
    #[derive(Accounts)]
    pub struct WithdrawReserve {
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The reserve.
        #[account(mut, address = org.reserve_tokens @ VaultError::WrongTokenAccount)]
        pub reserve_tokens: UncheckedAccount,
        /// Any token account of the mint, chosen by the authority.
        #[account(mut)]
        pub destination: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
    }
}

/// See [`crate::agent_vault::withdraw_reserve`]. A pause does not stop it.
///
/// # Errors
/// [`VaultError::SequenceMismatch`] if `expected_sequence` is not the current one; [`VaultError::ZeroAmount`] if there
/// is nothing to move; [`VaultError::ReserveInsufficient`] if the reserve holds less than the amount.
pub fn handler(
    ctx: &mut Context<WithdrawReserve>,
    amount: Option<u64>,
    reference: [u8; 16],
    expected_sequence: u64,
) -> Result<()> {
    let a = &mut ctx.accounts;
    check_sequence(expected_sequence, a.org.authority_sequence)?;
    let token_program = a.org.token_program;
    let balance = token::balance(a.reserve_tokens.account(), &token_program)?;
    let amount = amount.unwrap_or(balance);
    require!(amount > 0, VaultError::ZeroAmount);
    require!(amount <= balance, VaultError::ReserveInsufficient);
    let sequence = a.org.next_authority_sequence()?;

    let bump = [a.org.bump];
    let decimals = a.org.decimals;
    token::transfer(
        Transfer {
            token_program: &token_program,
            from: a.reserve_tokens.account(),
            mint: a.mint.account(),
            to: a.destination.account(),
            owner: a.org.account(),
            amount,
            decimals,
        },
        &a.org.signer_seeds(&bump),
    );

    let event = ReserveWithdrawn {
        org: *a.org.address(),
        destination: *a.destination.address(),
        sequence,
        amount,
        reserve_balance: token::balance(a.reserve_tokens.account(), &token_program)?,
        reference,
    };
    emit_event!(ctx, event);
    Ok(())
}
