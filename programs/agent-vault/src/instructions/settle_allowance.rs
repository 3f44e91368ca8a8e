//! Takes back the money that a delegate has not paid out.

use super::set_aside::rent_destination;
use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, AllowanceSettled},
    instructions::clock,
    state::{
        release, same_address, same_budgets, Allowance, Budget, Org, Outlined, Policy, Unloaded, Vault, NONE,
    },
    token::{self, Transfer},
};
use agent_vault_policy::UnixTime;
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `settle_allowance`.
    #[derive(Accounts)]
    pub struct SettleAllowance {
        /// The operator, the vault's live session authority or the authority. Not needed if anyone may settle.
        pub signer: Option<Signer>,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
        /// The vault's token account.
        #[account(mut, constraint = same_address(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// The attached policy. Needed only for a settlement that anyone may make because the policy was changed.
        #[account(constraint = same_address(&vault.policy, policy.address()) @ VaultError::WrongPolicy)]
        pub policy: Option<Outlined<Account<Policy>>>,
        /// The allowance.
        #[account(mut, constraint = same_address(&allowance.vault, vault.address()) @ VaultError::WrongAllowance)]
        pub allowance: Outlined<Account<Allowance>>,
        /// The allowance's token account.
        #[account(mut, constraint = same_address(&allowance.tokens, allowance_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub allowance_tokens: UncheckedAccount,
        /// Payer of the rent, refunded here. Not required to be writable here: see [`rent_destination`].
        #[cfg_attr(feature = "idl-build", account(mut))]
        #[account(constraint = same_address(&allowance.payer, rent_receiver.address()) @ VaultError::WrongRentReceiver)]
        pub rent_receiver: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// The budget that holds the amount, even if that budget was closed or the vault has a different one now. Its
        /// address is checked in [`same_budgets`].
        #[account(mut)]
        pub budget: Option<Unloaded<Budget>>,
        /// The parent of that budget, if the parent holds the amount too.
        #[account(mut)]
        pub budget_parent: Option<Unloaded<Budget>>,
    }
}

/// See [`crate::agent_vault::settle_allowance`].
///
/// # Errors
/// [`VaultError::AllowanceNotExpired`] if the caller may not settle yet; [`VaultError::SessionExpired`] if the signer's
/// session has expired; the errors of [`same_budgets`] and [`release`]. If money is left in the allowance and the
/// mint's issuer has frozen one of the token accounts, the token program fails. The allowance then stays recorded until
/// the account is thawed.
pub fn handler(ctx: &mut Context<SettleAllowance>) -> Result<()> {
    let a = &mut ctx.accounts;
    let clock = clock()?;
    let now = a.vault.ledger.as_policy().time(clock);
    let mut budgets = same_budgets(&a.allowance.levels, [a.budget.as_ref(), a.budget_parent.as_ref()])?;
    if !budgets.iter().flatten().any(|budget| budget.is_frozen()) {
        check_settler(a, now)?;
    }
    let token_program = &a.org.token_program;
    let delegated = token::delegated(a.allowance_tokens.account(), token_program, &a.allowance.delegate)?;
    let spent = a.allowance.spent(delegated);
    release(&mut a.vault, &a.allowance, &mut budgets, clock, spent)?;
    a.vault.open_allowances = a.vault.open_allowances.checked_sub(1).ok_or(VaultError::Overflow)?;

    let swept = token::balance(a.allowance_tokens.account(), token_program)?;
    let bump = [a.vault.bump];
    let seeds = a.vault.signer_seeds(&bump);
    if swept > 0 {
        token::transfer(
            Transfer {
                token_program,
                from: a.allowance_tokens.account(),
                mint: a.mint.account(),
                to: a.vault_tokens.account(),
                owner: a.vault.account(),
                amount: swept,
                decimals: a.org.decimals,
            },
            &seeds,
        );
    }
    let (allowance, vault) = (a.allowance.account(), a.vault.account());
    token::close(token_program, a.allowance_tokens.account(), allowance, vault, &seeds);

    let event = AllowanceSettled {
        org: a.allowance.org,
        vault: a.allowance.vault,
        allowance: *a.allowance.address(),
        recipient: a.allowance.recipient,
        destination: a.allowance.destination,
        delegate: a.allowance.delegate,
        signer: a.signer.as_ref().map_or(NONE, |signer| *signer.address()),
        reference: a.allowance.reference,
        sequence: a.vault.next_sequence()?,
        amount: a.allowance.amount,
        spent,
        swept,
        vault_balance: token::balance(a.vault_tokens.account(), token_program)?,
        timestamp: now.0,
        delegate_missing: u8::from(delegated.is_none()),
        reserved: [0; 7],
    };
    let destination = rent_destination(&a.rent_receiver, a.vault.account())?;
    a.allowance.close(destination)?;
    emit_event!(ctx, event);
    Ok(())
}

/// Checks that the caller may settle. The operator, the authority and the session authority may do so at any time.
/// Anyone may if the allowance has expired, the vault is frozen, the organisation is paused, or the policy was replaced
/// or changed. (The handler skips this check if a budget is frozen.)
///
/// # Errors
/// [`VaultError::AllowanceNotExpired`] if the caller may not settle yet; [`VaultError::SessionExpired`] if the signer
/// is a session authority that has expired.
fn check_settler(a: &SettleAllowance, now: UnixTime) -> Result<()> {
    let other_policy = !same_address(&a.vault.policy, &a.allowance.policy)
        || a.policy.as_ref().is_some_and(|policy| policy.version != a.allowance.policy_version);
    if now >= UnixTime(a.allowance.expires_at) || a.vault.is_frozen() || a.org.is_paused() || other_policy {
        return Ok(());
    }
    if let Some(signer) = &a.signer {
        let signer = signer.address();
        if a.org.is_operator(signer) || a.org.is_authority(signer) || a.vault.is_session(signer, now)? {
            return Ok(());
        }
    }
    Err(VaultError::AllowanceNotExpired.into())
}
