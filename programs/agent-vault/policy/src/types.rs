//! Records of the policy: rules, payments, verdicts, and the ledger of what was spent.

use crate::{
    units::{Month, UnixTime, Usdc},
    window::{DayWindow, HourWindow, Overflow},
    Charge,
};

/// The code of a recipient's category, below [`CATEGORIES`]. Zero is `uncategorized`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Category(pub u8);

/// How many category codes there are.
pub const CATEGORIES: u8 = 20;

/// What refused a payment. The discriminants are the codes used on-chain and are only appended; [`crate::authorize`] has the
/// order of judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// The organisation has stopped all payments.
    Paused = 0,
    /// The vault is frozen.
    Frozen = 1,
    /// The policy's time has passed.
    Expiry = 2,
    /// The recipient is not on the policy's allowlist.
    AllowedRecipients = 3,
    /// The recipient's category is blocked.
    BlockedCategories = 4,
    /// The amount is above the maximum of one payment.
    MaxPerTx = 5,
    /// Too many payments in an hour.
    VelocityCap = 6,
    /// Too much in 24 hours.
    MaxPerDay = 7,
    /// Too much in the UTC calendar month.
    MaxPerMonth = 8,
    /// The amount is above the threshold and nobody co-signed. Judged last, whatever its code: nobody is asked to approve
    /// what anything else refuses.
    RequireCoSign = 9,
    /// Too much in 24 hours for the budget that the vault shares.
    BudgetMaxPerDay = 10,
    /// Too much in the UTC calendar month for that budget.
    BudgetMaxPerMonth = 11,
    /// Too many payments in an hour for that budget.
    BudgetVelocityCap = 12,
}

/// The values of a policy. `None` is a rule that is not set; zero is a limit of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Largest amount of one payment.
    pub max_per_tx: Option<Usdc>,
    /// Most that any 24 hours may hold.
    pub max_per_day: Option<Usdc>,
    /// Most that a UTC calendar month may hold.
    pub max_per_month: Option<Usdc>,
    /// Most payments that any hour may hold.
    pub velocity_cap: Option<u64>,
    /// Above this amount a payment must be co-signed.
    pub require_co_sign: Option<Usdc>,
    /// After this time payments are refused.
    pub expiry: Option<UnixTime>,
    /// Bit `c` set: category code `c` is blocked.
    pub blocked_categories: u32,
    /// Only listed recipients are paid. With an empty list nobody is.
    pub restricted: bool,
}

/// What bounds a budget, as the rules of the same names bound a vault. `None` is a limit that is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most that any 24 hours may hold.
    pub max_per_day: Option<Usdc>,
    /// Most that a UTC calendar month may hold.
    pub max_per_month: Option<Usdc>,
    /// Most payments that any hour may hold.
    pub velocity_cap: Option<u64>,
}

/// One payment as the rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payment {
    /// The amount.
    pub amount: Usdc,
    /// The recipient, or a domain attested for it, is on the policy's allowlist.
    pub listed: bool,
    /// The recipient's attested category.
    pub category: Category,
    /// The session authority signed, and the operator signed or approved.
    pub co_signed: bool,
}

/// What stops every payment whatever the policy says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The organisation is paused.
    pub paused: bool,
    /// The vault is frozen.
    pub frozen: bool,
}

/// A rule that refuses, with its limit and what the payment would have made of it.
///
/// Micro-USDC for money rules; the number of payments for velocity caps; seconds for `expiry`; the blocked bit set
/// and the category code for `blocked_categories`; zeros where there is nothing to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Its limit.
    pub limit: u64,
    /// What the payment would have made of it.
    pub attempted: u64,
}

/// Why a payment was not authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A rule refuses it.
    Violation(Violation),
    /// The ledger cannot count it.
    Overflow,
}

impl From<Overflow> for Refusal {
    #[inline(always)]
    fn from(_: Overflow) -> Self {
        Refusal::Overflow
    }
}

/// What a vault, or all vaults of a budget, have spent. Laid out for zero-copy use as account data: no padding, every bit pattern valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ledger {
    /// Time of the last payment. Time never runs backwards from here.
    pub last: UnixTime,
    /// The month's spending.
    pub month: Month,
    /// Spending of the last 24 hours.
    pub day: DayWindow,
    /// Number of payments of the last hour.
    pub hour: HourWindow,
}

impl Ledger {
    /// The time that counts: the clock, or the last payment's time where the clock stepped back.
    #[inline(always)]
    pub fn time(&self, clock: UnixTime) -> UnixTime {
        clock.max(self.last)
    }

    /// Records a payment that was authorized by this ledger as it is. Every payment is recorded, also where its rule
    /// is not set, so that setting a rule later finds the truth.
    ///
    /// # Errors
    /// [`Overflow`] when a sum does not fit; the ledger may then be half written and must be thrown away.
    #[inline(always)]
    pub fn charge(&mut self, charge: &Charge) -> Result<(), Overflow> {
        self.day.add_to(charge.day_held, charge.at, charge.amount.0)?;
        self.hour.add_to(charge.hour_held, charge.at, 1)?;
        self.month.add(charge.at, charge.amount)?;
        self.last = charge.at;
        Ok(())
    }

    /// Counts `count` payments of together `amount` as if they were made now: what is handed out and not seen yet. For
    /// previews; a payment is recorded by [`Ledger::charge`].
    ///
    /// # Errors
    /// [`Overflow`] when a sum does not fit; the ledger may then be half written and must be thrown away.
    pub fn count_outstanding(&mut self, clock: UnixTime, amount: Usdc, count: u64) -> Result<(), Overflow> {
        let now = self.time(clock);
        self.day.add(now, amount.0)?;
        self.hour.add(now, count)?;
        self.month.add(now, amount)?;
        self.last = now;
        Ok(())
    }

    /// Where a charge of this time is kept, for [`Ledger::credit`]; to be asked right after [`Ledger::charge`].
    #[inline(always)]
    pub fn place(&self) -> Place {
        Place { day_slot: self.day.newest, month_ends_at: self.month.ends_at }
    }

    /// Takes back `returned` of what was charged at `place`: from the day while its slot is still counted, from the
    /// month if it is still the same; at most what they hold. The hour's count stays: the payment was made.
    ///
    /// Nothing is moved to another slot, so a refund never makes room that the charge itself did not take.
    pub fn credit(&mut self, place: Place, returned: Usdc) {
        self.day.take_back(place.day_slot, returned.0);
        if self.month.ends_at == place.month_ends_at {
            self.month.spent = Usdc(self.month.spent.0.saturating_sub(returned.0));
        }
    }
}

/// Where a charge stands in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Absolute number of the day window's slot.
    pub day_slot: u64,
    /// The month, by its end.
    pub month_ends_at: UnixTime,
}
