//! The policy crate's ledger as account data.
//!
//! These types mirror the policy crate's types field by field, because only types of this crate can be described in the
//! IDL and marked as plain old data. The assertions below fail the build if the two layouts differ.

use agent_vault_policy as policy;
use anchor_lang::{
    bytemuck::{Pod, Zeroable},
    IdlType,
};
use core::mem::{offset_of, size_of};

/// 24 hours in slots of 15 minutes, numbered absolutely (unix time / 900).
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct DayWindow {
    /// Absolute number of the newest slot.
    pub newest: u64,
    /// Sum of all slots, in micro-USDC.
    pub total: u64,
    /// The sums: slot `n` is at index `n % 97`.
    pub slots: [u64; 97],
}

/// One hour in slots of one minute, numbered absolutely (unix time / 60).
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct HourWindow {
    /// Absolute number of the newest slot.
    pub newest: u64,
    /// Number of payments in all slots.
    pub total: u64,
    /// The counts: slot `n` is at index `n % 61`.
    pub slots: [u64; 61],
}

/// The spending of a vault or of a budget's vaults.
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct Ledger {
    /// Unix time of the last payment. The ledger never uses an earlier time, even if the clock steps back.
    pub last: i64,
    /// First second of the month after the one that `month_spent` counts.
    pub month_ends_at: i64,
    /// Amount spent in the UTC calendar month that ends at `month_ends_at`, in micro-USDC.
    pub month_spent: u64,
    /// Total of the allowances that are not settled yet, in micro-USDC. It counts towards the limits of both windows.
    pub held: u64,
    /// Spending in the last 24 hours.
    pub day: DayWindow,
    /// Number of payments in the last hour.
    pub hour: HourWindow,
}

// SAFETY: repr(C), only integers and arrays of them, and no padding (asserted below).
unsafe impl Pod for DayWindow {}
unsafe impl Zeroable for DayWindow {}
unsafe impl Pod for HourWindow {}
unsafe impl Zeroable for HourWindow {}
unsafe impl Pod for Ledger {}
unsafe impl Zeroable for Ledger {}

macro_rules! same_layout {
    ($ours:ty, $theirs:ty, $($field:ident . $other:ident $(. $inner:ident)?),+) => {
        const _: () = {
            assert!(size_of::<$ours>() == size_of::<$theirs>());
            $(assert!(offset_of!($ours, $field) == offset_of!($theirs, $other $(. $inner)?));)+
        };
    };
}

same_layout!(DayWindow, policy::DayWindow, newest.newest, total.total, slots.slots);
same_layout!(HourWindow, policy::HourWindow, newest.newest, total.total, slots.slots);
same_layout!(
    Ledger,
    policy::Ledger,
    last.last,
    month_ends_at.month.ends_at,
    month_spent.month.spent,
    held.held,
    day.day,
    hour.hour
);
const _: () = assert!(size_of::<DayWindow>() == 8 * 99);
const _: () = assert!(size_of::<HourWindow>() == 8 * 63);
const _: () = assert!(size_of::<Ledger>() == 8 * (4 + 99 + 63));

impl DayWindow {
    /// Returns the window as the policy crate's type, for reading and writing.
    #[inline(always)]
    pub fn as_policy_mut(&mut self) -> &mut policy::DayWindow {
        // SAFETY: both types have the same layout (asserted above), and every bit pattern is valid on both sides.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}

impl Ledger {
    /// Returns the ledger as the policy crate's type, for reading.
    #[inline(always)]
    pub fn as_policy(&self) -> &policy::Ledger {
        // SAFETY: both types have the same layout (asserted above), and every bit pattern is valid on both sides.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// Returns the ledger as the policy crate's type, for writing.
    #[inline(always)]
    pub fn as_policy_mut(&mut self) -> &mut policy::Ledger {
        // SAFETY: both types have the same layout (asserted above), and every bit pattern is valid on both sides.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}
