//! A budget shared by several vaults: a vault's time-based rules, applied to one ledger for all of them.

use crate::{
    rules::{max_per_day, max_per_month, velocity_cap},
    types::{Ledger, Limits, Payment, Refusal, Rule},
    units::UnixTime,
    Charge, Verdict,
};

/// A budget: its limits, and the spending of all its vaults.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// The budget's limits.
    pub limits: Limits,
    /// The ledger charged for every payment of every vault. It is separate from the vaults' ledgers: each ledger has
    /// its own time.
    pub ledger: &'a Ledger,
}

impl Budget<'_> {
    /// The budget's rules, in the order of judgement.
    pub const RULES: [Rule; 3] = [Rule::BudgetMaxPerDay, Rule::BudgetMaxPerMonth, Rule::BudgetVelocityCap];

    /// Judges `payment` at the time `clock`; see [`crate::authorize`].
    ///
    /// # Errors
    /// [`Refusal::Violation`] with the first rule that refuses; [`Refusal::Overflow`] if the ledger's stored total
    /// contradicts its slots.
    #[inline(never)]
    pub(crate) fn authorize(&self, payment: &Payment, clock: UnixTime) -> Result<Charge, Refusal> {
        let (verdicts, charge) = self.judge(payment, clock)?;
        let [day, month, velocity] = verdicts;
        day.refuse()?;
        month.refuse()?;
        velocity.refuse()?;
        Ok(charge)
    }

    /// Returns the verdict of each rule on `payment`.
    ///
    /// # Errors
    /// [`Refusal::Overflow`] if the ledger's stored total contradicts its slots.
    pub(crate) fn assess(&self, payment: &Payment, clock: UnixTime) -> Result<[Verdict; 3], Refusal> {
        Ok(self.judge(payment, clock)?.0)
    }

    /// Returns the verdict of each of the budget's rules, and the charge to record if all of them let the payment pass.
    #[inline(always)]
    fn judge(&self, payment: &Payment, clock: UnixTime) -> Result<([Verdict; 3], Charge), Refusal> {
        let Budget { limits, ledger } = self;
        let now = ledger.time(clock);
        let [day, month, velocity] = Self::RULES;
        let day_held = ledger.day.total_at(now)?;
        let hour_held = ledger.hour.total_at(now)?;
        let verdicts = [
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
