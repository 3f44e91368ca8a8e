//! The preview of a payment: the verdict of every rule.

use super::recipient_standing::recipient_standing;
use crate::{
    errors::VaultError,
    instructions::clock,
    state::{same_address, AllowlistAccount, Budget, Ledger, Org, Outlined, Policy, Unloaded, Vault},
};
use agent_vault_policy::{self as policy, assess, Payment, Standing, UnixTime, Usdc};
use alloc::{boxed::Box, vec::Vec};
use anchor_lang::{prelude::*, IdlType};

/// The verdict of one rule on a payment. For units see `agent_vault_policy::Violation`.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct RuleVerdict {
    /// Code of the rule.
    pub rule: u8,
    /// True if the policy or the budget sets the rule. Always true for `paused` and `frozen`.
    pub set: bool,
    /// True if the rule lets the payment pass.
    pub passed: bool,
    /// The rule's limit.
    pub limit: u64,
    /// The value that the payment would reach.
    pub attempted: u64,
    /// Headroom; `u64::MAX` if the rule counts nothing or is not set.
    pub headroom: u64,
    /// First Unix time at which the payment passes this rule, provided that no other payment is made before; `None` if
    /// waiting does not help. Registrations of recipients that are not in effect yet are not considered.
    pub retry_at: Option<i64>,
}

/// The verdicts of all rules on a payment.
#[derive(Clone, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct PaymentCheck {
    /// True if all rules let the payment pass.
    pub passed: bool,
    /// First Unix time at which the payment passes all rules, provided that no other payment is made before; `None` if
    /// waiting does not help. Registrations of recipients that are not in effect yet are not considered.
    pub retry_at: Option<i64>,
    /// The verdicts, in the order of judgement.
    pub rules: Vec<RuleVerdict>,
}

/// Accounts of `check_payment`.
#[derive(Accounts)]
pub struct CheckPayment {
    /// The organisation.
    pub org: Outlined<Account<Org>>,
    /// The attached policy.
    #[account(constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg)]
    pub policy: Outlined<Account<Policy>>,
    /// The vault that would pay.
    #[account(constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg, constraint = same_address(&vault.policy, policy.address()) @ VaultError::WrongPolicy)]
    pub vault: Outlined<Account<Vault>>,
    /// The policy's allowlist, if it has one.
    pub allowlist: Option<Unloaded<AllowlistAccount>>,
    /// The recipient's Recipient account. Required if the policy blocks categories or if only an attested domain of
    /// this address is on the allowlist.
    pub recipient_account: Option<UncheckedAccount>,
    /// The vault's budget, if it has one.
    #[account(constraint = same_address(&vault.budget, budget.address()) @ VaultError::WrongBudget)]
    pub budget: Option<Outlined<Account<Budget>>>,
}

/// The outstanding payments that the caller names, because the chain does not show them yet. The preview counts them as
/// if they were paid now.
pub struct Outstanding {
    /// Total amount in micro-USDC.
    pub amount: u64,
    /// Number of payments.
    pub count: u32,
}

impl Outstanding {
    /// Returns a copy of `ledger` that includes the outstanding payments. The copy is on the heap, which has room for
    /// the copies of two ledgers.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a sum does not fit.
    #[inline(never)]
    fn counted_in(&self, ledger: &Ledger, clock: UnixTime) -> Result<Box<policy::Ledger>> {
        let mut ledger = Box::new(*ledger.as_policy());
        if self.amount > 0 || self.count > 0 {
            ledger
                .count_outstanding(clock, Usdc(self.amount), u64::from(self.count))
                .map_err(|_| VaultError::Overflow)?;
        }
        Ok(ledger)
    }
}

/// See [`crate::agent_vault::check_payment`].
///
/// # Errors
/// [`VaultError::BudgetRequired`] if the vault's budget is not among the accounts; [`VaultError::Overflow`] if a sum
/// does not fit; the errors of [`recipient_standing`] and of the accounts' constraints.
pub fn handler(
    ctx: &mut Context<CheckPayment>,
    amount: u64,
    recipient: Address,
    co_signed: bool,
    outstanding: &Outstanding,
) -> Result<PaymentCheck> {
    let a = &ctx.accounts;
    let clock = clock()?;
    a.vault.check_budget(a.budget.as_ref())?;
    let ledger = outstanding.counted_in(&a.vault.ledger, clock)?;
    let shared = match &a.budget {
        Some(budget) => Some(outstanding.counted_in(&budget.ledger, clock)?),
        None => None,
    };
    let budget = match (&a.budget, &shared) {
        (Some(budget), Some(ledger)) => Some(policy::Budget { ledger, ..budget.as_policy() }),
        _ => None,
    };
    let now = ledger.time(clock);
    let standing = recipient_standing(
        &a.policy,
        a.allowlist.as_ref(),
        a.recipient_account.as_ref(),
        a.org.address(),
        &recipient,
        now,
    )?;
    let payment =
        Payment { amount: Usdc(amount), listed: standing.listed, category: standing.category, co_signed };
    let stops = Standing { paused: a.org.is_paused(), frozen: a.vault.is_frozen() };
    let verdicts = assess(&a.policy.rules(), &ledger, budget.as_ref(), &payment, stops, clock)
        .map_err(VaultError::from)?;
    let passed = verdicts.iter().all(|verdict| verdict.passed);
    // Waiting does not help if the policy expires first.
    let expiry = a.policy.rules().expiry;
    let retry_at = verdicts
        .iter()
        .try_fold(now, |latest, verdict| verdict.retry_at.map(|at| at.max(latest)))
        .filter(|at| expiry.is_none_or(|expiry| *at <= expiry));
    let rules = verdicts
        .iter()
        .map(|verdict| RuleVerdict {
            rule: verdict.rule as u8,
            set: verdict.set,
            passed: verdict.passed,
            limit: verdict.limit,
            attempted: verdict.attempted,
            headroom: verdict.headroom,
            retry_at: verdict.retry_at.map(|UnixTime(at)| at),
        })
        .collect();
    Ok(PaymentCheck { passed, retry_at: retry_at.map(|UnixTime(at)| at), rules })
}
