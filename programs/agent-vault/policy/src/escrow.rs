//! The life of an escrow: locked until it is completed, refunded after its deadline, or disputed and then decided.
//!
//! After [`Escrow::complete`], [`Escrow::refund`] or [`Escrow::resolve`], the caller closes the escrow or marks it as
//! decided, so that no escrow settles twice. Every escrow can eventually be settled: a locked one can be refunded from
//! its deadline on, a disputed one [`UNDECIDED_SECONDS`] after the dispute. Each side raises at most one dispute in an
//! escrow's life, withdrawn or not, so a refund cannot be postponed forever. If a side cannot be paid after a split, a
//! decided escrow remains and holds that side's share; nothing else about it is left to decide.

use crate::units::{UnixTime, Usdc};

/// Shortest time that the receiver gets for completion, in seconds.
pub const MIN_TIMEOUT_SECONDS: u32 = 60;
/// Longest time that the receiver gets for completion, in seconds: 30 days.
pub const MAX_TIMEOUT_SECONDS: u32 = 30 * 86_400;
/// Seconds from a dispute until the escrow may be refunded if the arbiter has not decided: 30 days.
pub const UNDECIDED_SECONDS: i64 = 30 * 86_400;

/// A side of an escrow. The discriminants are the bits of [`Escrow::raised`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Side {
    /// The vault that pays.
    Requester = 1,
    /// The address that is paid on completion.
    Receiver = 2,
}

/// An escrow that is not settled yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escrow {
    /// The locked amount.
    pub amount: Usdc,
    /// The deadline: before it, the escrow can be completed or disputed; from it on, refunded. A dispute stops the
    /// clock.
    pub deadline: UnixTime,
    /// The time of the dispute, if the escrow is disputed.
    pub disputed_at: Option<UnixTime>,
    /// The sides that have raised a dispute, withdrawn or not, as the bits of [`Side`].
    pub raised: u8,
    /// True if the arbiter has split the escrow, but a side could not be paid and its share is still in the escrow.
    pub decided: bool,
}

/// The way an escrow ended. The discriminants are the codes used on-chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Completion was proved before the deadline.
    Completed = 1,
    /// The deadline passed without a completion.
    TimedOut = 2,
    /// The arbiter awarded the whole amount to the receiver.
    Released = 3,
    /// The arbiter returned the whole amount to the requester.
    Refunded = 4,
    /// The arbiter split the amount.
    Split = 5,
    /// The arbiter did not decide in time.
    Undecided = 6,
}

/// The division of an escrow's locked amount between its two sides. `released + refunded` equals that amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The way the escrow ended.
    pub outcome: Outcome,
    /// The receiver's share.
    pub released: Usdc,
    /// The requester's share.
    pub refunded: Usdc,
}

/// The reason why an escrow's state does not permit an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscrowRefusal {
    /// The deadline has passed.
    Expired,
    /// The time for a refund has not come yet.
    NotExpired,
    /// The escrow is already disputed.
    Disputed,
    /// This side has already raised its dispute.
    RaisedBefore,
    /// The escrow is not disputed.
    NotDisputed,
    /// The amount to release exceeds the locked amount.
    ExceedsAmount,
    /// The arbiter has already split the escrow. Only a share that could not be paid is left to be collected.
    Decided,
}

impl Escrow {
    /// Returns the deadline of an escrow created at `now`, or `None` if the timeout is out of range.
    #[inline(always)]
    pub fn deadline(now: UnixTime, timeout_seconds: u32) -> Option<UnixTime> {
        let in_range = (MIN_TIMEOUT_SECONDS..=MAX_TIMEOUT_SECONDS).contains(&timeout_seconds);
        in_range.then(|| UnixTime(now.0.saturating_add(i64::from(timeout_seconds))))
    }

    /// Releases the whole amount to the receiver before the deadline. The caller must verify the proof of completion.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`] if the arbiter has already split the escrow; [`EscrowRefusal::Disputed`] while it is
    /// disputed; [`EscrowRefusal::Expired`] from the deadline on.
    #[inline(always)]
    pub fn complete(self, now: UnixTime) -> Result<Settlement, EscrowRefusal> {
        self.open_at(now)?;
        Ok(self.settle(Outcome::Completed, self.amount))
    }

    /// Refunds the whole amount to the requester. Allowed from the deadline on or, while the escrow is disputed, from
    /// [`UNDECIDED_SECONDS`] after the dispute on.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`] if the arbiter has already split the escrow; [`EscrowRefusal::NotExpired`] before the
    /// time of a refund.
    #[inline(always)]
    pub fn refund(self, now: UnixTime) -> Result<Settlement, EscrowRefusal> {
        let (from, outcome) = match self.disputed_at {
            None => (self.deadline, Outcome::TimedOut),
            Some(at) => (UnixTime(at.0.saturating_add(UNDECIDED_SECONDS)), Outcome::Undecided),
        };
        self.undecided()?;
        if now < from {
            return Err(EscrowRefusal::NotExpired);
        }
        Ok(self.settle(outcome, Usdc(0)))
    }

    /// Stops the deadline until the arbiter decides or the dispute is withdrawn. [`UNDECIDED_SECONDS`] later, an
    /// undecided escrow can be refunded. Allowed before the deadline, and once per side.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`] if the arbiter has already split the escrow; [`EscrowRefusal::Disputed`] while it is
    /// already disputed; [`EscrowRefusal::Expired`] from the deadline on; [`EscrowRefusal::RaisedBefore`] if this side
    /// has raised a dispute before.
    #[inline(always)]
    pub fn dispute(self, now: UnixTime, side: Side) -> Result<Self, EscrowRefusal> {
        self.open_at(now)?;
        let raised = self.raised | side as u8;
        if raised == self.raised {
            return Err(EscrowRefusal::RaisedBefore);
        }
        Ok(Escrow { disputed_at: Some(now), raised, ..self })
    }

    /// Withdraws the dispute and sets a new deadline, which gives the receiver the time that was left when the dispute
    /// was raised.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`] if the arbiter has already split the escrow; [`EscrowRefusal::NotDisputed`] if there
    /// is no dispute to withdraw.
    #[inline(always)]
    pub fn withdraw_dispute(self, now: UnixTime) -> Result<Self, EscrowRefusal> {
        self.undecided()?;
        let UnixTime(at) = self.disputed_at.ok_or(EscrowRefusal::NotDisputed)?;
        let remaining = self.deadline.0.saturating_sub(at);
        Ok(Escrow { deadline: UnixTime(now.0.saturating_add(remaining)), disputed_at: None, ..self })
    }

    /// Divides a disputed escrow by the arbiter's decision: `released` for the receiver, the rest for the requester.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`] if the arbiter has already split the escrow; [`EscrowRefusal::NotDisputed`] if it is
    /// not disputed; [`EscrowRefusal::ExceedsAmount`] if `released` exceeds the locked amount.
    #[inline(always)]
    pub fn resolve(self, released: Usdc) -> Result<Settlement, EscrowRefusal> {
        self.undecided()?;
        if self.disputed_at.is_none() {
            return Err(EscrowRefusal::NotDisputed);
        }
        if released > self.amount {
            return Err(EscrowRefusal::ExceedsAmount);
        }
        let outcome = if released == self.amount {
            Outcome::Released
        } else if released.0 == 0 {
            Outcome::Refunded
        } else {
            Outcome::Split
        };
        Ok(self.settle(outcome, released))
    }

    fn undecided(&self) -> Result<(), EscrowRefusal> {
        if self.decided {
            return Err(EscrowRefusal::Decided);
        }
        Ok(())
    }

    fn open_at(&self, now: UnixTime) -> Result<(), EscrowRefusal> {
        self.undecided()?;
        if self.disputed_at.is_some() {
            return Err(EscrowRefusal::Disputed);
        }
        if now >= self.deadline {
            return Err(EscrowRefusal::Expired);
        }
        Ok(())
    }

    /// Divides the amount. Every caller has checked that `released` is at most the amount.
    fn settle(self, outcome: Outcome, released: Usdc) -> Settlement {
        Settlement { outcome, released, refunded: Usdc(self.amount.0.saturating_sub(released.0)) }
    }
}

#[cfg(test)]
#[path = "escrow_tests.rs"]
mod tests;
