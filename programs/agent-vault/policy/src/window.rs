//! Rolling windows over time slots, and UTC calendar months.
//!
//! A slot here is an interval of fixed length, not a slot of the chain. Slots are numbered absolutely (time / slot
//! length), so a slot's number identifies the time that it covers. A ring holds the newest slots. A window of `SLOTS`
//! slots covers the current slot and the `SLOTS - 1` before it: 97 slots of 15 minutes are 24 hours plus the current,
//! partial slot. A slot leaves the window only once all of it is older than the window's span, so no interval of that
//! span ever holds more than the window's total.

use crate::units::{Month, UnixTime, Usdc};
use core::ops::Range;

/// The error for a sum that does not fit into 64 bits, and for a stored total that contradicts its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// 24 hours in slots of 15 minutes, plus the partial slot.
pub type DayWindow = Window<97, 900>;
/// One hour in slots of one minute, plus the partial slot.
pub type HourWindow = Window<61, 60>;

/// A rolling window: a ring of `SLOTS` sums, each of the values added during one slot of `SECONDS` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Window<const SLOTS: usize, const SECONDS: u64> {
    /// Absolute number of the newest slot.
    pub newest: u64,
    /// Sum of all slots.
    pub total: u64,
    /// The sums: slot `n` is at index `n % SLOTS`.
    pub slots: [u64; SLOTS],
}

impl<const SLOTS: usize, const SECONDS: u64> Default for Window<SLOTS, SECONDS> {
    fn default() -> Self {
        Window { newest: 0, total: 0, slots: [0; SLOTS] }
    }
}

impl<const SLOTS: usize, const SECONDS: u64> Window<SLOTS, SECONDS> {
    /// Returns the absolute number of the slot that contains `time`.
    #[inline(always)]
    pub fn slot_at(time: UnixTime) -> u64 {
        #[allow(clippy::arithmetic_side_effects)] // no window has slots of zero seconds
        {
            time.seconds() / SECONDS
        }
    }

    /// Returns the window's total at `now`. A `now` before the newest slot counts as part of that slot.
    ///
    /// # Errors
    /// [`Overflow`] if the stored total contradicts the slots.
    #[inline(always)]
    pub fn total_at(&self, now: UnixTime) -> Result<u64, Overflow> {
        let slot = Self::slot_at(now);
        if slot <= self.newest {
            return Ok(self.total);
        }
        self.ring().total_at_slot(slot)
    }

    /// Adds `value` to the slot of `now`, after dropping the slots that have left the window.
    ///
    /// # Errors
    /// [`Overflow`] if the sum does not fit.
    pub fn add(&mut self, now: UnixTime, value: u64) -> Result<(), Overflow> {
        let held = self.total_at(now)?;
        self.add_to(held, now, value)
    }

    /// [`Window::add`] for a caller that already has `held`, the result of [`Window::total_at`] for this `now`.
    #[inline(always)]
    pub(crate) fn add_to(&mut self, held: u64, now: UnixTime, value: u64) -> Result<(), Overflow> {
        let slot = Self::slot_at(now);
        if slot > self.newest {
            self.advance(slot);
        }
        let entry = self.slots.get_mut(index(self.newest, SLOTS)).ok_or(Overflow)?;
        *entry = entry.checked_add(value).ok_or(Overflow)?;
        self.total = held.checked_add(value).ok_or(Overflow)?;
        Ok(())
    }

    /// Takes up to `value` out of the slot with this absolute number, if the ring still holds it. A slot never drops
    /// below zero.
    pub(crate) fn take_back(&mut self, slot: u64, value: u64) {
        if slot > self.newest || self.newest.saturating_sub(slot) >= SLOTS as u64 {
            return;
        }
        if let Some(entry) = self.slots.get_mut(index(slot, SLOTS)) {
            let taken = value.min(*entry).min(self.total);
            *entry = entry.saturating_sub(taken);
            self.total = self.total.saturating_sub(taken);
        }
    }

    /// Empties the slots after the newest one up to `slot`, which becomes the newest. A gap as long as the ring empties
    /// the whole ring.
    fn advance(&mut self, slot: u64) {
        let leaving = slot.saturating_sub(self.newest).min(SLOTS as u64);
        if leaving == SLOTS as u64 {
            self.slots.fill(0);
        } else {
            let (older, newer) = halves(self.newest.saturating_add(1), leaving, SLOTS);
            if let Some(slots) = self.slots.get_mut(older) {
                slots.fill(0);
            }
            if !newer.is_empty() {
                if let Some(slots) = self.slots.get_mut(newer) {
                    slots.fill(0);
                }
            }
        }
        self.newest = slot;
    }

    /// Returns the first time from `now` on at which another `value` fits under `limit`, provided that nothing else is
    /// added before. Returns `None` if it never fits.
    ///
    /// # Errors
    /// [`Overflow`] if the stored total contradicts its slots.
    pub fn fits_from(&self, now: UnixTime, value: u64, limit: u64) -> Result<Option<UnixTime>, Overflow> {
        let Some(room) = limit.checked_sub(value) else {
            return Ok(None);
        };
        if self.total_at(now)? <= room {
            return Ok(Some(now));
        }
        let slot = self.ring().fits_after(Self::slot_at(now).max(self.newest), room)?;
        let seconds = slot.saturating_mul(SECONDS);
        Ok(Some(UnixTime(i64::try_from(seconds).unwrap_or(i64::MAX))))
    }

    fn ring(&self) -> Ring<'_> {
        Ring { newest: self.newest, total: self.total, slots: &self.slots }
    }
}

/// A read-only window of any length. Its methods are compiled once for all windows.
struct Ring<'a> {
    newest: u64,
    total: u64,
    slots: &'a [u64],
}

impl Ring<'_> {
    /// Returns the window's total at a slot after the newest. Adds up either the slots that stay in the window or those
    /// that drop out of it, whichever are fewer; in the second case it subtracts their sum from the total.
    #[inline(never)]
    fn total_at_slot(&self, slot: u64) -> Result<u64, Overflow> {
        let leaving = slot.saturating_sub(self.newest);
        let staying = (self.slots.len() as u64).saturating_sub(leaving);
        if staying == 0 {
            return Ok(0);
        }
        if staying < leaving {
            let held = self.sum(slot.saturating_add(1), staying)?;
            return if held <= self.total { Ok(held) } else { Err(Overflow) };
        }
        let gone = self.sum(self.newest.saturating_add(1), leaving)?;
        self.total.checked_sub(gone).ok_or(Overflow)
    }

    /// Returns the first slot after `slot` with a window total of at most `room`.
    #[inline(never)]
    fn fits_after(&self, mut slot: u64, room: u64) -> Result<u64, Overflow> {
        let end = self.newest.saturating_add(self.slots.len() as u64);
        while slot < end {
            slot = slot.saturating_add(1);
            if self.total_at_slot(slot)? <= room {
                break;
            }
        }
        Ok(slot)
    }

    /// Returns the sum of `count` slots, starting with slot number `first`. The additions wrap. A total that matches
    /// its slots fits into 64 bits, and so does the sum of any part of them; the callers check for a total that
    /// contradicts its slots.
    #[inline(always)]
    fn sum(&self, first: u64, count: u64) -> Result<u64, Overflow> {
        let (older, newer) = halves(first, count, self.slots.len());
        let sum = self.sum_of(older)?;
        if newer.is_empty() {
            return Ok(sum);
        }
        Ok(sum.wrapping_add(self.sum_of(newer)?))
    }

    /// Returns the sum of a part of the ring; see [`Ring::sum`].
    #[inline(never)]
    fn sum_of(&self, part: Range<usize>) -> Result<u64, Overflow> {
        // Add eight at a time, because the build for the chain does not unroll loops.
        let (eights, rest) = self.slots.get(part).ok_or(Overflow)?.as_chunks::<8>();
        let mut sum = 0u64;
        for [a, b, c, d, e, f, g, h] in eights {
            sum = sum.wrapping_add(*a).wrapping_add(*b).wrapping_add(*c).wrapping_add(*d);
            sum = sum.wrapping_add(*e).wrapping_add(*f).wrapping_add(*g).wrapping_add(*h);
        }
        Ok(rest.iter().fold(sum, |sum, slot| sum.wrapping_add(*slot)))
    }
}

/// Returns the index ranges of `count` slots in a ring of `length`, starting with slot number `first`: one up to the
/// ring's end, and one from its start.
#[inline(always)]
fn halves(first: u64, count: u64, length: usize) -> (Range<usize>, Range<usize>) {
    let start = index(first, length);
    let end = start.saturating_add(usize::try_from(count).unwrap_or(length));
    (start..end.min(length), 0..end.saturating_sub(length))
}

/// Returns the index of the slot with this absolute number in a ring of `length`.
#[inline(always)]
fn index(slot: u64, length: usize) -> usize {
    // The remainder is below `length`, which is a usize and never zero.
    #[allow(clippy::cast_possible_truncation, clippy::arithmetic_side_effects)]
    {
        (slot % length as u64) as usize
    }
}

impl Month {
    /// Returns the spending in the month of `now`: zero if the stored month has ended.
    #[inline(always)]
    pub fn spent_at(&self, now: UnixTime) -> Usdc {
        if now < self.ends_at {
            self.spent
        } else {
            Usdc(0)
        }
    }

    /// Adds `amount` to the month of `now`. If the clock has stepped back to an earlier month, adds it to the stored
    /// month instead.
    ///
    /// # Errors
    /// [`Overflow`] if the sum does not fit.
    #[inline(always)]
    pub fn add(&mut self, now: UnixTime, amount: Usdc) -> Result<(), Overflow> {
        if now >= self.ends_at {
            self.ends_at = month_end(now);
            self.spent = Usdc(0);
        }
        self.spent = Usdc(self.spent.0.checked_add(amount.0).ok_or(Overflow)?);
        Ok(())
    }
}

/// Returns the first second of the UTC calendar month after the month of `time`.
///
/// Uses Howard Hinnant's `civil_from_days` and its inverse, in years that begin in March:
/// <https://howardhinnant.github.io/date_algorithms.html>. Times are at or after 1970, so every value is positive.
#[allow(clippy::arithmetic_side_effects)] // bounded by the calendar: see the comments
pub fn month_end(time: UnixTime) -> UnixTime {
    const DAY: u64 = 86_400;
    const DAYS_TO_1970_FROM_MARCH_0: u64 = 719_468;
    /// 400 years.
    const DAYS_PER_ERA: u64 = 146_097;
    // The division leaves room: a time of 2^63 seconds is less than 2^47 days.
    let days = time.seconds() / DAY + DAYS_TO_1970_FROM_MARCH_0;
    let era = days / DAYS_PER_ERA;
    let day_of_era = days % DAYS_PER_ERA;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153; // 0 is March, 11 is February

    // Compute the first day of the next month in the same count of days.
    let next_day_of_era = if month_from_march == 11 {
        // The next March begins the next year of the era. For year 400, the result is the first day of the next era.
        let year = year_of_era + 1;
        365 * year + year / 4 - year / 100 + year / 400
    } else {
        let next = (153 * (month_from_march + 1) + 2) / 5;
        365 * year_of_era + year_of_era / 4 - year_of_era / 100 + next
    };
    let next_days = era * DAYS_PER_ERA + next_day_of_era - DAYS_TO_1970_FROM_MARCH_0;
    UnixTime(i64::try_from(next_days.saturating_mul(DAY)).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
