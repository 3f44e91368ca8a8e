//! Fuzzes the policy crate against models of it that are slow and obvious: lists and maps of everything that ever
//! happened, in 128 bits, without windows, rings or formulas.
//!
//! `cargo test` replays the corpus (`src/__fuzz__`, found by libFuzzer) and tries random inputs, as many as
//! [`inputs`] says: it does not look for new paths. CONTRIBUTING.md says how to fuzz for an hour, by coverage.
#![cfg(test)]

mod book;
mod budgets;
mod calendar;
mod escrows;
mod ledgers;
mod rules;

use bolero::TypeGenerator;

/// Random inputs of a test that takes `microseconds` for each, so that each test takes some four seconds.
const fn inputs(microseconds: usize) -> usize {
    4_000_000 / microseconds
}

/// How far the clock goes before something happens. Steps that end at boundaries are likely.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Step {
    Stay,
    Seconds(u8),
    Minutes(u8),
    Quarters(u8),
    ToQuarter(i8),
    Days(u8),
    ToMonth(i8),
    Back(u16),
}

impl Step {
    fn from(self, clock: i64) -> i64 {
        let next = match self {
            Step::Stay => clock,
            Step::Seconds(count) => clock + i64::from(count),
            Step::Minutes(count) => clock + 60 * i64::from(count),
            Step::Quarters(count) => clock + 900 * i64::from(count),
            Step::ToQuarter(more) => (clock.div_euclid(900) + 1) * 900 + i64::from(more),
            Step::Days(count) => clock + 86_400 * i64::from(count),
            Step::ToMonth(more) => calendar::month_end(clock.max(0)) + i64::from(more),
            Step::Back(count) => clock - i64::from(count),
        };
        // The models walk the calendar: far times have a test of their own.
        next.clamp(-1_000_000, 20_000_000_000)
    }
}

/// An amount, mostly small, so that sums come near limits.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Amount {
    Few(u8),
    Some(u16),
    Any(u64),
    NearlyAll(u8),
}

impl Amount {
    fn get(self) -> u64 {
        match self {
            Amount::Few(amount) => amount.into(),
            Amount::Some(amount) => amount.into(),
            Amount::Any(amount) => amount,
            Amount::NearlyAll(less) => u64::MAX - u64::from(less),
        }
    }
}

/// The second at which a run begins: 2027-01-15T08:00:00Z and up to four years more.
fn start(offset: u32) -> i64 {
    1_800_000_000 + i64::from(offset % 126_230_400)
}
