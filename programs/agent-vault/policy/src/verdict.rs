//! The verdict of every rule at once, for the preview of a payment.

use crate::{
    rules,
    types::{Ledger, Payment, Refusal, Rule, Rules, Standing, Violation},
    units::UnixTime,
    Budget, Overflow,
};

/// How one rule judges one payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rule.
    pub rule: Rule,
    /// The policy sets this rule.
    pub set: bool,
    /// The rule lets the payment pass.
    pub passed: bool,
    /// See [`Violation`]; zero where the rule is not set.
    pub limit: u64,
    /// See [`Violation`].
    pub attempted: u64,
    /// What still fits: micro-USDC for money rules, payments for velocity caps; [`u64::MAX`] where nothing is counted.
    pub headroom: u64,
    /// The first time at which the same payment passes this rule if nothing else is paid until then; `None`: never.
    pub retry_at: Option<UnixTime>,
}

impl Verdict {
    /// A rule that the policy, or the budget, does not set.
    #[inline(always)]
    pub(crate) fn unset(rule: Rule) -> Self {
        Verdict { rule, set: false, passed: true, limit: 0, attempted: 0, headroom: u64::MAX, retry_at: None }
    }

    /// A rule that is set. Waiting does not change its mind unless `retry_at` is filled in afterwards.
    #[inline(always)]
    pub(crate) fn set(rule: Rule, passed: bool, limit: u64, attempted: u64, headroom: u64) -> Self {
        Verdict { rule, set: true, passed, limit, attempted, headroom, retry_at: None }
    }

    /// The first time from `now` on at which a payment that this verdict refuses fits into the ledger that it judged by.
    fn fits_from(
        &self,
        ledger: &Ledger,
        payment: &Payment,
        now: UnixTime,
    ) -> Result<Option<UnixTime>, Overflow> {
        let amount = payment.amount.0;
        match self.rule {
            Rule::VelocityCap | Rule::BudgetVelocityCap => ledger.hour.fits_from(now, 1, self.limit),
            Rule::MaxPerDay | Rule::BudgetMaxPerDay => ledger.day.fits_from(now, amount, self.limit),
            Rule::MaxPerMonth | Rule::BudgetMaxPerMonth if amount <= self.limit => {
                Ok(Some(ledger.month.ends_at))
            }
            _ => Ok(None),
        }
    }

    /// The refusal that this verdict means for a payment.
    #[inline(always)]
    pub(crate) fn refuse(self) -> Result<(), Refusal> {
        if self.passed {
            return Ok(());
        }
        Err(Refusal::Violation(Violation { rule: self.rule, limit: self.limit, attempted: self.attempted }))
    }
}

/// The verdict of each rule on `payment`, in the order of judgement. Without a budget its rules are not set.
///
/// # Errors
/// [`Refusal::Overflow`] when a ledger contradicts itself.
pub fn assess(
    rules: &Rules,
    ledger: &Ledger,
    budget: Option<&Budget>,
    payment: &Payment,
    standing: Standing,
    clock: UnixTime,
) -> Result<[Verdict; 13], Refusal> {
    let now = ledger.time(clock);
    let [budget_day, budget_month, budget_velocity] = match budget {
        Some(budget) => budget.assess(payment, clock)?,
        None => Budget::RULES.map(Verdict::unset),
    };
    let mut verdicts = [
        rules::paused::check(standing),
        rules::frozen::check(standing),
        rules::expiry::check(rules, now),
        rules::allowed_recipients::check(rules, payment),
        rules::blocked_categories::check(rules, payment),
        rules::max_per_tx::check(rules, payment),
        rules::velocity_cap::check(Rule::VelocityCap, rules.velocity_cap, ledger.hour.total_at(now)?),
        rules::max_per_day::check(Rule::MaxPerDay, rules.max_per_day, ledger.day.total_at(now)?, payment),
        rules::max_per_month::check(Rule::MaxPerMonth, rules.max_per_month, &ledger.month, payment, now),
        budget_day,
        budget_month,
        budget_velocity,
        rules::require_co_sign::check(rules, payment),
    ];
    for verdict in &mut verdicts {
        verdict.retry_at = if verdict.passed {
            Some(now)
        } else {
            let of_budget = budget.filter(|_| Budget::RULES.contains(&verdict.rule));
            let ledger = of_budget.map_or(ledger, |budget| budget.ledger);
            verdict.fits_from(ledger, payment, ledger.time(clock))?
        };
    }
    Ok(verdicts)
}
