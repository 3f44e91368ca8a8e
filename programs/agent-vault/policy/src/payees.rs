//! `new_recipient`: a stranger gets at most `new_recipient_cap` in total, until it is known.

use crate::{
    types::{Payment, Refusal, Rule},
    units::{UnixTime, Usdc},
    Verdict,
};

/// Most known payees that a vault remembers.
pub const KNOWN: usize = 24;
/// Most strangers that a vault remembers.
pub const STRANGERS: usize = 8;
/// Seconds from the first payment to a stranger until it is known.
pub const STRANGER_SECONDS: i64 = 86_400;

/// The first 16 bytes of a payee's address.
pub type Key = [u64; 2];

/// Bits for the changes that a payment makes to its payee's standing.
pub mod change {
    /// The payment is the first one to its payee.
    pub const FIRST_PAID: u8 = 1;
    /// The payee has become known.
    pub const KNOWN: u8 = 2;
}

/// A payee that a vault remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Payee {
    /// The first 16 bytes of its address.
    pub key: Key,
    /// Time of the first payment.
    pub first_paid: UnixTime,
    /// Sum of the payments to the stranger; zero once it was paid as a known payee.
    pub sum: Usdc,
    /// The vault's sequence at the last payment; zero in an empty place.
    pub last_paid: u64,
}

/// The payees that a vault remembers. The layout allows zero-copy use as account data: it has no padding, and every bit
/// pattern is valid. All zero, the lists are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Payees {
    /// The known payees, in no order.
    pub known: [Payee; KNOWN],
    /// The other payees, in no order. A payee stays here after its time as a stranger, until it is paid or another
    /// stranger needs its place.
    pub strangers: [Payee; STRANGERS],
}

/// The place of a payee.
#[derive(Clone, Copy)]
enum Place {
    /// Its index among the known payees.
    Known(usize),
    /// Its index among the strangers.
    Stranger(usize),
    /// The payee has no place. The index points to an empty place or, if there is none, to the oldest stranger.
    New(usize),
}

impl Payee {
    /// Returns the first time at which the payee is known without any consent.
    #[inline(always)]
    fn known_from(&self) -> UnixTime {
        UnixTime(self.first_paid.0.saturating_add(STRANGER_SECONDS))
    }

    #[inline(always)]
    fn is(&self, key: Key) -> bool {
        let [first, second] = key;
        self.key[0] == first && self.key[1] == second && self.last_paid != 0
    }
}

/// Returns the index of the payee with the lowest number, and of several the first one. The index is compared together
/// with the number, which halves the cost. Numbers have less than 59 bits.
#[inline(always)]
fn lowest(payees: &[Payee], number: impl Fn(&Payee) -> u64) -> usize {
    const BITS: u32 = (KNOWN + STRANGERS).trailing_zeros();
    let mut least = u64::MAX;
    for (at, payee) in payees.iter().enumerate() {
        least = least.min(number(payee) << BITS | at as u64);
    }
    (least & ((1 << BITS) - 1)) as usize
}

impl Payees {
    #[inline(always)]
    fn place(&self, key: Key) -> Place {
        if let Some(at) = self.known.iter().position(|payee| payee.is(key)) {
            return Place::Known(at);
        }
        match self.strangers.iter().position(|payee| payee.is(key)) {
            Some(at) => Place::Stranger(at),
            None => Place::New(lowest(&self.strangers, |payee| payee.first_paid.seconds())),
        }
    }

    #[inline(always)]
    fn stranger(&self, at: usize) -> Payee {
        self.strangers.get(at).copied().unwrap_or_default()
    }

    /// Returns the verdict on `payment` at the time `now` for a payee with this place.
    #[inline(always)]
    fn judge(&self, place: Place, cap: Usdc, payment: &Payment, now: UnixTime) -> Verdict {
        let (limit, sum, retry_at) = match place {
            Place::Known(_) => return free(cap, payment),
            Place::Stranger(at) => {
                let stranger = self.stranger(at);
                if stranger.known_from() <= now {
                    return free(cap, payment);
                }
                (cap, stranger.sum, Some(stranger.known_from()))
            }
            Place::New(at) => {
                let oldest = self.stranger(at);
                if oldest.last_paid == 0 || oldest.known_from() <= now {
                    (cap, Usdc(0), None)
                } else {
                    (Usdc(0), Usdc(0), (payment.amount <= cap).then(|| oldest.known_from()))
                }
            }
        };
        capped(limit, sum, payment, retry_at)
    }

    /// Judges `payment` at the vault's time `now`, and records it. `sequence` is the number of the change of the vault.
    /// Call this for payees that are not listed. Returns the bits of [`change`].
    ///
    /// # Errors
    /// [`Refusal::Violation`] of [`Rule::NewRecipient`]; the lists are then unchanged.
    #[inline(always)]
    pub fn pay(
        &mut self,
        cap: Usdc,
        key: Key,
        payment: &Payment,
        now: UnixTime,
        sequence: u64,
    ) -> Result<u8, Refusal> {
        let place = self.place(key);
        self.judge(place, cap, payment, now).refuse()?;
        let new = Payee { key, first_paid: now, sum: Usdc(0), last_paid: sequence };
        match place {
            Place::Known(at) => {
                let Some(payee) = self.known.get_mut(at) else { return Ok(0) };
                let unnoticed = payee.sum.0 > 0;
                (payee.last_paid, payee.sum) = (sequence, Usdc(0));
                Ok(if unnoticed { change::KNOWN } else { 0 })
            }
            Place::Stranger(at) => {
                let Some(payee) = self.strangers.get_mut(at) else { return Ok(0) };
                if payment.co_signed || payee.known_from() <= now {
                    let first_paid = payee.first_paid;
                    *payee = Payee::default();
                    self.learn(Payee { first_paid, ..new });
                    return Ok(change::KNOWN);
                }
                payee.last_paid = sequence;
                payee.sum = Usdc(payee.sum.0.saturating_add(payment.amount.0));
                Ok(0)
            }
            Place::New(_) if payment.co_signed => {
                self.learn(new);
                Ok(change::FIRST_PAID | change::KNOWN)
            }
            Place::New(at) => {
                let Some(place) = self.strangers.get_mut(at) else { return Ok(0) };
                let oldest = core::mem::replace(place, Payee { sum: payment.amount, ..new });
                if oldest.last_paid != 0 {
                    self.learn(oldest);
                }
                Ok(change::FIRST_PAID)
            }
        }
    }

    /// Adds a known payee in place of the least recently paid one, unless that was paid more recently than the new one.
    #[inline(always)]
    fn learn(&mut self, payee: Payee) {
        let at = lowest(&self.known, |payee| payee.last_paid);
        if let Some(least) = self.known.get_mut(at).filter(|least| least.last_paid < payee.last_paid) {
            *least = payee;
        }
    }

    /// Forgets a payee that is known at the time `now`, and returns the time of its first payment. A stranger is not
    /// forgotten, because it would get the cap a second time.
    pub fn forget(&mut self, key: Key, now: UnixTime) -> Option<UnixTime> {
        let known =
            self.known.iter_mut().chain(self.strangers.iter_mut().filter(|one| one.known_from() <= now));
        let payee = known.into_iter().find(|payee| payee.is(key))?;
        Some(core::mem::take(payee).first_paid)
    }
}

/// The rule `new_recipient`, with the lists and the payee that it judges.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRecipient<'a> {
    /// The cap; `None` if the rule is not set.
    pub cap: Option<Usdc>,
    /// The vault's lists. Missing lists count as empty ones.
    pub payees: Option<&'a Payees>,
    /// The payee.
    pub key: Key,
}

impl NewRecipient<'_> {
    /// Returns the verdict on a payment at the vault's time `now`.
    pub(crate) fn check(&self, payment: &Payment, now: UnixTime) -> Verdict {
        match (self.cap, self.payees) {
            (None, _) => Verdict::unset(Rule::NewRecipient),
            (Some(cap), _) if payment.listed => free(cap, payment),
            (Some(cap), None) => capped(cap, Usdc(0), payment, None),
            (Some(cap), Some(payees)) => payees.judge(payees.place(self.key), cap, payment, now),
        }
    }
}

/// Returns the verdict on a payment to a known payee.
#[inline(always)]
fn free(cap: Usdc, payment: &Payment) -> Verdict {
    Verdict::set(Rule::NewRecipient, true, cap.0, payment.amount.0, u64::MAX)
}

/// Returns the verdict on a payment to a stranger that got `sum` before, of `limit` in total. The limit is zero if no
/// further stranger has a place.
#[inline(always)]
fn capped(limit: Usdc, sum: Usdc, payment: &Payment, retry_at: Option<UnixTime>) -> Verdict {
    let headroom = limit.0.saturating_sub(sum.0);
    let attempted = sum.0.saturating_add(payment.amount.0);
    let passed = payment.amount.0 <= headroom || payment.co_signed;
    Verdict { retry_at, ..Verdict::set(Rule::NewRecipient, passed, limit.0, attempted, headroom) }
}

#[cfg(test)]
#[path = "payee_tests.rs"]
mod tests;
