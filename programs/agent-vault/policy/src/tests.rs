//! Random sequences of payments, checked against a model that remembers every payment.
//!
//! The model has no slots. It checks the promise itself: no 24 hours, no hour and no UTC month ever hold more than
//! their caps. `POLICY_SEQUENCES` sets the number of sequences.
#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers
extern crate std;

use crate::{
    payees::NewRecipient, window::month_end, Budget, Budgets, Category, Charge, Ledger, Payment, Refusal,
    Rules, Standing, UnixTime, Usdc, Verdict,
};
use std::{env, vec::Vec};

/// The budgets of a vault that has none.
pub(crate) const NO_BUDGETS: Budgets<Budget> = [None; 2];

/// A policy without `new_recipient_cap`.
pub(crate) const NEW: NewRecipient = NewRecipient { cap: None, payees: None, key: [0; 2] };

/// [`crate::authorize`] for a vault without a budget.
fn authorize(
    rules: &Rules,
    ledger: &Ledger,
    payment: &Payment,
    standing: Standing,
    clock: UnixTime,
) -> Result<Charge, Refusal> {
    crate::authorize(rules, ledger, &NO_BUDGETS, payment, standing, clock).map(|charges| charges.vault)
}

/// [`crate::assess`] for a vault without a budget.
fn assess(
    rules: &Rules,
    ledger: &Ledger,
    payment: &Payment,
    standing: Standing,
    clock: UnixTime,
) -> Result<[Verdict; 23], Refusal> {
    crate::assess(rules, ledger, &NO_BUDGETS, &NEW, payment, standing, clock)
}

/// Marsaglia's xorshift64*, reproducible from its seed.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Returns the time after a random step, which often ends on, just before or just after a relevant boundary.
pub(crate) fn step(random: &mut Random, now: i64) -> i64 {
    let edge = random.pick(&[1, 60, 900, 3_600, 86_400]);
    let nudge = random.pick(&[-1, 0, 0, 1]);
    match random.below(10) {
        0..=2 => now,
        3 => now + random.below(120) as i64,
        4 => (now / edge + 1) * edge + nudge,
        5 => now + edge + nudge,
        6 => now + random.pick(&[3_600, 86_400]) - random.pick(&[1, 60, 900]) + nudge,
        7 => now - random.below(200_000) as i64,
        8 => month_end(UnixTime(now)).0 + nudge,
        _ => now + random.below(200_000) as i64,
    }
}

#[test]
fn no_sequence_of_payments_passes_the_caps() {
    let sequences: u64 = env::var("POLICY_SEQUENCES").map_or(2_000, |n| n.parse().unwrap());
    for seed in 1..=sequences {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let rules = Rules {
            max_per_day: (random.below(4) > 0).then(|| Usdc(random.below(1_000))),
            max_per_month: (random.below(3) > 0).then(|| Usdc(random.below(3_000))),
            velocity_cap: (random.below(3) > 0).then(|| random.below(12)),
            max_per_tx: (random.below(3) == 0).then(|| Usdc(random.below(400))),
            ..Rules::default()
        };
        let mut ledger = Ledger::default();
        let mut paid: Vec<(i64, u64)> = Vec::new();
        let mut clock = 1_700_000_000 + random.below(100_000_000) as i64;
        for _ in 0..20 + random.below(181) {
            clock = step(random, clock);
            let amount = 1 + random.below(250);
            let payment =
                Payment { amount: Usdc(amount), listed: false, category: Category(0), co_signed: false };
            let before = ledger;
            match authorize(&rules, &ledger, &payment, Standing::default(), UnixTime(clock)) {
                Ok(charge) => {
                    assert!(charge.at.0 >= paid.last().map_or(i64::MIN, |last| last.0), "time ran backwards");
                    ledger.charge(&charge).unwrap();
                    paid.push((charge.at.0, amount));
                    keeps_the_caps(&rules, &paid, seed);
                }
                Err(Refusal::Overflow) => panic!("seed {seed}: overflow"),
                Err(Refusal::Violation(_)) => assert_eq!(before, ledger),
            }
        }
    }
}

#[test]
fn no_refund_makes_room_beyond_the_caps() {
    let sequences: u64 = env::var("POLICY_SEQUENCES").map_or(2_000, |n| n.parse().unwrap());
    for seed in 1..=sequences {
        let random = &mut Random(seed.wrapping_mul(0xd134_2543_de82_ef95) | 1);
        let rules = Rules {
            max_per_day: (random.below(4) > 0).then(|| Usdc(random.below(1_000))),
            max_per_month: (random.below(3) > 0).then(|| Usdc(random.below(3_000))),
            velocity_cap: (random.below(3) == 0).then(|| random.below(20)),
            ..Rules::default()
        };
        let mut ledger = Ledger::default();
        // Net spending: a refund reduces the payment that it refunds.
        let mut paid: Vec<(i64, u64)> = Vec::new();
        let mut open: Vec<(usize, crate::Place)> = Vec::new();
        let mut clock = 1_700_000_000 + random.below(100_000_000) as i64;
        for _ in 0..20 + random.below(181) {
            clock = step(random, clock);
            if random.below(3) == 0 && !open.is_empty() {
                let (index, place) = open.swap_remove(random.below(open.len() as u64) as usize);
                let part = random.below(paid[index].1 + 1);
                let returned = random.pick(&[paid[index].1, part]);
                let before = ledger;
                ledger.credit(place, Usdc(returned));
                paid[index].1 -= returned;
                assert!(before.day.total - ledger.day.total <= returned);
                assert!(before.month.spent.0 - ledger.month.spent.0 <= returned);
                assert_eq!((before.hour, before.last), (ledger.hour, ledger.last));
            } else if let Ok(charge) = authorize(
                &rules,
                &ledger,
                &plain(1 + random.below(250)),
                Standing::default(),
                UnixTime(clock),
            ) {
                ledger.charge(&charge).unwrap();
                open.push((paid.len(), ledger.place()));
                paid.push((charge.at.0, charge.amount.0));
                keeps_the_caps(&rules, &paid, seed);
            }
            assert_eq!(ledger.day.slots.iter().sum::<u64>(), ledger.day.total, "seed {seed}");
        }
    }
}

#[test]
fn what_is_refunded_can_be_spent_again_while_its_charge_counts() {
    let rules = Rules { max_per_day: Some(Usdc(100)), max_per_month: Some(Usdc(100)), ..Rules::default() };
    // The last second of a slot at the start of a month
    let paid = 1_701_388_800 + 899;
    let mut ledger = Ledger::default();
    let pay = |ledger: &mut Ledger, amount, at| {
        let charge = authorize(&rules, ledger, &plain(amount), Standing::default(), UnixTime(at))?;
        ledger.charge(&charge).map_err(Refusal::from)
    };
    pay(&mut ledger, 100, paid).unwrap();
    let place = ledger.place();
    assert!(pay(&mut ledger, 1, paid).is_err());
    // When 40 are refunded a little later, then 40 can be spent and no more
    ledger.credit(place, Usdc(40));
    assert!(pay(&mut ledger, 41, paid + 1).is_err());
    pay(&mut ledger, 40, paid + 1).unwrap();
    assert!(pay(&mut ledger, 1, paid + 1).is_err());
}

#[test]
fn what_is_refunded_after_its_slot_or_month_was_let_go_changes_nothing() {
    let mut ledger = Ledger::default();
    let charge = |ledger: &mut Ledger, amount, at| {
        let charge =
            authorize(&Rules::default(), ledger, &plain(amount), Standing::default(), UnixTime(at)).unwrap();
        ledger.charge(&charge).unwrap();
    };
    let paid = 1_700_000_100; // the first second of a slot
    charge(&mut ledger, 100, paid);
    let place = ledger.place();
    // Given a payment in the last slot at which the charge still counts, then the charge can be taken back
    let mut counted = ledger;
    charge(&mut counted, 7, paid + 96 * 900);
    counted.credit(place, Usdc(100));
    assert_eq!(counted.day.total, 7);
    // One slot later, the charge's place in the ring belongs to a different time and does not change
    charge(&mut ledger, 7, paid + 97 * 900);
    ledger.credit(place, Usdc(100));
    assert_eq!(ledger.day.total, 7);
    assert_eq!(ledger.month.spent, Usdc(7));
    // In a different month, the month's spending is not touched either
    let next = ledger.month.ends_at.0;
    charge(&mut ledger, 5, next);
    ledger.credit(place, Usdc(100));
    assert_eq!(ledger.month.spent, Usdc(5));
}

#[test]
fn more_than_the_slot_holds_is_never_taken_out() {
    let mut ledger = Ledger::default();
    let now = UnixTime(1_700_000_000);
    for amount in [30, 20] {
        let charge = authorize(&Rules::default(), &ledger, &plain(amount), Standing::default(), now).unwrap();
        ledger.charge(&charge).unwrap();
    }
    ledger.credit(ledger.place(), Usdc(u64::MAX));
    assert_eq!((ledger.day.total, ledger.month.spent), (0, Usdc(0)));
    let future = crate::Place { day_slot: u64::MAX, ..ledger.place() };
    ledger.credit(future, Usdc(1));
    assert_eq!(ledger.day.slots.iter().sum::<u64>(), 0);
}

/// Checks every interval that ends with the newest payment. Earlier intervals were checked when their last payment was
/// new.
fn keeps_the_caps(rules: &Rules, paid: &[(i64, u64)], seed: u64) {
    let (now, amount) = *paid.last().unwrap();
    let since = |seconds: i64| paid.iter().filter(move |(at, _)| *at > now - seconds);
    if let Some(cap) = rules.max_per_day {
        let spent: u64 = since(86_400).map(|(_, amount)| amount).sum();
        assert!(spent <= cap.0, "seed {seed}: {spent} in 24 hours, cap {}", cap.0);
    }
    if let Some(cap) = rules.velocity_cap {
        let count = since(3_600).count() as u64;
        assert!(count <= cap, "seed {seed}: {count} in an hour, cap {cap}");
    }
    if let Some(cap) = rules.max_per_month {
        let month = month_end(UnixTime(now));
        let spent: u64 =
            paid.iter().filter(|(at, _)| month_end(UnixTime(*at)) == month).map(|(_, amount)| amount).sum();
        assert!(spent <= cap.0, "seed {seed}: {spent} in a month, cap {}", cap.0);
    }
    if let Some(cap) = rules.max_per_tx {
        assert!(amount <= cap.0);
    }
}

#[test]
fn what_is_refused_now_passes_at_the_time_the_verdict_names_and_not_a_second_before() {
    for seed in 1..=300u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let rules = Rules {
            max_per_day: Some(Usdc(500)),
            max_per_month: Some(Usdc(2_000)),
            velocity_cap: Some(8),
            ..Rules::default()
        };
        let mut ledger = Ledger::default();
        let mut clock = 1_700_000_000;
        for _ in 0..120 {
            clock += random.below(2_000) as i64;
            let payment = Payment {
                amount: Usdc(1 + random.below(120)),
                listed: false,
                category: Category(0),
                co_signed: false,
            };
            let judge = |at| authorize(&rules, &ledger, &payment, Standing::default(), UnixTime(at));
            match judge(clock) {
                Ok(charge) => ledger.charge(&charge).unwrap(),
                Err(_) => {
                    let verdicts =
                        assess(&rules, &ledger, &payment, Standing::default(), UnixTime(clock)).unwrap();
                    let at = verdicts
                        .iter()
                        .filter(|verdict| verdict.set)
                        .map(|verdict| verdict.retry_at.unwrap().0)
                        .max()
                        .unwrap();
                    assert!(judge(at).is_ok(), "seed {seed}");
                    assert!(judge(at - 1).is_err(), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn the_first_rule_in_order_is_the_one_reported() {
    use crate::{Refusal::Violation as Refused, Rule};
    let rules = Rules {
        max_per_tx: Some(Usdc(0)),
        max_per_day: Some(Usdc(0)),
        max_per_month: Some(Usdc(0)),
        velocity_cap: Some(0),
        require_co_sign: Some(Usdc(0)),
        expiry: Some(UnixTime(0)),
        blocked_categories: 1,
        restricted: true,
    };
    let payment = Payment { amount: Usdc(1), listed: false, category: Category(0), co_signed: false };
    let reported =
        |rules: &Rules, standing| match authorize(rules, &Ledger::default(), &payment, standing, UnixTime(5))
        {
            Err(Refused(violation)) => Some(violation.rule),
            _ => None,
        };
    let stopped = Standing { paused: true, frozen: true };
    assert_eq!(reported(&rules, stopped), Some(Rule::Paused));
    assert_eq!(reported(&rules, Standing { paused: false, ..stopped }), Some(Rule::Frozen));
    let open = Standing::default();
    let mut rules = rules;
    assert_eq!(reported(&rules, open), Some(Rule::Expiry));
    rules.expiry = None;
    assert_eq!(reported(&rules, open), Some(Rule::AllowedRecipients));
    rules.restricted = false;
    assert_eq!(reported(&rules, open), Some(Rule::BlockedCategories));
    rules.blocked_categories = 0;
    assert_eq!(reported(&rules, open), Some(Rule::MaxPerTx));
    rules.max_per_tx = None;
    assert_eq!(reported(&rules, open), Some(Rule::VelocityCap));
    rules.velocity_cap = None;
    assert_eq!(reported(&rules, open), Some(Rule::MaxPerDay));
    rules.max_per_day = None;
    assert_eq!(reported(&rules, open), Some(Rule::MaxPerMonth));
    rules.max_per_month = None;
    assert_eq!(reported(&rules, open), Some(Rule::RequireCoSign));
    rules.require_co_sign = None;
    assert_eq!(reported(&rules, open), None);
}

#[test]
fn a_payment_is_charged_also_where_its_rule_is_not_set() {
    let payment = Payment { amount: Usdc(9), listed: false, category: Category(0), co_signed: false };
    let now = UnixTime(1_700_000_000);
    let mut ledger = Ledger::default();
    let charge = authorize(&Rules::default(), &ledger, &payment, Standing::default(), now).unwrap();
    ledger.charge(&charge).unwrap();
    let strict = Rules { max_per_day: Some(Usdc(10)), ..Rules::default() };
    assert!(authorize(&strict, &ledger, &payment, Standing::default(), now).is_err());
}

#[test]
fn an_amount_that_the_ledger_cannot_count_is_an_error() {
    let payment = Payment { amount: Usdc(u64::MAX), listed: false, category: Category(0), co_signed: false };
    let now = UnixTime(1_700_000_000);
    let mut ledger = Ledger::default();
    let charge = authorize(&Rules::default(), &ledger, &payment, Standing::default(), now).unwrap();
    ledger.charge(&charge).unwrap();
    assert!(ledger.charge(&charge).is_err());
}

/// A payment of `amount` to an arbitrary recipient.
pub(crate) fn plain(amount: u64) -> Payment {
    Payment { amount: Usdc(amount), listed: false, category: Category(0), co_signed: false }
}

#[test]
fn every_cap_is_reached_exactly() {
    let now = UnixTime(1_700_000_000);
    for rules in [
        Rules { velocity_cap: Some(4), ..Rules::default() },
        Rules { max_per_day: Some(Usdc(100)), ..Rules::default() },
        Rules { max_per_month: Some(Usdc(100)), ..Rules::default() },
    ] {
        let mut ledger = Ledger::default();
        for _ in 0..4 {
            let charge = authorize(&rules, &ledger, &plain(25), Standing::default(), now).unwrap();
            ledger.charge(&charge).unwrap();
        }
        assert!(authorize(&rules, &ledger, &plain(1), Standing::default(), now).is_err());
    }
}

#[test]
fn a_limit_that_is_spent_is_not_passed_yet() {
    let now = UnixTime(1_700_000_000);
    for rules in [
        Rules { max_per_day: Some(Usdc(100)), ..Rules::default() },
        Rules { max_per_month: Some(Usdc(100)), ..Rules::default() },
    ] {
        let mut ledger = Ledger::default();
        let charge = authorize(&rules, &ledger, &plain(100), Standing::default(), now).unwrap();
        ledger.charge(&charge).unwrap();
        assert!(authorize(&rules, &ledger, &plain(0), Standing::default(), now).is_ok());
        assert!(authorize(&rules, &ledger, &plain(1), Standing::default(), now).is_err());
    }
}

#[test]
fn the_time_of_the_last_payment_is_the_ledgers() {
    let mut ledger = Ledger::default();
    for clock in [1_700_000_000, 1_700_000_060, 1_700_000_000] {
        let charge =
            authorize(&Rules::default(), &ledger, &plain(1), Standing::default(), UnixTime(clock)).unwrap();
        ledger.charge(&charge).unwrap();
        assert_eq!(ledger.last, charge.at);
    }
    assert_eq!(ledger.last, UnixTime(1_700_000_060));
}

#[test]
fn what_the_month_refuses_passes_in_the_next_one_unless_it_is_too_much_for_any() {
    let now = UnixTime(1_700_000_000);
    let rules = Rules { max_per_month: Some(Usdc(100)), ..Rules::default() };
    let mut ledger = Ledger::default();
    let charge = authorize(&rules, &ledger, &plain(1), Standing::default(), now).unwrap();
    ledger.charge(&charge).unwrap();
    for (amount, expected) in [(99, Some(now)), (100, Some(month_end(now))), (101, None)] {
        let verdicts = assess(&rules, &ledger, &plain(amount), Standing::default(), now).unwrap();
        let month = verdicts.iter().find(|verdict| verdict.rule == crate::Rule::MaxPerMonth).unwrap();
        assert_eq!(month.retry_at, expected, "{amount}");
    }
}
