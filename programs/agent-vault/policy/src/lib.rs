//! The rules of a vault's policy, and the ledger of the vault's spending.
//!
//! The crate is pure: [`authorize`] decides without changing anything, and [`Ledger::charge`] records the decision. A
//! refusal therefore leaves the ledger as it was. The on-chain program is the only caller that moves money.
//!
//! [`authorize`] judges the rules in one fixed order and reports the first one that refuses. [`Payees::pay`] judges
//! `new_recipient` after them, and records the payee.
#![no_std]

mod budget;
pub mod escrow;
pub mod payees;
pub mod rules;
mod types;
mod units;
mod verdict;
mod window;

pub use budget::{AsBudget, Budget, Budgets, LEVELS};
pub use payees::Payees;
pub use types::{
    Category, Ledger, Level, Limits, Payment, Place, Refusal, Rule, Rules, Standing, Violation, CATEGORIES,
};
pub use units::{Month, UnixTime, Usdc};
pub use verdict::{assess, Verdict};
pub use window::{DayWindow, HourWindow, Overflow, Window};

/// An authorized payment's entry for the ledger: its amount, its time and the window totals before it.
/// [`Ledger::charge`] records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The amount.
    pub amount: Usdc,
    /// The time of the payment: the clock, or the ledger's last time if the clock stepped back.
    pub at: UnixTime,
    /// Spending in the day window at that time, before this payment.
    day_held: u64,
    /// Number of payments in the hour window at that time, before this payment.
    hour_held: u64,
}

/// An authorized payment's entries for the ledgers of the vault and of its budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// The entry for the vault's ledger.
    pub vault: Charge,
    /// The entries for the ledgers of the budgets that the vault has.
    pub budgets: [Option<Charge>; LEVELS.len()],
}

/// Judges `payment` at the time `clock` by `rules` and the spending in `ledger`, and by the vault's budgets. Each ledger
/// is judged at its own time, so a ledger that is ahead of the clock does not advance the other ones.
///
/// # Errors
/// [`Refusal::Violation`] with the first rule that refuses; [`Refusal::Overflow`] if a ledger's stored total
/// contradicts its slots.
#[inline(always)]
pub fn authorize<B: AsBudget>(
    rules: &Rules,
    ledger: &Ledger,
    budgets: &Budgets<B>,
    payment: &Payment,
    standing: Standing,
    clock: UnixTime,
) -> Result<Charges, Refusal> {
    let now = ledger.time(clock);
    rules::paused::check(standing).refuse()?;
    rules::frozen::check(standing).refuse()?;
    rules::expiry::check(Rule::Expiry, rules.expiry, now).refuse()?;
    rules::allowed_recipients::check(rules, payment).refuse()?;
    rules::blocked_categories::check(rules, payment).refuse()?;
    rules::max_per_tx::check(rules, payment).refuse()?;
    let hour_held = ledger.hour.total_at(now)?;
    rules::velocity_cap::check(Rule::VelocityCap, rules.velocity_cap, hour_held).refuse()?;
    let day_held = ledger.day.total_at(now)?;
    rules::max_per_day::check(Rule::MaxPerDay, rules.max_per_day, day_held, ledger.held, payment).refuse()?;
    rules::max_per_month::check(Rule::MaxPerMonth, rules.max_per_month, ledger, payment, now).refuse()?;
    let mut charges = Charges {
        vault: Charge { amount: payment.amount, at: now, day_held, hour_held },
        budgets: [None; 2],
    };
    for ((budget, level), charge) in budgets.iter().zip(LEVELS).zip(&mut charges.budgets) {
        if let Some(budget) = budget {
            *charge = Some(budget::authorize(budget, payment, clock).map_err(|refusal| refusal.by(level))?);
        }
    }
    rules::require_co_sign::check(rules, payment).refuse()?;
    Ok(charges)
}

#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod tests;
