//! Fuzzes the policy crate against slow and obvious models of it: lists and maps of everything that ever happened, in
//! 128 bits, without windows, rings or formulas.
//!
//! `cargo test` replays the corpus (`src/__fuzz__`, found by libFuzzer) and tries random inputs, as many as [`inputs`]
//! returns. It does not search for new paths. For an hour of coverage-guided fuzzing, see CONTRIBUTING.md.
#![cfg(test)]

mod book;
mod budgets;
mod calendar;
mod escrows;
mod ledgers;
mod rules;

use bolero::TypeGenerator;

/// Returns the number of random inputs for a test that takes `microseconds` per input, so that each test takes about
/// four seconds.
const fn inputs(microseconds: usize) -> usize {
    4_000_000 / microseconds
}

/// The advance of the clock before an action. Steps that end near the boundary of a quarter of an hour or of a month
/// are likely.
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
        // The models walk the calendar month by month, so steps are short. Distant times have a separate test.
        next.clamp(-1_000_000, 20_000_000_000)
    }
}

/// An amount, often small, so that sums approach the limits.
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

/// Returns the start of a run in seconds: 2027-01-15T08:00:00Z plus up to four years.
fn start(offset: u32) -> i64 {
    1_800_000_000 + i64::from(offset % 126_230_400)
}
