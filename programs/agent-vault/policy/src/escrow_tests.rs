//! Every sequence of up to four actions on an escrow, at every relevant time, checked against a table of expected
//! results.
#![allow(clippy::arithmetic_side_effects)] // small numbers

extern crate std;

use super::*;
use std::vec;

const AMOUNT: u64 = 100;
const MADE: i64 = 1_000_000;

fn locked() -> Escrow {
    let deadline = Escrow::deadline(UnixTime(MADE), MIN_TIMEOUT_SECONDS).unwrap();
    Escrow { amount: Usdc(AMOUNT), deadline, disputed_at: None, raised: 0, decided: false }
}

/// The actions on an escrow.
#[derive(Clone, Copy, Debug)]
enum Move {
    Complete,
    Refund,
    Dispute(Side),
    Withdraw,
    Resolve(u64),
}

const MOVES: [Move; 9] = [
    Move::Complete,
    Move::Refund,
    Move::Dispute(Side::Requester),
    Move::Dispute(Side::Receiver),
    Move::Withdraw,
    Move::Resolve(0),
    Move::Resolve(AMOUNT - 1),
    Move::Resolve(AMOUNT),
    Move::Resolve(AMOUNT + 1),
];

/// The model: two states, and the actions that each allows at a time. `deadline` is the current deadline, `raised` the
/// sides that have raised a dispute.
fn expected(
    deadline: i64,
    disputed_at: Option<i64>,
    raised: &[Side],
    asked: Move,
    now: i64,
) -> Result<Option<(Outcome, u64)>, EscrowRefusal> {
    match (disputed_at, asked) {
        (Some(_), Move::Complete | Move::Dispute(_)) => Err(EscrowRefusal::Disputed),
        (None, Move::Complete | Move::Dispute(_)) if now >= deadline => Err(EscrowRefusal::Expired),
        (None, Move::Complete) => Ok(Some((Outcome::Completed, AMOUNT))),
        (None, Move::Dispute(side)) if raised.contains(&side) => Err(EscrowRefusal::RaisedBefore),
        (None, Move::Dispute(_)) | (Some(_), Move::Withdraw) => Ok(None),
        (None, Move::Refund) if now >= deadline => Ok(Some((Outcome::TimedOut, 0))),
        (Some(at), Move::Refund) if now >= at + UNDECIDED_SECONDS => Ok(Some((Outcome::Undecided, 0))),
        (_, Move::Refund) => Err(EscrowRefusal::NotExpired),
        (None, Move::Resolve(_) | Move::Withdraw) => Err(EscrowRefusal::NotDisputed),
        (Some(_), Move::Resolve(0)) => Ok(Some((Outcome::Refunded, 0))),
        (Some(_), Move::Resolve(AMOUNT)) => Ok(Some((Outcome::Released, AMOUNT))),
        (Some(_), Move::Resolve(part)) if part < AMOUNT => Ok(Some((Outcome::Split, part))),
        (Some(_), Move::Resolve(_)) => Err(EscrowRefusal::ExceedsAmount),
    }
}

/// Returns the escrow after a move, or its settlement.
fn ask(escrow: Escrow, asked: Move, now: UnixTime) -> Result<Result<Escrow, Settlement>, EscrowRefusal> {
    match asked {
        Move::Complete => escrow.complete(now).map(Err),
        Move::Refund => escrow.refund(now).map(Err),
        Move::Dispute(side) => escrow.dispute(now, side).map(Ok),
        Move::Withdraw => escrow.withdraw_dispute(now).map(Ok),
        Move::Resolve(released) => escrow.resolve(Usdc(released)).map(Err),
    }
}

fn walk(
    escrow: Escrow,
    deadline: i64,
    disputed_at: Option<i64>,
    raised: &[Side],
    now: i64,
    depth: u32,
    settled: &mut u32,
) {
    if depth == 0 {
        return;
    }
    let mut times = vec![now, now + 1, deadline - 1, deadline, deadline + 1];
    if let Some(at) = disputed_at {
        times.extend([at + UNDECIDED_SECONDS - 1, at + UNDECIDED_SECONDS]);
    }
    for time in times.into_iter().filter(|time| *time >= now) {
        for asked in MOVES {
            let found = ask(escrow, asked, UnixTime(time));
            match (found, expected(deadline, disputed_at, raised, asked, time)) {
                (Ok(Err(settlement)), Ok(Some((outcome, released)))) => {
                    assert_eq!(settlement.outcome, outcome, "{asked:?} at {time}");
                    assert_eq!(settlement.released.0, released, "{asked:?} at {time}");
                    assert_eq!(settlement.released.0 + settlement.refunded.0, AMOUNT);
                    *settled += 1;
                }
                (Ok(Ok(after)), Ok(None)) => {
                    // A withdrawal restores the time that was left when the dispute was raised.
                    let (deadline, since) =
                        disputed_at.map_or((deadline, Some(time)), |at| (time + deadline - at, None));
                    let mut raised = vec::Vec::from(raised);
                    if let Move::Dispute(side) = asked {
                        raised.push(side);
                    }
                    let expected = Escrow {
                        deadline: UnixTime(deadline),
                        disputed_at: since.map(UnixTime),
                        raised: raised.iter().map(|side| *side as u8).sum(),
                        ..escrow
                    };
                    assert_eq!(after, expected, "{asked:?} at {time}");
                    walk(after, deadline, since, &raised, time, depth - 1, settled);
                }
                (Err(refusal), Err(expected)) => {
                    assert_eq!(refusal, expected, "{asked:?} at {time}");
                    walk(escrow, deadline, disputed_at, raised, time, depth - 1, settled);
                }
                other => panic!("{asked:?} at {time}: {other:?}"),
            }
        }
    }
}

#[test]
fn every_sequence_of_moves_does_what_the_model_allows() {
    let mut settled = 0;
    walk(locked(), locked().deadline.0, None, &[], MADE, 4, &mut settled);
    assert!(settled > 100_000, "{settled}");
}

#[test]
fn whatever_was_done_before_some_way_to_settle_opens() {
    let late = UnixTime(i64::from(MAX_TIMEOUT_SECONDS) + MADE + UNDECIDED_SECONDS);
    assert!(locked().refund(late).is_ok());
    let disputed = locked().dispute(UnixTime(MADE), Side::Receiver).unwrap();
    assert!(disputed.refund(late).is_ok());
    assert!(disputed.resolve(Usdc(0)).is_ok());
}

#[test]
fn each_side_puts_the_end_off_once() {
    let mut escrow = locked();
    let mut now = MADE;
    for side in [Side::Receiver, Side::Requester] {
        escrow = escrow.dispute(UnixTime(now), side).unwrap();
        now += UNDECIDED_SECONDS - 1;
        assert_eq!(escrow.refund(UnixTime(now)), Err(EscrowRefusal::NotExpired));
        escrow = escrow.withdraw_dispute(UnixTime(now)).unwrap();
        assert_eq!(escrow.dispute(UnixTime(now), side), Err(EscrowRefusal::RaisedBefore));
    }
    assert_eq!(escrow.dispute(UnixTime(now), Side::Receiver), Err(EscrowRefusal::RaisedBefore));
    assert_eq!(escrow.refund(escrow.deadline).unwrap().outcome, Outcome::TimedOut);
}

#[test]
fn a_dispute_is_left_undecided_for_thirty_days() {
    let disputed = locked().dispute(UnixTime(MADE), Side::Receiver).unwrap();
    assert!(disputed.refund(UnixTime(MADE + 2_592_000 - 1)).is_err());
    assert!(disputed.refund(UnixTime(MADE + 2_592_000)).is_ok());
}

#[test]
fn the_least_part_is_a_split() {
    let disputed = locked().dispute(UnixTime(MADE), Side::Receiver).unwrap();
    assert_eq!(disputed.resolve(Usdc(1)).unwrap().outcome, Outcome::Split);
}

#[test]
fn timeouts_are_from_a_minute_to_thirty_days() {
    let deadline = |timeout| Escrow::deadline(UnixTime(MADE), timeout);
    assert_eq!(deadline(59), None);
    assert_eq!(deadline(60), Some(UnixTime(MADE + 60)));
    assert_eq!(deadline(2_592_000), Some(UnixTime(MADE + 2_592_000)));
    assert_eq!(deadline(2_592_001), None);
}

#[test]
fn times_at_the_end_of_64_bits_do_not_wrap() {
    assert_eq!(Escrow::deadline(UnixTime(i64::MAX), 60), Some(UnixTime(i64::MAX)));
    let escrow = Escrow { disputed_at: Some(UnixTime(i64::MAX)), ..locked() };
    assert!(escrow.refund(UnixTime(i64::MAX - 1)).is_err());
}

#[test]
fn a_decided_escrow_allows_nothing_more() {
    let late = UnixTime(i64::from(MAX_TIMEOUT_SECONDS) + MADE + UNDECIDED_SECONDS);
    for disputed_at in [None, Some(UnixTime(MADE))] {
        let decided = Escrow { disputed_at, decided: true, ..locked() };
        for time in [UnixTime(MADE), late] {
            for asked in MOVES {
                assert_eq!(ask(decided, asked, time), Err(EscrowRefusal::Decided), "{asked:?}");
            }
        }
    }
}
