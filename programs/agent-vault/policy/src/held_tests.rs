//! Allowances next to payments, checked against a model that remembers when money really left.
#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // small numbers
extern crate std;

use crate::{
    assess, authorize,
    tests::{plain, step, Random, NEW, NO_BUDGETS},
    Budget, Ledger, Limits, Rule, Rules, Standing, UnixTime, Usdc,
};
use std::{env, vec::Vec};

const DAY: i64 = 86_400;
const START: i64 = 1_700_000_000;

/// An allowance that is not settled: its vault, its amount, and the part that the delegate has spent.
struct Open {
    vault: usize,
    amount: u64,
    spent: u64,
}

/// In any 24 hours, no more money leaves the vaults than the limit, which is the same for each vault and their budget.
#[test]
fn no_day_exceeds_a_limit_whatever_the_delegates_do() {
    const LIMIT: Usdc = Usdc(100);
    let sequences: u64 = env::var("POLICY_SEQUENCES").map_or(1_000, |n| n.parse().unwrap());
    let rules = Rules { max_per_day: Some(LIMIT), max_per_month: Some(LIMIT), ..Rules::default() };
    let limits = Limits { max_per_day: Some(LIMIT), max_per_month: Some(LIMIT), ..Limits::default() };
    for seed in 1..=sequences {
        let random = &mut Random(seed.wrapping_mul(0xa076_1d64_78bd_642f) | 1);
        let (mut vaults, mut shared) = ([Ledger::default(); 2], Ledger::default());
        let (mut left, mut open): (Vec<(i64, u64)>, Vec<Open>) = (Vec::new(), Vec::new());
        // If the clock may step back, the time of a delegate's transfer is unknown. Then only the ledgers are checked.
        let steady = seed % 2 == 0;
        let (mut clock, mut latest) = (START + random.below(100_000_000) as i64, 0);
        for _ in 0..random.below(120) {
            clock = step(random, clock);
            latest = latest.max(clock);
            if steady {
                clock = latest;
            }
            let vault = usize::from(random.below(2) == 1);
            let amount = 1 + random.below(60);
            match random.below(4) {
                kind @ 0..2 => {
                    let budget = Budget { limits, frozen: false, total_spent: Usdc(0), ledger: &shared };
                    let (ledger, at) = (&vaults[vault], UnixTime(clock));
                    let budgets = [Some(budget), None];
                    let judged = authorize(&rules, ledger, &budgets, &plain(amount), Standing::default(), at);
                    let Ok(charges) = judged else { continue };
                    let both =
                        [(&mut vaults[vault], charges.vault), (&mut shared, charges.budgets[0].unwrap())];
                    for (ledger, charge) in both {
                        if kind == 0 {
                            ledger.charge(&charge).unwrap();
                        } else {
                            ledger.hold(&charge).unwrap();
                        }
                        let day = ledger.day.total_at(charge.at).unwrap();
                        let month = ledger.month.spent_at(charge.at).0;
                        assert!(day + ledger.held.0 <= LIMIT.0, "seed {seed}: day");
                        assert!(month + ledger.held.0 <= LIMIT.0, "seed {seed}: month");
                    }
                    if kind == 0 {
                        left.push((latest, amount));
                    } else {
                        open.push(Open { vault, amount, spent: 0 });
                    }
                }
                2 if !open.is_empty() => {
                    let index = random.below(open.len() as u64) as usize;
                    let spent = random.below(open[index].amount - open[index].spent + 1);
                    open[index].spent += spent;
                    left.push((latest, spent));
                }
                3 if !open.is_empty() => {
                    let index = random.below(open.len() as u64) as usize;
                    let Open { vault, amount, spent } = open.remove(index);
                    for ledger in [&mut vaults[vault], &mut shared] {
                        ledger.release(UnixTime(clock), Usdc(amount), Usdc(spent)).unwrap();
                    }
                }
                _ => {}
            }
            let in_day: u64 = left.iter().filter(|(at, _)| *at > latest - DAY).map(|(_, sum)| sum).sum();
            assert!(!steady || in_day <= LIMIT.0, "seed {seed}: {in_day} left within a day");
            assert_eq!(shared.held.0, open.iter().map(|one| one.amount).sum::<u64>());
        }
    }
}

#[test]
fn held_money_that_refuses_names_no_time() {
    let rules = Rules { max_per_day: Some(Usdc(100)), max_per_month: Some(Usdc(100)), ..Rules::default() };
    let judge = |spent: u64, held: u64, amount: u64| {
        let mut ledger = Ledger::default();
        ledger.record(UnixTime(START), Usdc(spent), 1).unwrap();
        ledger.held = Usdc(held);
        let verdicts =
            assess(&rules, &ledger, &NO_BUDGETS, &NEW, &plain(amount), Standing::default(), UnixTime(START))
                .unwrap();
        [Rule::MaxPerDay, Rule::MaxPerMonth].map(|rule| {
            let verdict = verdicts.iter().find(|verdict| verdict.rule == rule).unwrap();
            (verdict.passed, verdict.headroom, verdict.retry_at.is_some())
        })
    };
    // Without the held money, the payment would pass.
    assert_eq!(judge(50, 40, 20), [(false, 10, false); 2]);
    // It would not pass either without the held money, but will once the spending has left the window.
    assert_eq!(judge(90, 40, 20), [(false, 0, true); 2]);
    // It would never pass next to the held money.
    assert_eq!(judge(90, 40, 70), [(false, 0, false); 2]);
    assert_eq!(judge(50, 40, 10), [(true, 10, true); 2]);
}
