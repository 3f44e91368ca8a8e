//! The calendar: months counted one by one.

use agent_vault_policy::{Ledger, UnixTime, Usdc};

const DAY: i64 = 86_400;
/// Length of 400 years in seconds, after which the calendar repeats.
const ERA: i64 = 146_097 * DAY;

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Returns the first second of the month after the month of `time`, or the last representable second if the month does
/// not end before it. `time` is not before 1970.
pub fn month_end(time: i64) -> i64 {
    let mut end = time / ERA * ERA;
    let mut year = 1970;
    loop {
        let february = if is_leap(year) { 29 } else { 28 };
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            end = end.saturating_add(days * DAY);
            if time < end || end == i64::MAX {
                return end;
            }
        }
        year += 1;
    }
}

#[test]
fn months_end_where_counting_them_says() {
    bolero::check!().with_type::<i64>().cloned().with_iterations(super::inputs(20)).for_each(|time| {
        let mut ledger = Ledger::default();
        ledger.record(UnixTime(time), Usdc(1), 1).unwrap();
        let expected = month_end(time.max(0));
        // The last month that fits into 64 bits has no representable end; the last representable second is used
        // instead.
        assert_eq!(ledger.month.ends_at, UnixTime(expected));
    });
}
