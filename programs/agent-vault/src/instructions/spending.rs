//! The checks before money leaves a vault: the signer's right to spend, and the verdict of the vault's policy.
//! Payments, escrows and allowances share them.

use super::recipient_standing::recipient_standing;
use crate::{
    errors::VaultError,
    events::PolicyViolation,
    instructions::clock,
    state::{
        check_parent, payee_key, payees_of, AllowlistAccount, Approval, Budget, Org, Outlined, Policy,
        SpendingKind, Unloaded, Vault, NONE,
    },
};
#[allow(unused_imports)] // named in documentation
use agent_vault_policy::payees;
use agent_vault_policy::{
    authorize, Category, Charges, Level, Payment, Refusal, Rule, Standing, UnixTime, Usdc,
};
use anchor_lang::{address_eq, prelude::*};

/// Money about to leave a vault, and the accounts needed to judge it. The caller has checked that vault, policy,
/// budget and organisation belong together, and that `co_signer` is the operator.
pub struct Spending<'a> {
    /// The key that signs for the vault.
    pub signer: &'a Address,
    /// The organisation.
    pub org: &'a Org,
    /// The policy attached to the vault.
    pub policy: &'a Policy,
    /// The vault.
    pub vault: &'a Vault,
    /// The vault's budget.
    pub budget: Option<&'a Outlined<Account<Budget>>>,
    /// The parent of the vault's budget.
    pub budget_parent: Option<&'a Outlined<Account<Budget>>>,
    /// The vault's account.
    pub account: &'a AccountView,
    /// The address that is paid.
    pub recipient: &'a Address,
    /// Amount in micro-USDC.
    pub amount: u64,
    /// The purpose of the money.
    pub kind: SpendingKind,
    /// Hash of an escrow's terms; all zero for other purposes.
    pub terms: &'a [u8; 32],
    /// The policy's allowlist.
    pub allowlist: Option<&'a Unloaded<AllowlistAccount>>,
    /// The recipient's Recipient account.
    pub about: Option<&'a UncheckedAccount>,
    /// True if the operator co-signs.
    pub co_signer: bool,
    /// The operator's approval, in place of its signature.
    pub approval: Option<&'a Approval>,
    /// The account that gets the approval's rent.
    pub approval_rent_receiver: Option<&'a UncheckedAccount>,
}

/// Spending that the rules allow.
pub struct Allowed {
    /// The charges to record in the ledgers of the vault and of its budgets.
    pub charges: Charges,
    /// True if the session authority signs, false if the operator does.
    pub by_session: bool,
    /// True if the session authority signs, and the operator also signs or has approved.
    pub co_signed: bool,
    /// True if the recipient is on the policy's allowlist.
    pub listed: bool,
}

/// Judges spending by all rules but `new_recipient`, for which [`first_payment`] must follow. Changes nothing.
///
/// # Errors
/// The refusing rule's error, with a [`PolicyViolation`] logged unless the organisation is paused or the vault frozen;
/// [`VaultError::Overflow`] if a ledger contradicts itself; the errors of [`check_parent`] and [`recipient_standing`];
/// [`VaultError::ZeroAmount`] if the amount is zero; [`VaultError::PaymentToSelf`] if the recipient is the vault;
/// [`VaultError::BudgetRequired`] if the vault's budget is missing; [`VaultError::Unauthorized`] if the signer is
/// neither the session authority nor the operator; [`VaultError::SessionExpired`] if its session has expired;
/// [`VaultError::ApprovalExpired`] from the approval's expiry on; [`VaultError::WrongApproval`] if it is for another
/// recipient, amount, kind or terms; [`VaultError::ApprovalOutdated`] if the policy or operator has changed since;
/// [`VaultError::RentReceiverRequired`] and [`VaultError::WrongRentReceiver`] if its rent receiver is missing or wrong.
#[inline(never)]
pub fn judge(spending: &Spending) -> Result<Allowed> {
    let Spending { org, policy, vault, recipient, amount, .. } = *spending;
    let clock = clock()?;
    let now = vault.ledger.as_policy().time(clock);
    vault.check_budget(spending.budget)?;
    check_parent(spending.budget.map(|budget| &**budget), spending.budget_parent)?;
    require!(amount > 0, VaultError::ZeroAmount);
    let by_session = vault.is_session(spending.signer, now)?;
    require!(by_session || org.is_operator(spending.signer), VaultError::Unauthorized);
    require!(!address_eq(recipient, spending.account.address()), VaultError::PaymentToSelf);
    let approved = match spending.approval {
        None => false,
        Some(approval) => {
            let receiver = spending.approval_rent_receiver.ok_or(VaultError::RentReceiverRequired)?;
            require!(address_eq(&approval.payer, receiver.address()), VaultError::WrongRentReceiver);
            let fits = address_eq(&approval.recipient, recipient)
                && approval.amount == amount
                && approval.kind == spending.kind as u8
                && approval.terms == *spending.terms;
            require!(fits, VaultError::WrongApproval);
            let current = address_eq(&approval.operator, &org.operator)
                && address_eq(&approval.policy, &vault.policy)
                && approval.policy_version == policy.version;
            require!(current, VaultError::ApprovalOutdated);
            require!(now < UnixTime(approval.expires_at), VaultError::ApprovalExpired);
            true
        }
    };
    let co_signed = by_session && (approved || spending.co_signer);
    let standing =
        recipient_standing(policy, spending.allowlist, spending.about, &vault.org, recipient, now)?;
    let payment =
        Payment { amount: Usdc(amount), listed: standing.listed, category: standing.category, co_signed };
    let stops = Standing { paused: org.is_paused(), frozen: vault.is_frozen() };
    let budgets = [spending.budget, spending.budget_parent].map(|budget| budget.map(|budget| &**budget));
    let ledger = vault.ledger.as_policy();
    match authorize(&policy.rules(), ledger, &budgets, &payment, stops, clock) {
        Ok(charges) => Ok(Allowed { charges, by_session, co_signed, listed: payment.listed }),
        Err(refusal) => Err(refuse(spending, refusal)),
    }
}

/// Judges spending by `new_recipient`, after [`judge`] has allowed it by all other rules, and records its payee in the
/// vault's lists. Returns the bits of [`payees::change`].
///
/// # Errors
/// [`VaultError::NewRecipientCapped`], with a [`PolicyViolation`] logged; [`VaultError::PayeeListsRequired`] if the
/// vault has no lists.
#[inline(always)]
pub fn first_payment(spending: &Spending, allowed: &Allowed) -> Result<u8> {
    match spending.policy.new_recipient_cap() {
        Some(cap) if !allowed.listed => record_payee(spending, cap, allowed),
        _ => Ok(0),
    }
}

#[cold]
#[inline(never)]
fn record_payee(spending: &Spending, cap: Usdc, allowed: &Allowed) -> Result<u8> {
    // SAFETY: the account holds the vault, which the instruction writes, and its fields end before the lists.
    let payees = unsafe { payees_of(*spending.account) }?;
    let Allowed { charges, co_signed, .. } = *allowed;
    let payment =
        Payment { amount: Usdc(spending.amount), listed: false, category: Category::default(), co_signed };
    let sequence = spending.vault.sequence.saturating_add(1);
    payees
        .pay(cap, payee_key(spending.recipient), &payment, charges.vault.at, sequence)
        .map_err(|refusal| refuse(spending, refusal))
}

/// Closes the approval that replaced the operator's signature, if there is one, and sets `used` to its address.
/// [`judge`] has checked that the rent receiver is the account that paid the rent.
///
/// # Errors
/// `ArithmeticOverflow` if the lamports do not fit.
#[inline(always)]
pub fn use_approval(
    approval: &mut Option<Outlined<Account<Approval>>>,
    rent_receiver: &Option<UncheckedAccount>,
    used: &mut Address,
) -> Result<()> {
    if let (Some(approval), Some(receiver)) = (approval, rent_receiver) {
        *used = *approval.address();
        approval.close(*receiver.account())?;
    }
    Ok(())
}

/// Returns the refusal's error, and logs the rule that refuses. A pause of the organisation and a freeze of the vault
/// are not logged, but a freeze of a budget is. [`Refusal::Overflow`] is not logged, because no rule refuses.
#[cold]
fn refuse(spending: &Spending, refusal: Refusal) -> ProgramError {
    if let Refusal::Violation(violation) = refusal {
        if !matches!(violation.rule, Rule::Paused | Rule::Frozen) {
            let budget = match violation.level {
                Level::Vault => None,
                Level::Budget => spending.budget,
                Level::Parent => spending.budget_parent,
            };
            emit!(PolicyViolation {
                org: spending.vault.org,
                vault: *spending.account.address(),
                recipient: *spending.recipient,
                budget: budget.map_or(NONE, |budget| *budget.address()),
                limit: violation.limit,
                attempted: violation.attempted,
                rule: violation.rule as u8,
                reserved: [0; 7],
            });
        }
    }
    VaultError::from(refusal).into()
}
