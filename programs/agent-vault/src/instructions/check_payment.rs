//! The preview of a payment: every check that the payment makes, with the verdict of every rule.

use super::recipient_standing::recipient_standing;
use crate::{
    errors::VaultError,
    instructions::clock,
    state::{
        check_parent, payee_key, payees_of, same_address, AllowlistAccount, Budget, Ledger, Org, Outlined,
        Policy, Unloaded, Vault,
    },
    token,
};
use agent_vault_policy::{
    self as policy, assess,
    payees::NewRecipient,
    rules::{allowed_recipients, blocked_categories},
    AsBudget, Level, Payment, Rule, Rules, Standing, UnixTime, Usdc, Verdict,
};
use alloc::{boxed::Box, vec::Vec};
use anchor_lang::{prelude::*, IdlType};

/// The verdict of one rule on a payment. For units see `agent_vault_policy::Violation`.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct RuleVerdict {
    /// Code of the rule.
    pub rule: u8,
    /// The level with the rule. 0: the policy, the vault or the organisation; 1: the vault's budget; 2: its parent.
    pub level: u8,
    /// True if the level sets the rule. Always true for `paused`, `frozen` and an existing budget's `budget_frozen`.
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
    /// waiting does not help. An attestation that takes effect later is considered.
    pub retry_at: Option<i64>,
}

/// The verdicts of all rules on a payment, and of the checks that are no rules.
#[derive(Clone, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct PaymentCheck {
    /// True if the payment passes all rules and checks.
    pub passed: bool,
    /// First Unix time at which the payment passes all rules, provided that no other payment is made before; `None` if
    /// waiting does not help.
    pub retry_at: Option<i64>,
    /// Code of the error that stops the payment although it breaks no rule: a zero amount, a payment to the vault
    /// itself, a balance that is too low, or a vault without the lists that `new_recipient_cap` needs.
    pub error: Option<u32>,
    /// The vault's balance in micro-USDC that outstanding payments do not use up.
    pub balance: u64,
    /// The verdicts, in the order of judgement: 17, or 23 if the vault's budget has a parent.
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
    /// The vault's token account.
    #[account(constraint = same_address(&vault.tokens, vault_tokens.address()) @ VaultError::WrongTokenAccount)]
    pub vault_tokens: UncheckedAccount,
    /// The policy's allowlist, if it has one.
    pub allowlist: Option<Unloaded<AllowlistAccount>>,
    /// The recipient's Recipient account. Required if the policy blocks categories or if only an attested domain of
    /// this address is on the allowlist.
    pub recipient_account: Option<UncheckedAccount>,
    /// The vault's budget, if it has one.
    #[account(constraint = same_address(&vault.budget, budget.address()) @ VaultError::WrongBudget)]
    pub budget: Option<Outlined<Account<Budget>>>,
    /// The parent of the vault's budget, if it has one.
    pub budget_parent: Option<Outlined<Account<Budget>>>,
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
    /// the copies of three ledgers.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a sum does not fit.
    #[inline(never)]
    fn counted_in(&self, ledger: &Ledger, clock: UnixTime) -> Result<Box<policy::Ledger>> {
        let mut ledger = Box::new(*ledger.as_policy());
        if self.amount > 0 || self.count > 0 {
            ledger
                .record(clock, Usdc(self.amount), u64::from(self.count))
                .map_err(|_| VaultError::Overflow)?;
        }
        Ok(ledger)
    }
}

/// See [`crate::agent_vault::check_payment`].
///
/// # Errors
/// [`VaultError::BudgetRequired`] if the vault's budget is not among the accounts; the errors of [`check_parent`];
/// [`VaultError::Overflow`] if a sum does not fit; [`VaultError::NotATokenAccount`] if the vault's token account is not a token account; the errors of
/// [`recipient_standing`] and of the accounts' constraints.
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
    check_parent(a.budget.as_deref(), a.budget_parent.as_ref())?;
    let ledger = outstanding.counted_in(&a.vault.ledger, clock)?;
    let counted = |budget: &Option<Outlined<Account<Budget>>>| match budget {
        Some(budget) => outstanding.counted_in(&budget.ledger, clock).map(Some),
        None => Ok(None),
    };
    let shared = [counted(&a.budget)?, counted(&a.budget_parent)?];
    let [first, second] = &shared;
    let budgets = [(&a.budget, first), (&a.budget_parent, second)].map(|(budget, ledger)| {
        let (budget, ledger) = (budget.as_ref()?.as_budget(), ledger.as_ref()?);
        let total_spent = Usdc(budget.total_spent.0.saturating_add(outstanding.amount));
        Some(policy::Budget { ledger, total_spent, ..budget })
    });
    let now = ledger.time(clock);
    let standing_at = |now| {
        let (list, account) = (a.allowlist.as_ref(), a.recipient_account.as_ref());
        recipient_standing(&a.policy, list, account, a.org.address(), &recipient, now)
    };
    let standing = standing_at(now)?;
    let payment =
        Payment { amount: Usdc(amount), listed: standing.listed, category: standing.category, co_signed };
    let stops = Standing { paused: a.org.is_paused(), frozen: a.vault.is_frozen() };
    // SAFETY: the lists are only read.
    let payees = unsafe { payees_of(*a.vault.account()) }.ok();
    let cap = a.policy.new_recipient_cap();
    let new_recipient = NewRecipient { cap, payees: payees.as_deref(), key: payee_key(&recipient) };
    let mut verdicts =
        verdicts_of(&a.policy.rules(), &ledger, &budgets, &new_recipient, &payment, stops, clock)?;
    if let Some(at) = standing.effective_at.filter(|at| now < *at) {
        let later = standing_at(at)?;
        let then = Payment { listed: later.listed, category: later.category, ..payment };
        await_attestation(&mut verdicts, &a.policy.rules(), &then, at);
    }
    let balance = token::balance(a.vault_tokens.account(), &a.org.token_program)?;
    let balance = balance.saturating_sub(outstanding.amount);
    let lists_missing = payees.is_none() && cap.is_some() && !payment.listed;
    let error = stopped(a, amount, &recipient, balance, lists_missing);
    let passed = error.is_none() && verdicts.iter().all(|verdict| verdict.passed);
    // Waiting does not help if the policy or a budget expires first.
    let of_budgets = budgets.map(|budget| budget.and_then(|budget| budget.limits.expires_at));
    let expiry = [a.policy.rules().expiry].into_iter().chain(of_budgets).flatten().min();
    let retry_at = verdicts
        .iter()
        .try_fold(now, |latest, verdict| verdict.retry_at.map(|at| at.max(latest)))
        .filter(|at| error.is_none() && expiry.is_none_or(|expiry| *at <= expiry));
    let rules = verdicts
        .iter()
        .filter(|verdict| verdict.level != Level::Parent || a.budget_parent.is_some())
        .map(|verdict| RuleVerdict {
            rule: verdict.rule as u8,
            level: verdict.level as u8,
            set: verdict.set,
            passed: verdict.passed,
            limit: verdict.limit,
            attempted: verdict.attempted,
            headroom: verdict.headroom,
            retry_at: verdict.retry_at.map(|UnixTime(at)| at),
        })
        .collect();
    Ok(PaymentCheck { passed, retry_at: retry_at.map(|UnixTime(at)| at), error, balance, rules })
}

/// Returns the verdicts of [`assess`] on the heap, because the handler's stack has no room for them.
///
/// # Errors
/// [`VaultError::Overflow`] if a sum does not fit.
#[inline(never)]
fn verdicts_of(
    rules: &Rules,
    ledger: &policy::Ledger,
    budgets: &policy::Budgets<policy::Budget>,
    new_recipient: &NewRecipient,
    payment: &Payment,
    stops: Standing,
    clock: UnixTime,
) -> Result<Vec<Verdict>> {
    Ok(assess(rules, ledger, budgets, new_recipient, payment, stops, clock)
        .map_err(VaultError::from)?
        .to_vec())
}

/// Returns the code of the error that stops the payment although no rule does. See [`PaymentCheck::error`]. `balance`
/// is the part of the vault's balance that outstanding payments do not use up.
fn stopped(
    a: &CheckPayment,
    amount: u64,
    recipient: &Address,
    balance: u64,
    lists_missing: bool,
) -> Option<u32> {
    let error = if amount == 0 {
        VaultError::ZeroAmount
    } else if same_address(recipient, a.vault.address()) {
        VaultError::PaymentToSelf
    } else if amount > balance {
        VaultError::InsufficientBalance
    } else if lists_missing {
        VaultError::PayeeListsRequired
    } else {
        return None;
    };
    match error.into() {
        ProgramError::Custom(code) => Some(code),
        _ => None,
    }
}

/// Sets `retry_at` of the rules about the recipient that refuse now but pass at `at`, the time when the recipient's
/// attestation takes effect. `then` is the payment as judged at that time.
fn await_attestation(verdicts: &mut [Verdict], rules: &Rules, then: &Payment, at: UnixTime) {
    for verdict in verdicts.iter_mut().filter(|verdict| !verdict.passed) {
        let passes = match verdict.rule {
            Rule::AllowedRecipients => allowed_recipients::check(rules, then).passed,
            Rule::BlockedCategories => blocked_categories::check(rules, then).passed,
            _ => false,
        };
        if passes {
            verdict.retry_at = Some(at);
        }
    }
}
