//! Units: amounts, times and the spending of a calendar month.

/// An amount in micro-USDC (USDC has six decimals).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Usdc(pub u64);

/// Seconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct UnixTime(pub i64);

impl UnixTime {
    /// Returns the seconds since the epoch as an unsigned count. A time before the epoch counts as the epoch.
    #[inline(always)]
    pub fn seconds(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

/// The amount spent in the UTC calendar month that ends at `ends_at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Month {
    /// First second of the next month. It identifies the month: a later value means a later month.
    pub ends_at: UnixTime,
    /// The amount spent in this month.
    pub spent: Usdc,
}
