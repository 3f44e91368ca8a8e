//! The verdicts of all rules on one payment, for the payment's preview.

use crate::{
    budget::{Budget, Budgets, LEVELS},
    payees::NewRecipient,
    rules,
    types::{Ledger, Level, Payment, Refusal, Rule, Rules, Standing, Violation},
    units::UnixTime,
    Overflow,
};

/// The verdict of one rule on one payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rule.
    pub rule: Rule,
    /// True if the policy or the budget sets this rule. Always true for `paused` and `frozen`.
    pub set: bool,
    /// True if the rule lets the payment pass.
    pub passed: bool,
    /// Limit in the units of [`Violation`]; zero if the rule is not set.
    pub limit: u64,
    /// Attempted value in the units of [`Violation`].
    pub attempted: u64,
    /// Headroom: micro-USDC for money rules, payments for velocity caps; [`u64::MAX`] if the rule counts nothing or is
    /// not set.
    pub headroom: u64,
    /// First time at which the same payment passes this rule, provided that no other payment is made before; `None` if
    /// waiting does not help.
    pub retry_at: Option<UnixTime>,
    /// The level that sets the rule.
    pub level: Level,
}

impl Verdict {
    /// Builds the verdict of a rule that neither the policy nor the budget sets.
    #[inline(always)]
    pub(crate) fn unset(rule: Rule) -> Self {
        Verdict { set: false, ..Verdict::set(rule, true, 0, 0, u64::MAX) }
    }

    /// Builds the verdict of a rule that is set. Its `retry_at` starts as `None`, which means that waiting does not
    /// help; [`assess`] fills it in afterwards unless the rule does itself.
    #[inline(always)]
    pub(crate) fn set(rule: Rule, passed: bool, limit: u64, attempted: u64, headroom: u64) -> Self {
        Verdict { rule, set: true, passed, limit, attempted, headroom, retry_at: None, level: Level::Vault }
    }

    /// Returns the first time from `now` on when `ledger` has room for the refused payment; `None` if waiting does not
    /// help. `ledger` is the one that this verdict judged: the vault's or a budget's. If only held money refuses
    /// the payment, no time is named, because the settlement of the allowances decides.
    fn fits_from(
        &self,
        ledger: &Ledger,
        payment: &Payment,
        now: UnixTime,
    ) -> Result<Option<UnixTime>, Overflow> {
        let amount = payment.amount.0;
        let wanted = amount.saturating_add(ledger.held.0);
        let exceeds = |spent: u64| spent.saturating_add(amount) > self.limit;
        match self.rule {
            Rule::VelocityCap | Rule::BudgetVelocityCap => ledger.hour.fits_from(now, 1, self.limit),
            Rule::MaxPerDay | Rule::BudgetMaxPerDay if exceeds(ledger.day.total_at(now)?) => {
                ledger.day.fits_from(now, wanted, self.limit)
            }
            Rule::MaxPerMonth | Rule::BudgetMaxPerMonth
                if exceeds(ledger.month.spent_at(now).0) && wanted <= self.limit =>
            {
                Ok(Some(ledger.month.ends_at))
            }
            _ => Ok(self.retry_at),
        }
    }

    /// Returns the refusal that follows from this verdict, or `Ok` if the payment passed.
    #[inline(always)]
    pub(crate) fn refuse(self) -> Result<(), Refusal> {
        if self.passed {
            return Ok(());
        }
        let Verdict { rule, limit, attempted, level, .. } = self;
        Err(Refusal::Violation(Violation { rule, limit, attempted, level }))
    }
}

/// Returns the verdict of each rule on `payment`, in the order of judgement. The rules of a budget that the vault does
/// not have are reported as not set.
///
/// # Errors
/// [`Refusal::Overflow`] if a ledger's stored total contradicts its slots.
#[inline(never)]
pub fn assess(
    rules: &Rules,
    ledger: &Ledger,
    budgets: &Budgets<Budget>,
    new_recipient: &NewRecipient,
    payment: &Payment,
    standing: Standing,
    clock: UnixTime,
) -> Result<[Verdict; 23], Refusal> {
    let now = ledger.time(clock);
    let [budget, parent] = budgets;
    let own = [
        rules::paused::check(standing),
        rules::frozen::check(standing),
        rules::expiry::check(Rule::Expiry, rules.expiry, now),
        rules::allowed_recipients::check(rules, payment),
        rules::blocked_categories::check(rules, payment),
        rules::max_per_tx::check(rules, payment),
        rules::velocity_cap::check(Rule::VelocityCap, rules.velocity_cap, ledger.hour.total_at(now)?),
        rules::max_per_day::check(
            Rule::MaxPerDay,
            rules.max_per_day,
            ledger.day.total_at(now)?,
            ledger.held,
            payment,
        ),
        rules::max_per_month::check(Rule::MaxPerMonth, rules.max_per_month, ledger, payment, now),
    ];
    let mut verdicts = [rules::require_co_sign::check(rules, payment); 23];
    verdicts[22] = new_recipient.check(payment, now);
    let (of_vault, shared) = verdicts.split_at_mut(own.len());
    for (place, verdict) in of_vault.iter_mut().zip(own) {
        *place = verdict;
    }
    for ((budget, level), places) in
        budgets.iter().zip(LEVELS).zip(shared.chunks_exact_mut(Budget::RULES.len()))
    {
        places.copy_from_slice(&Budget::assess(budget.as_ref(), level, payment, clock)?);
    }
    for verdict in &mut verdicts {
        verdict.retry_at = if verdict.passed {
            Some(now)
        } else {
            let judged = match verdict.level {
                Level::Vault => None,
                Level::Budget => budget.as_ref(),
                Level::Parent => parent.as_ref(),
            };
            let ledger = judged.map_or(ledger, |budget| budget.ledger);
            verdict.fits_from(ledger, payment, ledger.time(clock))?
        };
    }
    Ok(verdicts)
}
