//! Pays from a vault, if its policy allows it.

use super::recipient_standing::recipient_standing;
use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, PaymentExecuted, PolicyViolation},
    instructions::clock,
    state::{AllowlistAccount, Approval, Org, Policy, Vault, NONE},
    token::{self, Transfer},
};
use agent_vault_policy::{authorize, Payment, Refusal, Standing, UnixTime, Usdc};
use anchor_lang::{address_eq, prelude::*};

with_event_accounts! {
    /// Accounts of `execute_payment`.
    ///
    /// One transfer between existing token accounts, signed by payer and session authority alone: so that wallets and
    /// x402 facilitators can read it.
    #[derive(Accounts)]
    pub struct ExecutePayment {
        /// The session authority or the operator.
        pub signer: Signer,
        /// The organisation.
        pub org: Account<Org>,
        /// The policy attached.
        #[account(constraint = address_eq(&policy.org, org.address()) @ VaultError::WrongOrg)]
        pub policy: Account<Policy>,
        /// The vault that pays.
        #[account(mut, constraint = address_eq(&vault.org, org.address()) @ VaultError::WrongOrg, constraint = address_eq(&vault.policy, policy.address()) @ VaultError::WrongPolicy)]
        pub vault: Account<Vault>,
        /// The vault's token account.
        #[account(mut, constraint = address_eq(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// The token account that is paid; its owner is the recipient that the policy judges.
        #[account(mut)]
        pub destination: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// The policy's allowlist, when it has one.
        pub allowlist: Option<AllowlistAccount>,
        /// The recipient's Recipient account: needed when the policy blocks categories, or for an attested domain.
        pub recipient: Option<UncheckedAccount>,
        /// The operator, co-signing above the policy's threshold.
        #[account(constraint = address_eq(&org.operator, co_signer.address()) @ VaultError::Unauthorized)]
        pub co_signer: Option<Signer>,
        /// The operator's approval in place of its signature; the payment closes it.
        #[account(mut, constraint = address_eq(&approval.vault, vault.address()) @ VaultError::WrongApproval)]
        pub approval: Option<Account<Approval>>,
        /// Paid the approval's rent.
        #[account(mut, unsafe(dup))]
        pub approval_rent_receiver: Option<UncheckedAccount>,
    }
}

/// See [`crate::agent_vault::execute_payment`].
///
/// # Errors
/// The error of the rule that refuses, with a [`PolicyViolation`] logged; [`VaultError::ZeroAmount`],
/// [`VaultError::PaymentToSelf`], [`VaultError::Unauthorized`], [`VaultError::SessionExpired`],
/// [`VaultError::InsufficientBalance`], [`VaultError::WrongApproval`] and those of the accounts.
#[inline(always)]
pub fn handler(ctx: &mut Context<ExecutePayment>, amount: u64, reference: [u8; 16]) -> Result<()> {
    let a = &mut ctx.accounts;
    let now = a.vault.ledger.as_policy().time(clock()?);
    require!(amount > 0, VaultError::ZeroAmount);

    let signer = a.signer.address();
    let by_session = a.vault.is_session(signer, now)?;
    require!(by_session || a.org.is_operator(signer), VaultError::Unauthorized);

    let token_program = &a.org.token_program;
    let recipient = token::read(a.destination.account(), token_program)?.owner;
    require!(!address_eq(&recipient, a.vault.address()), VaultError::PaymentToSelf);

    let approved = match &a.approval {
        None => false,
        Some(approval) => {
            let receiver = a.approval_rent_receiver.as_ref().ok_or(VaultError::WrongRentReceiver)?;
            require!(address_eq(&approval.payer, receiver.address()), VaultError::WrongRentReceiver);
            let fits = address_eq(&approval.recipient, &recipient)
                && address_eq(&approval.operator, &a.org.operator)
                && approval.amount == amount
                && address_eq(&approval.policy, a.policy.address())
                && approval.policy_version == a.policy.version
                && now < UnixTime(approval.expires_at);
            require!(fits, VaultError::WrongApproval);
            true
        }
    };
    let co_signed = by_session && (approved || a.co_signer.is_some());

    let standing = recipient_standing(
        &a.policy,
        a.allowlist.as_ref(),
        a.recipient.as_ref(),
        a.org.address(),
        &recipient,
        now,
    )?;
    let payment =
        Payment { amount: Usdc(amount), listed: standing.listed, category: standing.category, co_signed };
    let stops = Standing { paused: a.org.is_paused(), frozen: a.vault.is_frozen() };
    let charge = match authorize(&a.policy.rules(), a.vault.ledger.as_policy(), &payment, stops, now) {
        Ok(charge) => charge,
        Err(refusal) => return Err(refuse(&a.vault, &recipient, refusal)),
    };

    let balance = token::balance(a.vault_tokens.account(), token_program)?;
    let balance = balance.checked_sub(amount).ok_or(VaultError::InsufficientBalance)?;
    a.vault.ledger.as_policy_mut().charge(&charge).map_err(|_| VaultError::Overflow)?;
    let sequence = a.vault.next_sequence()?;

    let bump = [a.vault.bump];
    token::transfer(
        Transfer {
            token_program,
            from: a.vault_tokens.try_cpi_handle_mut()?,
            mint: a.mint.cpi_handle(),
            to: a.destination.try_cpi_handle_mut()?,
            owner: a.vault.cpi_handle(),
            amount,
            decimals: a.org.decimals,
        },
        &a.vault.signer_seeds(&bump),
    );

    let mut approval_used = NONE;
    if let (Some(approval), Some(receiver)) = (&mut a.approval, &a.approval_rent_receiver) {
        approval_used = *approval.address();
        approval.close(*receiver.account())?;
    }

    let a = &ctx.accounts;
    let event = PaymentExecuted {
        org: a.vault.org,
        vault: *a.vault.address(),
        policy: a.vault.policy,
        recipient,
        destination: *a.destination.address(),
        signer: *a.signer.address(),
        approval: approval_used,
        sequence,
        amount,
        balance,
        timestamp: charge.at.0,
        reference,
        co_signed: u8::from(co_signed),
        by_session: u8::from(by_session),
        reserved: [0; 6],
    };
    emit_event!(ctx, event);
    Ok(())
}

/// Logs which rule refuses, and returns its error. A pause or freeze is no rule of the policy and logs nothing.
#[cold]
fn refuse(vault: &Account<Vault>, recipient: &Address, refusal: Refusal) -> ProgramError {
    use agent_vault_policy::Rule;
    if let Refusal::Violation(violation) = refusal {
        if !matches!(violation.rule, Rule::Paused | Rule::Frozen) {
            emit!(PolicyViolation {
                org: vault.org,
                vault: *vault.address(),
                recipient: *recipient,
                limit: violation.limit,
                attempted: violation.attempted,
                rule: violation.rule as u8,
                reserved: [0; 7],
            });
        }
    }
    VaultError::from(refusal).into()
}
