//! The life of an escrow: locked until it is completed, refunded after its deadline, or disputed and then decided.
//!
//! [`Escrow::complete`], [`Escrow::refund`] and [`Escrow::resolve`] take the escrow by value: what is settled is gone,
//! so nothing settles twice. Whatever happens, some way to settle opens with time: a locked escrow can be refunded
//! from its deadline on, a disputed one [`UNDECIDED_SECONDS`] after the dispute. Each side raises at most one dispute in an
//! escrow's life, withdrawn or not, so nobody puts these times off for ever. A side that cannot be paid after a split
//! leaves a decided escrow behind, of which nothing but that share is still to be decided.

use crate::units::{UnixTime, Usdc};

/// Shortest time that the receiver gets, in seconds.
pub const MIN_TIMEOUT_SECONDS: u32 = 60;
/// Longest time that the receiver gets, in seconds: 30 days.
pub const MAX_TIMEOUT_SECONDS: u32 = 30 * 86_400;
/// Seconds after which a dispute that the arbiter has not decided may be refunded: 30 days.
pub const UNDECIDED_SECONDS: i64 = 30 * 86_400;

/// A side of an escrow. The discriminants are the bits of [`Escrow::raised`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Side {
    /// The vault that pays.
    Requester = 1,
    /// Who is paid on completion.
    Receiver = 2,
}

/// An escrow that is not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escrow {
    /// What was locked.
    pub amount: Usdc,
    /// Up to this time it can be completed or disputed; from it on refunded.
    pub deadline: UnixTime,
    /// When it was disputed.
    pub disputed_at: Option<UnixTime>,
    /// The sides that have raised a dispute, withdrawn or not: the bits of [`Side`].
    pub raised: u8,
    /// The arbiter has split it, and a share waits for a side that could not be paid.
    pub decided: bool,
}

/// How an escrow ended. The discriminants are the codes used on-chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// The receiver proved completion.
    Completed = 1,
    /// Its deadline passed.
    TimedOut = 2,
    /// The arbiter gave all of it to the receiver.
    Released = 3,
    /// The arbiter gave all of it back to the requester.
    Refunded = 4,
    /// The arbiter split it.
    Split = 5,
    /// The arbiter did not decide in time.
    Undecided = 6,
}

/// Who gets what: `released + refunded` is what was locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// How it ended.
    pub outcome: Outcome,
    /// The receiver's part.
    pub released: Usdc,
    /// The requester's part.
    pub refunded: Usdc,
}

/// Why an escrow is not in the state for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscrowRefusal {
    /// The deadline has passed.
    Expired,
    /// The time for a refund has not come.
    NotExpired,
    /// It is disputed already.
    Disputed,
    /// The side has raised its dispute before.
    RaisedBefore,
    /// It is not disputed.
    NotDisputed,
    /// More was to be released than is locked.
    ExceedsAmount,
    /// It is decided: what is left of it is a share that is collected.
    Decided,
}

impl Escrow {
    /// The deadline of an escrow made at `now`; `None` when the timeout is out of range.
    #[inline(always)]
    pub fn deadline(now: UnixTime, timeout_seconds: u32) -> Option<UnixTime> {
        let in_range = (MIN_TIMEOUT_SECONDS..=MAX_TIMEOUT_SECONDS).contains(&timeout_seconds);
        in_range.then(|| UnixTime(now.0.saturating_add(i64::from(timeout_seconds))))
    }

    /// Releases everything to the receiver, whose proof was found right, before the deadline.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`], [`EscrowRefusal::Disputed`], [`EscrowRefusal::Expired`].
    #[inline(always)]
    pub fn complete(self, now: UnixTime) -> Result<Settlement, EscrowRefusal> {
        self.open_at(now)?;
        Ok(self.settle(Outcome::Completed, self.amount))
    }

    /// Gives everything back: from the deadline on, or when a dispute was not decided in time.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`], [`EscrowRefusal::NotExpired`].
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

    /// Stops the deadline until the arbiter decides, or the dispute is withdrawn. Before the deadline, and once for a side.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`], [`EscrowRefusal::Disputed`], [`EscrowRefusal::Expired`],
    /// [`EscrowRefusal::RaisedBefore`].
    #[inline(always)]
    pub fn dispute(self, now: UnixTime, side: Side) -> Result<Self, EscrowRefusal> {
        self.open_at(now)?;
        let raised = self.raised | side as u8;
        if raised == self.raised {
            return Err(EscrowRefusal::RaisedBefore);
        }
        Ok(Escrow { disputed_at: Some(now), raised, ..self })
    }

    /// Lets the deadline run on: the receiver gets the time that was left when the dispute was raised.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`], [`EscrowRefusal::NotDisputed`].
    #[inline(always)]
    pub fn withdraw_dispute(self, now: UnixTime) -> Result<Self, EscrowRefusal> {
        self.undecided()?;
        let UnixTime(at) = self.disputed_at.ok_or(EscrowRefusal::NotDisputed)?;
        let remaining = self.deadline.0.saturating_sub(at);
        Ok(Escrow { deadline: UnixTime(now.0.saturating_add(remaining)), disputed_at: None, ..self })
    }

    /// Divides a disputed escrow as the arbiter decides.
    ///
    /// # Errors
    /// [`EscrowRefusal::Decided`], [`EscrowRefusal::NotDisputed`], [`EscrowRefusal::ExceedsAmount`].
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

    /// `released` is at most the amount: every caller has seen to it.
    fn settle(self, outcome: Outcome, released: Usdc) -> Settlement {
        Settlement { outcome, released, refunded: Usdc(self.amount.0.saturating_sub(released.0)) }
    }
}

#[cfg(test)]
#[path = "escrow_tests.rs"]
mod tests;
