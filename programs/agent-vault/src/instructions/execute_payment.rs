//! Pays from a vault, if its policy allows it.

use super::spending::{first_payment, judge, use_approval, Allowed, Spending};
use crate::{
    errors::VaultError,
    events::{self, with_event_accounts, Message, PaymentExecuted},
    state::{
        AllowlistAccount, Approval, Budget, Org, Outlined, Policy, SpendingKind, Unloaded, Vault, Versioned,
        NONE,
    },
    token::{self, Transfer},
};
use anchor_lang::{address_eq, prelude::*};

with_event_accounts! {
    /// Accounts of `execute_payment`.
    ///
    /// The instruction is one transfer between existing token accounts. Unless an operator co-signs, only the fee payer
    /// and `signer` sign, so that wallets and x402 facilitators can understand it.
    #[derive(Accounts)]
    pub struct ExecutePayment {
        /// The session authority or the operator.
        pub signer: Signer,
        /// The organisation.
        pub org: Versioned<Account<Org>>,
        /// The attached policy.
        #[account(constraint = address_eq(&policy.org, org.address()) @ VaultError::WrongOrg)]
        pub policy: Versioned<Account<Policy>>,
        /// The vault that pays.
        #[account(mut, constraint = address_eq(&vault.org, org.address()) @ VaultError::WrongOrg, constraint = address_eq(&vault.policy, policy.address()) @ VaultError::WrongPolicy)]
        pub vault: Versioned<Account<Vault>>,
        /// The vault's token account.
        #[account(mut, constraint = address_eq(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
        pub vault_tokens: UncheckedAccount,
        /// The paid token account. Its owner is the recipient that the policy judges.
        #[account(mut)]
        pub destination: UncheckedAccount,
        /// The organisation's mint.
        #[account(address = org.mint @ VaultError::WrongMint)]
        pub mint: UncheckedAccount,
        /// The organisation's token program.
        #[account(address = org.token_program @ VaultError::WrongTokenProgram)]
        pub token_program: UncheckedAccount,
        /// The policy's allowlist, if it has one.
        pub allowlist: Option<Unloaded<AllowlistAccount>>,
        /// The recipient's Recipient account. Required if the policy blocks categories or if only an attested domain
        /// of this address is on the allowlist.
        pub recipient: Option<UncheckedAccount>,
        /// The operator, who co-signs above the policy's threshold.
        #[account(constraint = address_eq(&org.operator, co_signer.address()) @ VaultError::Unauthorized)]
        pub co_signer: Option<Signer>,
        /// The operator's approval, in place of its signature. The payment closes it.
        #[account(mut, constraint = address_eq(&approval.vault, vault.address()) @ VaultError::WrongApproval)]
        pub approval: Option<Outlined<Account<Approval>>>,
        /// Payer of the approval's rent, refunded here.
        #[account(mut, unsafe(dup))]
        pub approval_rent_receiver: Option<UncheckedAccount>,
        /// The vault's budget, if it has one.
        #[account(mut, constraint = address_eq(&vault.budget, budget.address()) @ VaultError::WrongBudget)]
        pub budget: Option<Outlined<Account<Budget>>>,
        /// The parent of the vault's budget, if it has one.
        #[account(mut)]
        pub budget_parent: Option<Outlined<Account<Budget>>>,
    }
}

/// See [`crate::agent_vault::execute_payment`].
///
/// # Errors
/// The errors of [`judge`] and of the accounts' constraints; [`VaultError::InsufficientBalance`] if the vault holds
/// less than the amount.
#[inline(never)]
pub fn handler(a: &mut ExecutePayment, amount: u64, reference: &[u8; 16]) -> Result<()> {
    let token_program = &a.org.token_program;
    let recipient = token::read(a.destination.account(), token_program)?.owner;
    let spending = Spending {
        signer: a.signer.address(),
        org: &a.org,
        policy: &a.policy,
        vault: &a.vault,
        budget: a.budget.as_ref(),
        budget_parent: a.budget_parent.as_ref(),
        account: a.vault.account(),
        recipient: &recipient,
        amount,
        kind: SpendingKind::Payment,
        terms: &[0; 32],
        allowlist: a.allowlist.as_ref(),
        about: a.recipient.as_ref(),
        co_signer: a.co_signer.is_some(),
        approval: a.approval.as_deref(),
        approval_rent_receiver: a.approval_rent_receiver.as_ref(),
    };
    let allowed = judge(&spending)?;
    let payee = first_payment(&spending, &allowed)?;
    let Allowed { charges, by_session, co_signed, .. } = &allowed;

    let balance = token::balance(a.vault_tokens.account(), token_program)?;
    let balance = balance.checked_sub(amount).ok_or(VaultError::InsufficientBalance)?;
    a.vault.ledger.as_policy_mut().charge(&charges.vault).map_err(|_| VaultError::Overflow)?;
    for (budget, charge) in [&mut a.budget, &mut a.budget_parent].into_iter().zip(&charges.budgets) {
        if let (Some(budget), Some(charge)) = (budget, charge) {
            budget.charge(charge)?;
        }
    }
    let sequence = a.vault.next_sequence()?;

    let bump = [a.vault.bump];
    token::transfer(
        Transfer {
            token_program,
            from: a.vault_tokens.account(),
            mint: a.mint.account(),
            to: a.destination.account(),
            owner: a.vault.account(),
            amount,
            decimals: a.org.decimals,
        },
        &a.vault.signer_seeds(&bump),
    );

    let mut approval_used = NONE;
    use_approval(&mut a.approval, &a.approval_rent_receiver, &mut approval_used)?;

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
        timestamp: charges.vault.at.0,
        reference: *reference,
        co_signed: u8::from(*co_signed),
        by_session: u8::from(*by_session),
        payee,
        reserved: [0; 5],
    };
    events::send(a.event_authority.account(), Message::new(event).as_bytes());
    Ok(())
}
