//! A budget shared by several vaults: a vault's time-based rules, applied to one ledger for all of them, and limits of
//! the budget's life.

use crate::{
    rules::{expiry, max_per_day, max_per_month, velocity_cap},
    types::{Ledger, Level, Limits, Payment, Refusal, Rule},
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

/// An account that holds a budget, or the budget itself.
pub trait AsBudget {
    /// Returns the budget.
    fn as_budget(&self) -> Budget<'_>;
}

impl AsBudget for Budget<'_> {
    #[inline(always)]
    fn as_budget(&self) -> Budget<'_> {
        *self
    }
}

impl<B: AsBudget> AsBudget for &B {
    #[inline(always)]
    fn as_budget(&self) -> Budget<'_> {
        (*self).as_budget()
    }
}

/// The budgets that are charged for a vault's payments: its own and that budget's parent.
pub type Budgets<B> = [Option<B>; LEVELS.len()];

/// The level of each budget in [`Budgets`], in the same order.
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
        let Some(budget) = budget else {
            return Ok(Self::RULES.map(|rule| Verdict { level, ..Verdict::unset(rule) }));
        };
        let charge = budget.charge(payment, clock)?;
        Ok(Self::RULES.map(|rule| Verdict { level, ..budget.check(rule, payment, &charge) }))
    }

    /// Returns the entry for the ledger, to be recorded if all rules let the payment pass.
    #[inline(always)]
    fn charge(&self, payment: &Payment, clock: UnixTime) -> Result<Charge, Refusal> {
        let at = self.ledger.time(clock);
        let (day_held, hour_held) = (self.ledger.day.total_at(at)?, self.ledger.hour.total_at(at)?);
        Ok(Charge { amount: payment.amount, at, day_held, hour_held })
    }

    /// Returns the verdict of one of the budget's rules. `rule` is a constant at each use, so the compiler removes the
    /// `match`.
    #[inline(always)]
    fn check(&self, rule: Rule, payment: &Payment, charge: &Charge) -> Verdict {
        let Budget { limits, frozen, total_spent, ledger } = self;
        match rule {
            Rule::BudgetFrozen => Verdict::set(rule, !frozen, 0, 0, u64::MAX),
            Rule::BudgetExpired => expiry::check(rule, limits.expires_at, charge.at),
            Rule::BudgetMaxTotal => {
                max_per_day::check(rule, limits.max_total, total_spent.0, ledger.held, payment)
            }
            Rule::BudgetMaxPerDay => {
                max_per_day::check(rule, limits.max_per_day, charge.day_held, ledger.held, payment)
            }
            Rule::BudgetMaxPerMonth => {
                max_per_month::check(rule, limits.max_per_month, ledger, payment, charge.at)
            }
            Rule::BudgetVelocityCap => velocity_cap::check(rule, limits.velocity_cap, charge.hour_held),
            _ => Verdict::unset(rule),
        }
    }
}

/// Judges `payment` by one budget at the time `clock`; see [`crate::authorize`].
///
/// # Errors
/// [`Refusal::Violation`] with the first rule that refuses; [`Refusal::Overflow`] if the ledger's stored total
/// contradicts its slots.
#[inline(never)]
pub(crate) fn authorize<B: AsBudget>(
    budget: &B,
    payment: &Payment,
    clock: UnixTime,
) -> Result<Charge, Refusal> {
    let budget = budget.as_budget();
    let charge = budget.charge(payment, clock)?;
    let [frozen, expired, total, day, month, velocity] = Budget::RULES;
    budget.check(frozen, payment, &charge).refuse()?;
    budget.check(expired, payment, &charge).refuse()?;
    budget.check(total, payment, &charge).refuse()?;
    budget.check(day, payment, &charge).refuse()?;
    budget.check(month, payment, &charge).refuse()?;
    budget.check(velocity, payment, &charge).refuse()?;
    Ok(charge)
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
