//! Records of the policy: rules, payments, refusals, and the ledger of spending.

use crate::{
    units::{Month, UnixTime, Usdc},
    window::{DayWindow, HourWindow, Overflow},
    Charge,
};

/// The code of a recipient's category, below [`CATEGORIES`]. Zero is `uncategorized`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Category(pub u8);

/// The number of category codes.
pub const CATEGORIES: u8 = 20;

/// A rule that can refuse a payment. The discriminants are the codes used on-chain; new ones are only appended. For the
/// order of judgement see [`crate::authorize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// The organisation has stopped all payments.
    Paused = 0,
    /// The vault is frozen.
    Frozen = 1,
    /// The policy has expired.
    Expiry = 2,
    /// The recipient is not on the policy's allowlist.
    AllowedRecipients = 3,
    /// The recipient's category is blocked.
    BlockedCategories = 4,
    /// The amount is above the maximum for one payment.
    MaxPerTx = 5,
    /// The payment would exceed the maximum number of payments in an hour.
    VelocityCap = 6,
    /// The payment would exceed the maximum spending in 24 hours.
    MaxPerDay = 7,
    /// The payment would exceed the maximum spending in the UTC calendar month.
    MaxPerMonth = 8,
    /// The amount is above the threshold and lacks a co-signature. This rule is judged after the preceding and
    /// the budgets' rules, so that no operator is asked to approve a payment that another rule refuses anyway.
    RequireCoSign = 9,
    /// The payment would exceed the shared budget's maximum spending in 24 hours.
    BudgetMaxPerDay = 10,
    /// The payment would exceed the shared budget's maximum spending in the UTC calendar month.
    BudgetMaxPerMonth = 11,
    /// The payment would exceed the shared budget's maximum number of payments in an hour.
    BudgetVelocityCap = 12,
    /// The payment would exceed the maximum spending in the shared budget's life.
    BudgetMaxTotal = 13,
    /// The vault's shared budget has expired.
    BudgetExpired = 14,
    /// The vault's shared budget is frozen.
    BudgetFrozen = 15,
    /// A stranger would get more than the policy's cap, or the vault remembers no further stranger. This rule is judged
    /// after all others.
    NewRecipient = 16,
}

/// The level that sets a rule. The discriminants are the codes used on-chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// The organisation, or the vault with its policy.
    #[default]
    Vault = 0,
    /// The vault's budget.
    Budget = 1,
    /// The parent of the vault's budget.
    Parent = 2,
}

/// The values of a policy. `None` means that a rule is not set; zero is a limit of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Maximum amount of one payment.
    pub max_per_tx: Option<Usdc>,
    /// Maximum spending in any 24 hours.
    pub max_per_day: Option<Usdc>,
    /// Maximum spending in a UTC calendar month.
    pub max_per_month: Option<Usdc>,
    /// Maximum number of payments in any hour.
    pub velocity_cap: Option<u64>,
    /// Threshold for co-signing: larger payments must be co-signed.
    pub require_co_sign: Option<Usdc>,
    /// Last second that still accepts payments.
    pub expiry: Option<UnixTime>,
    /// Blocked categories: bit `c` is set if category code `c` is blocked.
    pub blocked_categories: u32,
    /// True if only listed recipients are paid. With an empty list, every recipient is refused.
    pub restricted: bool,
}

/// The limits of a budget. A limit with the name of a policy rule works like that rule. `None`: the limit is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum spending in any 24 hours.
    pub max_per_day: Option<Usdc>,
    /// Maximum spending in a UTC calendar month.
    pub max_per_month: Option<Usdc>,
    /// Maximum number of payments in any hour.
    pub velocity_cap: Option<u64>,
    /// Maximum spending in the budget's life.
    pub max_total: Option<Usdc>,
    /// Last second that still accepts payments.
    pub expires_at: Option<UnixTime>,
}

/// One payment, reduced to the facts that the rules judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payment {
    /// The amount.
    pub amount: Usdc,
    /// True if the recipient, or a domain whose attestation for it is in effect, is on the policy's allowlist.
    pub listed: bool,
    /// The category by which the recipient is judged.
    pub category: Category,
    /// True if the session authority signed, and the operator also signed or approved.
    pub co_signed: bool,
}

/// The two states that stop every payment, regardless of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// True if the organisation is paused.
    pub paused: bool,
    /// True if the vault is frozen.
    pub frozen: bool,
}

/// A rule that refuses a payment, with its limit and the value that the payment would have reached.
///
/// Units: micro-USDC for money rules, the number of payments for velocity caps, seconds since the epoch for times.
/// For `blocked_categories`, the limit is the bit set of blocked categories, and the attempted value is the category's
/// code. For rules without a number, both are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The rule's limit.
    pub limit: u64,
    /// The value that the payment would have reached.
    pub attempted: u64,
    /// The level that sets the rule.
    pub level: Level,
}

/// The reason for not authorizing a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A rule refuses the payment.
    Violation(Violation),
    /// A ledger's stored total contradicts its slots, so spending cannot be counted.
    Overflow,
}

impl Refusal {
    /// Returns this refusal with its rule attributed to `level`.
    #[cold]
    pub(crate) fn by(self, level: Level) -> Self {
        match self {
            Refusal::Violation(violation) => Refusal::Violation(Violation { level, ..violation }),
            Refusal::Overflow => self,
        }
    }
}

impl From<Overflow> for Refusal {
    #[inline(always)]
    fn from(_: Overflow) -> Self {
        Refusal::Overflow
    }
}

/// The spending of one vault, or of all vaults of a budget. The layout allows zero-copy use as account data: it has no
/// padding, and every bit pattern is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ledger {
    /// Time of the last payment. The ledger never uses an earlier time, even if the clock steps back.
    pub last: UnixTime,
    /// Spending in the UTC calendar month of the last payment.
    pub month: Month,
    /// Total of the allowances that are not settled yet. It counts towards the limits of both windows until it is
    /// released, because a delegate can spend it at any time.
    pub held: Usdc,
    /// Spending in the last 24 hours.
    pub day: DayWindow,
    /// Number of payments in the last hour.
    pub hour: HourWindow,
}

impl Ledger {
    /// Returns the effective time: the clock, or the time of the last payment if the clock stepped back.
    #[inline(always)]
    pub fn time(&self, clock: UnixTime) -> UnixTime {
        clock.max(self.last)
    }

    /// Records a payment that was authorized against the ledger in its present state. Payments are recorded even for
    /// rules that are not set, so that a rule set later already counts earlier spending.
    ///
    /// # Errors
    /// [`Overflow`] if a sum does not fit. The ledger may then be half written and must be discarded.
    #[inline(always)]
    pub fn charge(&mut self, charge: &Charge) -> Result<(), Overflow> {
        self.day.add_to(charge.day_held, charge.at, charge.amount.0)?;
        self.hour.add_to(charge.hour_held, charge.at, 1)?;
        self.month.add(charge.at, charge.amount)?;
        self.last = charge.at;
        Ok(())
    }

    /// Records an allowance that was authorized against the ledger in its present state. It counts as one payment, and
    /// its amount is held until [`Ledger::release`].
    ///
    /// # Errors
    /// [`Overflow`] if a sum does not fit. The ledger may then be half written and must be discarded.
    pub fn hold(&mut self, charge: &Charge) -> Result<(), Overflow> {
        self.hour.add_to(charge.hour_held, charge.at, 1)?;
        self.held = Usdc(self.held.0.checked_add(charge.amount.0).ok_or(Overflow)?);
        self.last = charge.at;
        Ok(())
    }

    /// Ends the hold of `amount`, and records the part `spent` of it as spending at the time `clock`. Nothing is
    /// judged: window and held money together do not grow, so neither limit can be exceeded by this.
    ///
    /// # Errors
    /// [`Overflow`] if a sum does not fit. The ledger may then be half written and must be discarded.
    pub fn release(&mut self, clock: UnixTime, amount: Usdc, spent: Usdc) -> Result<(), Overflow> {
        self.held = Usdc(self.held.0.saturating_sub(amount.0));
        if spent.0 > 0 {
            self.record(clock, spent, 0)?;
        }
        Ok(())
    }

    /// Counts `count` payments of `amount` in total as made now, without judging them: the outstanding payments of a
    /// preview, or the spending of a settled allowance.
    ///
    /// # Errors
    /// [`Overflow`] if a sum does not fit. The ledger may then be half written and must be discarded.
    pub fn record(&mut self, clock: UnixTime, amount: Usdc, count: u64) -> Result<(), Overflow> {
        let now = self.time(clock);
        self.day.add(now, amount.0)?;
        self.hour.add(now, count)?;
        self.month.add(now, amount)?;
        self.last = now;
        Ok(())
    }

    /// Returns the place of the latest charge, to be passed to [`Ledger::credit`] later. Call this right after
    /// [`Ledger::charge`].
    #[inline(always)]
    pub fn place(&self) -> Place {
        Place { day_slot: self.day.newest, month_ends_at: self.month.ends_at }
    }

    /// Reduces the recorded spending by `returned`, a part of the amount charged at `place`. The day window is reduced
    /// if it still counts the slot of the charge. The month is reduced if it is still the month of the charge. Neither
    /// drops below zero. The hour's count is unchanged, because the payment was made.
    ///
    /// The amount is taken out of the slot and month that it was charged to, so a refund never frees room that the
    /// charge itself did not take.
    pub fn credit(&mut self, place: Place, returned: Usdc) {
        self.day.take_back(place.day_slot, returned.0);
        if self.month.ends_at == place.month_ends_at {
            self.month.spent = Usdc(self.month.spent.0.saturating_sub(returned.0));
        }
    }
}

/// The place of a charge in the ledger: the slot and the month in which it was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Absolute number of the day window's slot.
    pub day_slot: u64,
    /// The month of the charge, identified by its end.
    pub month_ends_at: UnixTime,
}
