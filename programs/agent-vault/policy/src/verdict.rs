//! The verdict of every rule at once, for the preview of a payment.

use crate::{
    rules,
    types::{Ledger, Payment, Refusal, Rule, Rules, Standing, UnixTime, Violation},
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
    /// What still fits: micro-USDC for money rules, payments for `velocity_cap`; [`u64::MAX`] where nothing is counted.
    pub headroom: u64,
    /// The first time at which the same payment passes this rule if nothing else is paid until then; `None`: never.
    pub retry_at: Option<UnixTime>,
}

impl Verdict {
    /// A rule that the policy does not set.
    #[inline(always)]
    pub(crate) fn unset(rule: Rule) -> Self {
        Verdict { rule, set: false, passed: true, limit: 0, attempted: 0, headroom: u64::MAX, retry_at: None }
    }

    /// A rule that is set. Waiting does not change its mind unless `retry_at` is filled in afterwards.
    #[inline(always)]
    pub(crate) fn set(rule: Rule, passed: bool, limit: u64, attempted: u64, headroom: u64) -> Self {
        Verdict { rule, set: true, passed, limit, attempted, headroom, retry_at: None }
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

/// The verdict of each rule on `payment`, in the order of judgement.
///
/// # Errors
/// [`Refusal::Overflow`] when the ledger contradicts itself.
pub fn assess(
    rules: &Rules,
    ledger: &Ledger,
    payment: &Payment,
    standing: Standing,
    clock: UnixTime,
) -> Result<[Verdict; 10], Refusal> {
    let now = ledger.time(clock);
    let mut verdicts = [
        rules::paused::check(standing),
        rules::frozen::check(standing),
        rules::expiry::check(rules, now),
        rules::allowed_recipients::check(rules, payment),
        rules::blocked_categories::check(rules, payment),
        rules::max_per_tx::check(rules, payment),
        rules::velocity_cap::check(rules, ledger.hour.total_at(now)?),
        rules::max_per_day::check(rules, ledger.day.total_at(now)?, payment),
        rules::max_per_month::check(rules, &ledger.month, payment, now),
        rules::require_co_sign::check(rules, payment),
    ];
    for verdict in &mut verdicts {
        verdict.retry_at = if verdict.passed {
            Some(now)
        } else {
            match verdict.rule {
                Rule::VelocityCap => ledger.hour.fits_from(now, 1, verdict.limit)?,
                Rule::MaxPerDay => ledger.day.fits_from(now, payment.amount.0, verdict.limit)?,
                Rule::MaxPerMonth if payment.amount.0 <= verdict.limit => Some(ledger.month.ends_at),
                _ => None,
            }
        };
    }
    Ok(verdicts)
}
