//! The rules of a vault's policy, and the ledger of what the vault has spent.
//!
//! Everything here is pure: [`authorize`] decides and changes nothing, [`Ledger::charge`] records what was decided.
//! A refusal therefore leaves the ledger as it was. The on-chain program is the only caller that moves money.
//!
//! The rules are judged in one fixed order, that of [`authorize`]; the first that refuses is the one reported.
#![no_std]

mod budget;
pub mod escrow;
pub mod rules;
mod types;
mod units;
mod verdict;
mod window;

pub use budget::Budget;
pub use types::{
    Category, Ledger, Limits, Payment, Place, Refusal, Rule, Rules, Standing, Violation, CATEGORIES,
};
pub use units::{Month, UnixTime, Usdc};
pub use verdict::{assess, Verdict};
pub use window::{DayWindow, HourWindow, Overflow, Window};

/// What an authorized payment will put into the ledger, and where: recorded by [`Ledger::charge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The amount.
    pub amount: Usdc,
    /// The time of the payment: the clock, or the ledger's last time where the clock stepped back.
    pub at: UnixTime,
    /// What the day held at that time, before the payment.
    day_held: u64,
    /// How many payments the hour held at that time, before the payment.
    hour_held: u64,
}

/// What an authorized payment will put into each ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// For the vault's.
    pub vault: Charge,
    /// For that of its budget, where it has one.
    pub budget: Option<Charge>,
}

/// Judges `payment` by `rules` at the time `clock`, given what `ledger` says was spent, and by `budget` where the vault
/// has one. Each ledger is judged at its own time, so that one that is ahead of the clock moves no other.
///
/// # Errors
/// [`Refusal::Violation`] with the first rule that refuses; [`Refusal::Overflow`] when the ledger cannot count it.
#[inline(always)]
pub fn authorize(
    rules: &Rules,
    ledger: &Ledger,
    budget: Option<&Budget>,
    payment: &Payment,
    standing: Standing,
    clock: UnixTime,
) -> Result<Charges, Refusal> {
    let now = ledger.time(clock);
    rules::paused::check(standing).refuse()?;
    rules::frozen::check(standing).refuse()?;
    rules::expiry::check(rules, now).refuse()?;
    rules::allowed_recipients::check(rules, payment).refuse()?;
    rules::blocked_categories::check(rules, payment).refuse()?;
    rules::max_per_tx::check(rules, payment).refuse()?;
    let hour_held = ledger.hour.total_at(now)?;
    rules::velocity_cap::check(Rule::VelocityCap, rules.velocity_cap, hour_held).refuse()?;
    let day_held = ledger.day.total_at(now)?;
    rules::max_per_day::check(Rule::MaxPerDay, rules.max_per_day, day_held, payment).refuse()?;
    rules::max_per_month::check(Rule::MaxPerMonth, rules.max_per_month, &ledger.month, payment, now)
        .refuse()?;
    let budget = match budget {
        Some(budget) => Some(budget.authorize(payment, clock)?),
        None => None,
    };
    rules::require_co_sign::check(rules, payment).refuse()?;
    Ok(Charges { vault: Charge { amount: payment.amount, at: now, day_held, hour_held }, budget })
}

#[cfg(test)]
mod tests;
