//! A budget shared by several vaults: a vault's time-based rules, applied to one ledger for all of them, and limits of
//! the budget's life.

use crate::{
    rules::{expiry, max_per_day, max_per_month, velocity_cap},
    types::{Ledger, Level, Limits, Payment, Refusal, Rule, Violation},
    units::{UnixTime, Usdc},
    Charge, Verdict,
};

/// A budget: its limits, and the spending of all its vaults.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// The budget's limits.
    pub limits: Limits,
    /// True if the budget is frozen.
    pub frozen: bool,
    /// Spending in the budget's life, without held money.
    pub total_spent: Usdc,
    /// The ledger charged for every payment of every vault. It is separate from the vaults' ledgers: each ledger has
    /// its own time.
    pub ledger: &'a Ledger,
}

/// The budgets that are charged for a vault's payments: its own and that budget's parent.
pub type Budgets<'a> = [Option<Budget<'a>>; LEVELS.len()];

/// The levels of [`Budgets`].
pub const LEVELS: [Level; 2] = [Level::Budget, Level::Parent];

impl Budget<'_> {
    /// The budget's rules, in the order of judgement.
    pub const RULES: [Rule; 6] = [
        Rule::BudgetFrozen,
        Rule::BudgetExpired,
        Rule::BudgetMaxTotal,
        Rule::BudgetMaxPerDay,
        Rule::BudgetMaxPerMonth,
        Rule::BudgetVelocityCap,
    ];

    /// Judges `payment` at the time `clock`; see [`crate::authorize`].
    ///
    /// # Errors
    /// [`Refusal::Violation`] with the first rule that refuses; [`Refusal::Overflow`] if the ledger's stored total
    /// contradicts its slots.
    #[inline(never)]
    pub(crate) fn authorize(&self, level: Level, payment: &Payment, clock: UnixTime) -> Result<Charge, Refusal> {
        let (verdicts, charge) = self.judge(payment, clock)?;
        let [frozen, expired, total, day, month, velocity] = verdicts;
        let refuse = || {
            frozen.refuse()?;
            expired.refuse()?;
            total.refuse()?;
            day.refuse()?;
            month.refuse()?;
            velocity.refuse()
        };
        refuse().map_err(|refusal| match refusal {
            Refusal::Violation(violation) => Refusal::Violation(Violation { level, ..violation }),
            Refusal::Overflow => refusal,
        })?;
        Ok(charge)
    }

    /// Returns the verdict of each rule on `payment`. The rules of a missing budget are not set.
    ///
    /// # Errors
    /// [`Refusal::Overflow`] if the ledger's stored total contradicts its slots.
    #[inline(never)]
    pub(crate) fn assess(
        budget: Option<&Self>,
        level: Level,
        payment: &Payment,
        clock: UnixTime,
    ) -> Result<[Verdict; 6], Refusal> {
        let verdicts = match budget {
            Some(budget) => budget.judge(payment, clock)?.0,
            None => Self::RULES.map(Verdict::unset),
        };
        Ok(verdicts.map(|verdict| Verdict { level, ..verdict }))
    }

    /// Returns the verdict of each of the budget's rules, and the charge to record if all of them let the payment pass.
    #[inline(always)]
    fn judge(&self, payment: &Payment, clock: UnixTime) -> Result<([Verdict; 6], Charge), Refusal> {
        let Budget { limits, frozen, total_spent, ledger } = self;
        let now = ledger.time(clock);
        let [stopped, expired, total, day, month, velocity] = Self::RULES;
        let day_held = ledger.day.total_at(now)?;
        let hour_held = ledger.hour.total_at(now)?;
        let verdicts = [
            Verdict::set(stopped, !frozen, 0, 0, u64::MAX),
            expiry::check(expired, limits.expires_at, now),
            max_per_day::check(total, limits.max_total, total_spent.0, ledger.held, payment),
            max_per_day::check(day, limits.max_per_day, day_held, ledger.held, payment),
            max_per_month::check(month, limits.max_per_month, ledger, payment, now),
            velocity_cap::check(velocity, limits.velocity_cap, hour_held),
        ];
        Ok((verdicts, Charge { amount: payment.amount, at: now, day_held, hour_held }))
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
