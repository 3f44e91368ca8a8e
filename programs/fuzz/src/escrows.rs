//! The life of an escrow under lists of random actions, checked against a model that counts the seconds left.

use crate::{inputs, start, Step};
use agent_vault_policy::{
    escrow::{Escrow, EscrowRefusal, Outcome, Settlement, Side},
    UnixTime, Usdc,
};
use bolero::TypeGenerator;

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Deed {
    Complete,
    Refund,
    Dispute { receiver: bool },
    Withdraw,
    Resolve { eighths: u8, more: bool },
}

/// The time of an action: one step of the clock later, or within seconds of a time at which the escrow's state changes.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum When {
    After(Step),
    AtDeadline(i8),
    AtEndOfDispute(i8),
}

impl When {
    fn from(self, now: i64, life: &Life) -> i64 {
        let near = |time: i64, more: i8| time + i64::from(more % 2);
        match self {
            When::After(step) => step.from(now),
            When::AtDeadline(more) => near(life.running_since + life.left, more),
            When::AtEndOfDispute(more) => near(life.disputed_since.unwrap_or(now) + 30 * 86_400, more),
        }
    }
}

/// The model: an escrow runs for a number of seconds, not counting the time in dispute.
struct Life {
    amount: u64,
    /// Seconds left, counted from `running_since`.
    left: i64,
    running_since: i64,
    disputed_since: Option<i64>,
    /// True at index 0 if the requester has raised a dispute, at index 1 if the receiver has.
    raised: [bool; 2],
    decided: bool,
}

impl Life {
    fn is_over(&self, now: i64) -> bool {
        now - self.running_since >= self.left
    }

    /// Returns the effect of an action: the escrow's outcome, its continuation, or the reason for a refusal.
    fn judge(&self, deed: Deed, now: i64, released: u64) -> Result<Option<(Outcome, u64)>, EscrowRefusal> {
        use EscrowRefusal::*;
        match (deed, self.disputed_since) {
            _ if self.decided => Err(Decided),
            (Deed::Complete | Deed::Dispute { .. }, Some(_)) => Err(Disputed),
            (Deed::Complete | Deed::Dispute { .. }, None) if self.is_over(now) => Err(Expired),
            (Deed::Complete, None) => Ok(Some((Outcome::Completed, self.amount))),
            (Deed::Dispute { receiver }, None) if self.raised[usize::from(receiver)] => Err(RaisedBefore),
            (Deed::Dispute { .. }, None) => Ok(None),
            (Deed::Refund, None) if self.is_over(now) => Ok(Some((Outcome::TimedOut, 0))),
            (Deed::Refund, Some(since)) if now - since >= 30 * 86_400 => Ok(Some((Outcome::Undecided, 0))),
            (Deed::Refund, _) => Err(NotExpired),
            (Deed::Withdraw | Deed::Resolve { .. }, None) => Err(NotDisputed),
            (Deed::Withdraw, Some(_)) => Ok(None),
            (Deed::Resolve { .. }, Some(_)) if released > self.amount => Err(ExceedsAmount),
            (Deed::Resolve { .. }, Some(_)) if released == self.amount => {
                Ok(Some((Outcome::Released, released)))
            }
            (Deed::Resolve { .. }, Some(_)) if released == 0 => Ok(Some((Outcome::Refunded, 0))),
            (Deed::Resolve { .. }, Some(_)) => Ok(Some((Outcome::Split, released))),
        }
    }
}

#[test]
fn an_escrow_lives_as_a_list_of_its_deeds_says() {
    let lives = bolero::check!().with_type::<(u32, u32, u64, bool, Vec<(When, Deed)>)>();
    lives.with_iterations(inputs(20)).for_each(|(offset, timeout, amount, decided, deeds)| {
        let (made, timeout) = (start(*offset), timeout % 3_000_000);
        let deadline = Escrow::deadline(UnixTime(made), timeout);
        let in_range = (60..=2_592_000).contains(&timeout);
        assert_eq!(deadline, in_range.then(|| UnixTime(made + i64::from(timeout))));
        let Some(deadline) = deadline else { return };
        let mut escrow =
            Escrow { amount: Usdc(*amount), deadline, disputed_at: None, raised: 0, decided: false };
        let mut life = Life {
            amount: *amount,
            left: timeout.into(),
            running_since: made,
            disputed_since: None,
            raised: [false; 2],
            decided: false,
        };
        let mut now = made;
        for (when, deed) in deeds {
            now = when.from(now, &life);
            let released = match deed {
                Deed::Resolve { eighths, more } => {
                    let part = u128::from(*amount) * u128::from(eighths % 9) / 8;
                    u64::try_from(part).unwrap().saturating_add(u64::from(*more))
                }
                _ => 0,
            };
            let at = UnixTime(now);
            let done: Result<Result<Escrow, Settlement>, EscrowRefusal> = match deed {
                Deed::Complete => escrow.complete(at).map(Err),
                Deed::Refund => escrow.refund(at).map(Err),
                Deed::Dispute { receiver } => {
                    escrow.dispute(at, if *receiver { Side::Receiver } else { Side::Requester }).map(Ok)
                }
                Deed::Withdraw => escrow.withdraw_dispute(at).map(Ok),
                Deed::Resolve { .. } => escrow.resolve(Usdc(released)).map(Err),
            };
            match (done, life.judge(*deed, now, released)) {
                (Err(found), Err(expected)) => assert_eq!(found, expected),
                (Ok(Ok(next)), Ok(None)) => {
                    if let Some(since) = life.disputed_since.take() {
                        life.left -= since - life.running_since;
                        life.running_since = now;
                    } else {
                        life.disputed_since = Some(now);
                        if let Deed::Dispute { receiver } = deed {
                            life.raised[usize::from(*receiver)] = true;
                        }
                    }
                    escrow = next;
                }
                (Ok(Err(found)), Ok(Some((outcome, released)))) => {
                    let refunded = Usdc(amount - released);
                    assert_eq!(found, Settlement { outcome, released: Usdc(released), refunded });
                    if outcome != Outcome::Split || !decided {
                        return;
                    }
                    escrow.decided = true;
                    life.decided = true;
                }
                (found, expected) => panic!("{deed:?}: {found:?} instead of {expected:?}"),
            }
        }
    });
}
