//! Every boundary of the windows, tested one second before it and exactly at it.
#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use super::*;

const DAY: i64 = 86_400;

#[test]
fn a_slot_counts_until_all_of_it_is_older_than_24_hours() {
    // Given a payment in the first second of a slot, and one in its last
    for second in [0, 899] {
        let paid = 900 * 1_000 + second;
        let mut day = DayWindow::default();
        day.add(UnixTime(paid), 7).unwrap();
        // Then it counts as long as part of the slot is within 24 hours, and no longer
        let slot_end = 900 * 1_001;
        assert_eq!(day.total_at(UnixTime(paid)), Ok(7));
        assert_eq!(day.total_at(UnixTime(slot_end + DAY - 1)), Ok(7));
        assert_eq!(day.total_at(UnixTime(slot_end + DAY)), Ok(0));
    }
}

#[test]
fn a_minute_counts_until_all_of_it_is_older_than_an_hour() {
    let paid = 60 * 5_000 + 59;
    let mut hour = HourWindow::default();
    hour.add(UnixTime(paid), 1).unwrap();
    assert_eq!(hour.total_at(UnixTime(60 * 5_001 + 3_599)), Ok(1));
    assert_eq!(hour.total_at(UnixTime(60 * 5_001 + 3_600)), Ok(0));
}

#[test]
fn what_is_added_later_drops_exactly_what_has_left() {
    // Given one payment in each of 97 slots
    let mut day = DayWindow::default();
    for slot in 0..97 {
        day.add(UnixTime(900 * slot), 1 << (slot % 60)).unwrap();
    }
    let all = day.total;
    assert_eq!(day.total_at(UnixTime(900 * 96)), Ok(all));
    // When one is added in the 98th slot, then only the first one leaves
    assert_eq!(day.total_at(UnixTime(900 * 97)), Ok(all - 1));
    day.add(UnixTime(900 * 97), 0).unwrap();
    assert_eq!(day.total, all - 1);
    assert_eq!(day.slots.iter().sum::<u64>(), day.total);
}

#[test]
fn a_gap_as_long_as_the_ring_clears_it_and_one_slot_less_does_not() {
    let mut day = DayWindow::default();
    day.add(UnixTime(0), 5).unwrap();
    let mut one_less = day;
    one_less.add(UnixTime(900 * 96), 1).unwrap();
    assert_eq!(one_less.total, 6);
    let mut whole = day;
    whole.add(UnixTime(900 * 97), 1).unwrap();
    assert_eq!(whole.total, 1);
    assert_eq!(whole.slots.iter().sum::<u64>(), 1);
}

#[test]
fn a_time_before_the_newest_slot_counts_into_the_newest() {
    let mut day = DayWindow::default();
    day.add(UnixTime(900 * 10), 5).unwrap();
    assert_eq!(day.total_at(UnixTime(0)), Ok(5));
    day.add(UnixTime(0), 6).unwrap();
    assert_eq!((day.newest, day.total), (10, 11));
}

#[test]
fn a_time_before_the_epoch_is_the_epoch() {
    assert_eq!(DayWindow::slot_at(UnixTime(-1)), 0);
    assert_eq!(DayWindow::slot_at(UnixTime(i64::MIN)), 0);
}

#[test]
fn sums_that_do_not_fit_are_an_error() {
    let mut day = DayWindow::default();
    day.add(UnixTime(0), u64::MAX).unwrap();
    assert_eq!(day.add(UnixTime(0), 1), Err(Overflow));
    let mut other_slot = DayWindow::default();
    other_slot.add(UnixTime(0), u64::MAX).unwrap();
    assert_eq!(other_slot.add(UnixTime(900), 1), Err(Overflow));
}

#[test]
fn a_total_that_contradicts_its_slots_is_an_error() {
    let mut day = DayWindow::default();
    day.add(UnixTime(900), 5).unwrap();
    day.total = 4;
    day.newest = 96;
    assert_eq!(day.total_at(UnixTime(900 * 98)), Err(Overflow));
    assert_eq!(day.add(UnixTime(900 * 98), 1), Err(Overflow));
    // The staying slots are added up if they are fewer than the leaving ones
    let mut staying = DayWindow::default();
    staying.add(UnixTime(900 * 90), 5).unwrap();
    staying.total = 4;
    assert_eq!(staying.total_at(UnixTime(900 * 150)), Err(Overflow));
}

#[test]
fn summing_what_stays_and_subtracting_what_leaves_agree() {
    // Given a ring with a different value in each slot
    let mut day = DayWindow::default();
    for slot in 200..297 {
        day.add(UnixTime(900 * slot), slot as u64 * slot as u64).unwrap();
    }
    // Then at every later slot the window's total is exactly the sum of the slots that are still in it
    for now in 296..400u64 {
        let expected: u64 = (200..297u64).filter(|slot| slot + 97 > now).map(|slot| slot * slot).sum();
        assert_eq!(day.total_at(UnixTime(900 * now as i64)), Ok(expected), "{now}");
        let mut later = day;
        later.add(UnixTime(900 * now as i64), 1).unwrap();
        assert_eq!(later.total, expected + 1);
        assert_eq!(later.slots.iter().sum::<u64>(), later.total, "{now}");
    }
}

#[test]
fn says_when_a_payment_will_fit() {
    let mut day = DayWindow::default();
    day.add(UnixTime(900 * 100), 60).unwrap();
    day.add(UnixTime(900 * 110), 40).unwrap();
    let now = UnixTime(900 * 111);
    assert_eq!(day.fits_from(now, 0, 100), Ok(Some(now)));
    // 60 leave with slot 100, when slot 197 begins
    assert_eq!(day.fits_from(now, 1, 100), Ok(Some(UnixTime(900 * 197))));
    assert_eq!(day.fits_from(now, 60, 100), Ok(Some(UnixTime(900 * 197))));
    assert_eq!(day.fits_from(now, 61, 100), Ok(Some(UnixTime(900 * 207))));
    assert_eq!(day.fits_from(now, 100, 100), Ok(Some(UnixTime(900 * 207))));
    assert_eq!(day.fits_from(now, 101, 100), Ok(None));
}

#[test]
fn the_time_at_which_it_fits_is_the_first_such_second() {
    let mut day = DayWindow::default();
    for slot in [3, 50, 51, 96] {
        day.add(UnixTime(900 * slot), 10).unwrap();
    }
    let now = UnixTime(900 * 96 + 5);
    for value in 1..=40 {
        let at = day.fits_from(now, value, 40).unwrap().unwrap();
        assert!(day.total_at(at).unwrap() + value <= 40);
        assert!(at == now || day.total_at(UnixTime(at.0 - 1)).unwrap() + value > 40);
    }
}

#[test]
fn months_end_where_the_calendar_says() {
    // date -u -d 'YYYY-MM-01' +%s
    for (first_second, end) in [
        (0, 2_678_400),                 // 1970-01
        (2_678_400, 5_097_600),         // 1970-02, 28 days
        (946_684_800, 949_363_200),     // 2000-01
        (949_363_200, 951_868_800),     // 2000-02, leap century
        (951_868_800, 954_547_200),     // 2000-03
        (1_764_547_200, 1_767_225_600), // 2025-12 -> 2026-01
        (1_769_904_000, 1_772_323_200), // 2026-02
        (1_832_976_000, 1_835_481_600), // 2028-02, leap
    ] {
        assert_eq!(month_end(UnixTime(first_second)), UnixTime(end));
        assert_eq!(month_end(UnixTime(end - 1)), UnixTime(end));
        assert_ne!(month_end(UnixTime(end)), UnixTime(end));
    }
}

#[test]
fn every_month_from_1970_to_2500_ends_where_counting_days_says() {
    let mut day = 0i64;
    for year in 1970..2500 {
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        for length in [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            let end = UnixTime((day + length) * DAY);
            assert_eq!(month_end(UnixTime(day * DAY)), end, "first second, {year}");
            assert_eq!(month_end(UnixTime(end.0 - 1)), end, "last second, {year}");
            day += length;
        }
    }
}

#[test]
fn far_times_have_a_month_too() {
    assert!(month_end(UnixTime(i64::MAX)) >= UnixTime(i64::MAX - 32 * DAY));
    assert_eq!(month_end(UnixTime(i64::MIN)), UnixTime(2_678_400));
}

#[test]
fn a_month_never_goes_back() {
    let mut month = Month::default();
    month.add(UnixTime(2_678_400), Usdc(5)).unwrap(); // February 1970
    month.add(UnixTime(0), Usdc(6)).unwrap(); // counts into February
    assert_eq!((month.ends_at, month.spent), (UnixTime(5_097_600), Usdc(11)));
    assert_eq!(month.spent_at(UnixTime(0)), Usdc(11));
}

#[test]
fn what_is_taken_back_comes_out_of_its_slot_alone() {
    let mut day = DayWindow::default();
    day.add(UnixTime(900 * 10), 5).unwrap();
    day.add(UnixTime(900 * 11), 7).unwrap();
    // A value above the slot's content empties this slot and no other
    let mut emptied = day;
    emptied.take_back(10, 6);
    assert_eq!((emptied.total, emptied.slots[10], emptied.slots[11]), (7, 0, 7));
    // A slot that has left the window or is still to come does not count, whatever its place in the ring contains
    for slot in [12, 10 + 97, 12 + 97, u64::MAX] {
        let mut same = day;
        same.take_back(slot, 5);
        assert_eq!(same, day, "{slot}");
    }
    day.add(UnixTime(900 * 107), 1).unwrap();
    let mut same = day;
    same.take_back(10, 1);
    assert_eq!(same, day);
}
