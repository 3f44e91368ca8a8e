//! Random sequences of payments against a model that remembers every payment.
//!
//! The model knows no slots: it checks the promise itself, that no 24 hours, no hour and no UTC month ever hold more
//! than their caps. `POLICY_SEQUENCES` sets how many sequences run.
#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers
extern crate std;

use crate::{
    authorize, window::month_end, Category, Ledger, Payment, Refusal, Rules, Standing, UnixTime, Usdc,
};
use std::{env, vec::Vec};

/// Marsaglia's xorshift64*: reproducible from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A step of time that likes to land on, just before and just after the edges that matter.
fn step(random: &mut Random, now: i64) -> i64 {
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

/// Checks every interval that ends with the newest payment; the earlier ones were checked when theirs was new.
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
                        crate::assess(&rules, &ledger, &payment, Standing::default(), UnixTime(clock))
                            .unwrap();
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

/// A payment of `amount` to nobody in particular.
fn plain(amount: u64) -> Payment {
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
        let verdicts = crate::assess(&rules, &ledger, &plain(amount), Standing::default(), now).unwrap();
        let month = verdicts.iter().find(|verdict| verdict.rule == crate::Rule::MaxPerMonth).unwrap();
        assert_eq!(month.retry_at, expected, "{amount}");
    }
}
