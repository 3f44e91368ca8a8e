//! Signed arithmetic, including the divisions used by calendars.

use crate::Input;

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let mut results = Vec::new();
    for pair in input.words.windows(2).step_by(2) {
        let (a, b) = (pair[0] as i64, pair[1] as i64);
        results.extend(checked(a, b));
        results.extend(divided(a, b >> (pair[0] % 64)));
        results.extend(narrow(a, b));
        let (year, month, day) = civil_from_days(a >> 24);
        results.push(year as u64 ^ u64::from(month) << 8 ^ u64::from(day));
    }
    results
}

fn or_mark(value: Option<i64>) -> u64 {
    value.unwrap_or(0x5ead_beef_0bad_cafe) as u64
}

#[inline(never)]
fn checked(a: i64, b: i64) -> [u64; 7] {
    [
        or_mark(a.checked_add(b)),
        or_mark(a.checked_sub(b)),
        or_mark(a.checked_mul(b >> 20)),
        or_mark((a >> 33).checked_mul(b >> 31)),
        a.saturating_add(b) as u64 ^ a.saturating_mul(b) as u64,
        a.max(b) as u64 ^ a.signum() as u64 ^ a.unsigned_abs(),
        (a >> (b as u64 % 64)) as u64 ^ u64::from(a < b),
    ]
}

/// Signed division by a variable and by constants, with both kinds of rounding.
#[inline(never)]
fn divided(a: i64, b: i64) -> [u64; 6] {
    [
        or_mark(a.checked_div(b)),
        or_mark(a.checked_rem(b)),
        or_mark(a.checked_div_euclid(b)) ^ or_mark(a.checked_rem_euclid(b)),
        a.div_euclid(86_400) as u64,
        a.rem_euclid(86_400) as u64,
        (a / 7) as u64 ^ (a % 16) as u64,
    ]
}

#[inline(never)]
fn narrow(a: i64, b: i64) -> [u64; 2] {
    let (x, y) = (a as i32, b as i16);
    [
        x.checked_div(i32::from(y)).map_or(3, |quotient| quotient as u64),
        (y / 100) as u64 ^ x.checked_mul(i32::from(y)).map_or(9, |product| product as u64),
    ]
}

/// Returns year, month and day for a count of days since 1970-01-01 in the proleptic Gregorian calendar (Howard
/// Hinnant's algorithm).
#[inline(never)]
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097) as u32;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (i64::from(year_of_era) + era * 400 + i64::from(month <= 2), month, day)
}
