//! Random sequences of payments under `new_recipient_cap`, checked against a model that remembers every payment.
#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation)] // small numbers
extern crate std;

use super::*;
use crate::{
    tests::{step, Random},
    Category, Ledger,
};
use std::vec::Vec;

const CAP: Usdc = Usdc(100);

fn plain(amount: u64) -> Payment {
    Payment { amount: Usdc(amount), listed: false, category: Category(0), co_signed: false }
}

fn consented(amount: u64) -> Payment {
    Payment { co_signed: true, ..plain(amount) }
}

fn rule(payees: &Payees, key: u64) -> NewRecipient<'_> {
    NewRecipient { cap: Some(CAP), payees: Some(payees), key: [key, 0] }
}

/// Lists with the number of the next payment.
#[derive(Default)]
struct Vault(Payees, u64);

impl Vault {
    fn pay(&mut self, key: u64, payment: Payment, now: i64) -> Result<u8, Refusal> {
        let before = self.0;
        let verdict = rule(&self.0, key).check(&payment, UnixTime(now));
        let paid = self.0.pay(CAP, [key, 0], &payment, UnixTime(now), self.1 + 1);
        assert_eq!(paid.is_ok(), verdict.passed);
        assert_eq!(payment.amount.0 <= verdict.headroom || payment.co_signed, verdict.passed);
        match paid {
            Ok(_) => self.1 += 1,
            Err(_) => assert_eq!(self.0, before),
        }
        paid
    }
}

#[test]
fn stranger_gets_the_cap_in_total_and_is_known_a_day_after_its_first_payment() {
    let mut vault = Vault::default();
    assert!(vault.pay(1, plain(101), 0).is_err());
    assert_eq!(vault.pay(1, plain(60), 10), Ok(change::FIRST_PAID));
    assert_eq!(vault.pay(1, plain(40), 86_000), Ok(0));
    assert!(vault.pay(1, plain(1), 86_409).is_err());
    let verdict = rule(&vault.0, 1).check(&plain(1), UnixTime(86_409));
    assert_eq!((verdict.limit, verdict.attempted, verdict.retry_at), (100, 101, Some(UnixTime(86_410))));
    assert_eq!(vault.pay(1, plain(5_000), 86_410), Ok(change::KNOWN));
    assert_eq!(vault.pay(1, plain(5_000), 86_410), Ok(0));
}

#[test]
fn consent_makes_known_at_once() {
    let mut vault = Vault::default();
    assert_eq!(vault.pay(1, plain(1), 0), Ok(change::FIRST_PAID));
    assert_eq!(vault.pay(1, consented(500), 0), Ok(change::KNOWN));
    assert_eq!(vault.pay(2, consented(500), 0), Ok(change::FIRST_PAID | change::KNOWN));
    assert_eq!(vault.pay(1, plain(500), 0), Ok(0));
    assert_eq!(vault.pay(2, plain(500), 0), Ok(0));
}

#[test]
fn full_list_refuses_the_next_stranger_until_the_first_is_known() {
    let mut vault = Vault::default();
    for stranger in 0..8 {
        assert_eq!(vault.pay(stranger, plain(1), 100 + stranger as i64), Ok(change::FIRST_PAID));
    }
    assert!(vault.pay(8, plain(1), 86_499).is_err());
    let verdict = rule(&vault.0, 8).check(&plain(1), UnixTime(86_499));
    assert_eq!((verdict.limit, verdict.headroom, verdict.retry_at), (0, 0, Some(UnixTime(86_500))));
    assert_eq!(vault.pay(8, consented(900), 86_499), Ok(change::FIRST_PAID | change::KNOWN));
    assert_eq!(vault.pay(9, plain(1), 86_500), Ok(change::FIRST_PAID));
    // The displaced payee is known, which its next payment reports.
    assert_eq!(vault.pay(0, plain(900), 86_500), Ok(change::KNOWN));
    assert_eq!(vault.pay(0, plain(900), 86_500), Ok(0));
}

#[test]
fn least_recently_paid_known_payee_is_dropped() {
    let mut vault = Vault::default();
    for payee in 0..24 {
        vault.pay(payee, consented(1), 0).unwrap();
    }
    vault.pay(0, plain(900), 0).unwrap();
    vault.pay(24, consented(1), 0).unwrap();
    assert!(vault.pay(1, plain(900), 0).is_err());
    vault.pay(0, plain(900), 0).unwrap();
}

#[test]
fn only_a_known_payee_is_forgotten() {
    let mut vault = Vault::default();
    vault.pay(1, plain(60), 7).unwrap();
    assert_eq!(vault.0.forget([1, 0], UnixTime(86_406)), None);
    assert_eq!(vault.0.forget([1, 0], UnixTime(86_407)), Some(UnixTime(7)));
    assert_eq!(vault.0.forget([1, 0], UnixTime(86_407)), None);
    assert!(vault.pay(1, plain(900), 86_407).is_err());
    vault.pay(1, consented(900), 86_407).unwrap();
    assert_eq!(vault.0.forget([1, 0], UnixTime(86_407)), Some(UnixTime(86_407)));
}

#[test]
fn empty_place_is_no_payee() {
    let mut vault = Vault::default();
    assert!(vault.pay(0, plain(900), 1_000_000).is_err());
    assert_eq!(vault.0.forget([0, 0], UnixTime(1_000_000)), None);
}

#[test]
fn unset_rule_and_listed_payees_pass() {
    let listed = Payment { listed: true, ..plain(u64::MAX) };
    let now = UnixTime(0);
    let empty = NewRecipient { cap: Some(CAP), ..NewRecipient::default() };
    assert!(empty.check(&listed, now).passed);
    assert!(!NewRecipient::default().check(&plain(u64::MAX), now).set);
    assert!(!empty.check(&plain(101), now).passed);
    assert!(empty.check(&plain(100), now).passed);
}

#[test]
fn no_stranger_gets_more_than_the_cap_before_it_is_known_even_if_clocks_step_back() {
    for seed in 1..2_000 {
        let random = &mut Random(seed);
        let (mut vault, mut ledger, mut clock) = (Vault::default(), Ledger::default(), 1_000_000);
        let mut paid: Vec<(u64, i64, u64, bool)> = Vec::new();
        for _ in 0..60 {
            clock =
                if random.below(6) == 0 { clock - random.below(200_000) as i64 } else { step(random, clock) };
            let now = ledger.time(UnixTime(clock)).0;
            let key = random.below(40);
            let consent = random.below(3) == 0;
            let amount = 1 + random.below(if consent { 500 } else { 130 });
            let payment = Payment { co_signed: consent, ..plain(amount) };
            if vault.pay(key, payment, now).is_err() {
                continue;
            }
            ledger.last = UnixTime(now);
            paid.push((key, now, amount, consent));
            // A payee without any consent gets at most the cap within a day of its first payment, and of the youngest
            // 8 payees each has its place.
            let own = || paid.iter().filter(|(payee, ..)| *payee == key);
            if own().all(|(.., consent)| !consent) {
                let first = own().next().map_or(0, |(_, at, ..)| *at);
                let sum: u64 =
                    own().filter(|(_, at, ..)| *at < first + 86_400).map(|(_, _, amount, _)| amount).sum();
                assert!(sum <= CAP.0, "seed {seed}: {sum}");
            }
            let mut strangers: Vec<u64> = paid.iter().map(|(key, ..)| *key).collect();
            strangers.sort_unstable();
            strangers.dedup();
            let young = strangers.iter().filter(|key| {
                let mut of = paid.iter().filter(|(payee, ..)| payee == *key);
                let first = of.clone().next().map_or(0, |(_, at, ..)| *at);
                of.all(|(.., consent)| !consent) && now < first + 86_400
            });
            assert!(young.count() <= STRANGERS, "seed {seed}");
        }
    }
}
