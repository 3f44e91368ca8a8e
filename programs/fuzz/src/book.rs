//! A model of the ledger that keeps every charge, without windows.

use crate::calendar::month_end;
use agent_vault_policy::{Ledger, Place, UnixTime};
use std::collections::BTreeMap;

/// All charges, by quarter of an hour, minute and month.
#[derive(Clone, Default)]
pub struct Book {
    quarters: BTreeMap<i64, u128>,
    minutes: BTreeMap<i64, u128>,
    months: BTreeMap<i64, u128>,
    last: i64,
}

/// The place of a charge in the book.
#[derive(Clone, Copy)]
pub struct Entry {
    quarter: i64,
    month: i64,
}

impl Book {
    /// Returns the effective time: the clock, or the time of the last payment if the clock stepped back.
    pub fn time(&self, clock: i64) -> i64 {
        clock.max(self.last)
    }

    /// Returns the amount charged in the quarter of `now` and the 96 quarters before it: 24 hours plus the current
    /// quarter.
    pub fn day(&self, now: i64) -> u128 {
        self.quarters.range(now / 900 - 96..).map(|(_, amount)| amount).sum()
    }

    /// Returns the number of payments in the minute that contains `now` and in the 60 minutes before that minute.
    pub fn hour(&self, now: i64) -> u128 {
        self.minutes.range(now / 60 - 60..).map(|(_, count)| count).sum()
    }

    /// Returns the amount charged in the month of `now`.
    pub fn month(&self, now: i64) -> u128 {
        self.months.get(&month_end(now)).copied().unwrap_or(0)
    }

    /// Adds `count` payments, `amount` in total. Returns `None` if they do not fit into 64 bits.
    pub fn charge(&mut self, now: i64, amount: u64, count: u64) -> Option<Entry> {
        let mut next = self.clone();
        *next.quarters.entry(now / 900).or_default() += u128::from(amount);
        *next.minutes.entry(now / 60).or_default() += u128::from(count);
        *next.months.entry(month_end(now)).or_default() += u128::from(amount);
        next.last = now;
        let largest = next.day(now).max(next.hour(now)).max(next.month(now));
        (largest <= u64::MAX.into()).then(|| {
            *self = next;
            Entry { quarter: now / 900, month: month_end(now) }
        })
    }

    /// Takes back the unused part of a charge.
    pub fn credit(&mut self, entry: Entry, returned: u64) {
        for (kept, key) in [(&mut self.quarters, entry.quarter), (&mut self.months, entry.month)] {
            let amount = kept.get_mut(&key).expect("it was charged");
            *amount = amount.saturating_sub(returned.into());
        }
    }

    /// Asserts that the policy crate's ledger reports the same totals at `now`, and the same last time, as this book.
    pub fn assert_is(&self, ledger: &Ledger, now: i64) {
        let at = UnixTime(now);
        assert_eq!(ledger.day.total_at(at).map(u128::from), Ok(self.day(now)));
        assert_eq!(ledger.hour.total_at(at).map(u128::from), Ok(self.hour(now)));
        assert_eq!(u128::from(ledger.month.spent_at(at).0), self.month(now));
        assert_eq!(ledger.last, UnixTime(self.last));
    }
}

/// A charge's place in the ledger and its entry in the book.
#[derive(Clone, Copy)]
pub struct Charged {
    pub place: Place,
    pub entry: Entry,
}
