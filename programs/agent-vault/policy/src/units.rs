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
    /// Seconds since the epoch as an unsigned count; a time before it counts as the epoch.
    #[inline(always)]
    pub fn seconds(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

/// What was spent in the UTC calendar month that ends at `ends_at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Month {
    /// First second of the next month. Names the month: a later one is a later month.
    pub ends_at: UnixTime,
    /// Spent in it.
    pub spent: Usdc,
}
