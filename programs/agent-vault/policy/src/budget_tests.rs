//! Vaults that share a budget, checked against a model that remembers every payment of all of them.
#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers
extern crate std;

use crate::{
    assess, authorize,
    tests::{plain, step, Random},
    window::month_end,
    Budget, Charges, Ledger, Limits, Payment, Place, Refusal, Rule, Rules, Standing, UnixTime, Usdc,
    Violation,
};
use std::{env, vec::Vec};

const NOW: UnixTime = UnixTime(1_700_000_000);

/// Pays from a vault. `shared` is the budget's ledger in its present state, including the other vaults' payments.
fn pay(
    rules: &Rules,
    vault: &mut Ledger,
    limits: Limits,
    shared: &mut Ledger,
    payment: &Payment,
    clock: i64,
) -> Result<Charges, Refusal> {
    let budget = Budget { limits, ledger: shared };
    let charges = authorize(rules, vault, Some(&budget), payment, Standing::default(), UnixTime(clock))?;
    vault.charge(&charges.vault)?;
    shared.charge(&charges.budget.unwrap())?;
    Ok(charges)
}

/// A vault's payment, as remembered by the model.
struct Paid {
    at: i64,
    amount: u64,
    place: Place,
}

#[test]
fn no_interleaving_of_vaults_passes_the_budget() {
    let sequences: u64 = env::var("POLICY_SEQUENCES").map_or(2_000, |n| n.parse().unwrap());
    for seed in 1..=sequences {
        let random = &mut Random(seed.wrapping_mul(0xa076_1d64_78bd_642f) | 1);
        let mut limits = drawn(random);
        let rules = Rules {
            max_per_day: (random.below(4) == 0).then(|| Usdc(random.below(600))),
            ..Rules::default()
        };
        let mut vaults = [Ledger::default(); 4];
        let mut shared = Ledger::default();
        let mut paid: Vec<Paid> = Vec::new();
        let mut clock = 1_700_000_000 + random.below(100_000_000) as i64;
        for _ in 0..20 + random.below(181) {
            clock = step(random, clock);
            let vault = random.below(4) as usize;
            match random.below(12) {
                // A refund is credited to both ledgers, each at its own place. Only the budget's is checked here, so
                // the vault's ledger is left alone.
                0 if !paid.is_empty() => {
                    let index = random.below(paid.len() as u64) as usize;
                    let returned = random.below(paid[index].amount + 1);
                    shared.credit(paid[index].place, Usdc(returned));
                    paid[index].amount -= returned;
                }
                1 => limits = drawn(random),
                _ => {
                    let amount = 1 + random.below(250);
                    let before = (vaults[vault], shared);
                    match pay(&rules, &mut vaults[vault], limits, &mut shared, &plain(amount), clock) {
                        Ok(charges) => {
                            let at = charges.budget.unwrap().at.0;
                            assert_eq!(charges.vault.at, before.0.time(UnixTime(clock)));
                            assert_eq!(at, before.1.time(UnixTime(clock)).0);
                            paid.push(Paid { at, amount, place: shared.place() });
                            keeps_within(&limits, &paid, seed);
                        }
                        Err(Refusal::Overflow) => panic!("seed {seed}: overflow"),
                        Err(Refusal::Violation(_)) => assert_eq!(before, (vaults[vault], shared)),
                    }
                }
            }
            assert_eq!(shared.day.slots.iter().sum::<u64>(), shared.day.total, "seed {seed}");
        }
    }
}

fn drawn(random: &mut Random) -> Limits {
    Limits {
        max_per_day: (random.below(4) > 0).then(|| Usdc(random.below(1_000))),
        max_per_month: (random.below(3) > 0).then(|| Usdc(random.below(3_000))),
        velocity_cap: (random.below(3) > 0).then(|| random.below(12)),
    }
}

/// Checks every interval that ends with the newest payment. Earlier intervals were checked when their last payment was
/// new.
fn keeps_within(limits: &Limits, paid: &[Paid], seed: u64) {
    let now = paid.last().unwrap().at;
    let since = |seconds: i64| paid.iter().filter(move |one| one.at > now - seconds);
    let sum = |paid: &mut dyn Iterator<Item = &Paid>| paid.map(|one| one.amount).sum::<u64>();
    assert!(paid.iter().all(|one| one.at <= now), "seed {seed}: the budget's time ran backwards");
    let day = sum(&mut since(86_400));
    assert!(limits.max_per_day.is_none_or(|cap| day <= cap.0), "seed {seed}: {day} in 24 hours");
    let count = since(3_600).count() as u64;
    assert!(limits.velocity_cap.is_none_or(|cap| count <= cap), "seed {seed}: {count} in an hour");
    let month = sum(&mut paid.iter().filter(|one| month_end(UnixTime(one.at)) == month_end(UnixTime(now))));
    assert!(limits.max_per_month.is_none_or(|cap| month <= cap.0), "seed {seed}: {month} in a month");
}

#[test]
fn each_limit_is_reached_over_two_vaults_and_not_passed() {
    for (limits, rule) in [
        (Limits { max_per_day: Some(Usdc(50)), ..Limits::default() }, Rule::BudgetMaxPerDay),
        (Limits { max_per_month: Some(Usdc(50)), ..Limits::default() }, Rule::BudgetMaxPerMonth),
        (Limits { velocity_cap: Some(2), ..Limits::default() }, Rule::BudgetVelocityCap),
    ] {
        let (mut vaults, mut shared) = ([Ledger::default(); 2], Ledger::default());
        for vault in &mut vaults {
            pay(&Rules::default(), vault, limits, &mut shared, &plain(25), NOW.0).unwrap();
        }
        for vault in &mut vaults {
            let refused = pay(&Rules::default(), vault, limits, &mut shared, &plain(1), NOW.0).unwrap_err();
            let (limit, attempted) = if rule == Rule::BudgetVelocityCap { (2, 3) } else { (50, 51) };
            assert_eq!(refused, Refusal::Violation(Violation { rule, limit, attempted }));
        }
    }
}

#[test]
fn a_vault_that_is_ahead_of_the_clock_does_not_move_the_budget() {
    let limits = Limits { max_per_day: Some(Usdc(50)), ..Limits::default() };
    let (mut ahead, mut shared) =
        (Ledger { last: UnixTime(NOW.0 + 200_000), ..Ledger::default() }, Ledger::default());
    let charges = pay(&Rules::default(), &mut ahead, limits, &mut shared, &plain(50), NOW.0).unwrap();
    assert_eq!((charges.vault.at.0, shared.last), (NOW.0 + 200_000, NOW));
    // The preview refuses every payment that would be refused, whatever the vault's time
    let budget = Budget { limits, ledger: &shared };
    let verdicts =
        assess(&Rules::default(), &ahead, Some(&budget), &plain(1), Standing::default(), NOW).unwrap();
    assert!(!verdicts[9].passed);
    // A budget that is ahead makes no room if the clock steps back
    shared.last = UnixTime(NOW.0 + 500);
    let mut other = Ledger::default();
    assert!(pay(&Rules::default(), &mut other, limits, &mut shared, &plain(1), NOW.0 - 90_000).is_err());
}

#[test]
fn the_budget_is_judged_after_the_month_and_before_the_co_signature() {
    let none = Limits { max_per_day: Some(Usdc(0)), max_per_month: Some(Usdc(0)), velocity_cap: Some(0) };
    let mut rules =
        Rules { max_per_month: Some(Usdc(0)), require_co_sign: Some(Usdc(0)), ..Rules::default() };
    let mut limits = none;
    let reported = |rules: &Rules, limits: Limits| match pay(
        rules,
        &mut Ledger::default(),
        limits,
        &mut Ledger::default(),
        &plain(1),
        NOW.0,
    ) {
        Err(Refusal::Violation(violation)) => Some(violation.rule),
        _ => None,
    };
    assert_eq!(reported(&rules, limits), Some(Rule::MaxPerMonth));
    rules.max_per_month = None;
    assert_eq!(reported(&rules, limits), Some(Rule::BudgetMaxPerDay));
    limits.max_per_day = None;
    assert_eq!(reported(&rules, limits), Some(Rule::BudgetMaxPerMonth));
    limits.max_per_month = None;
    assert_eq!(reported(&rules, limits), Some(Rule::BudgetVelocityCap));
    limits.velocity_cap = None;
    assert_eq!(reported(&rules, limits), Some(Rule::RequireCoSign));
    // The verdicts come in the same order
    let (vault, shared) = (Ledger::default(), Ledger::default());
    let budget = Budget { limits: none, ledger: &shared };
    let verdicts = assess(&rules, &vault, Some(&budget), &plain(1), Standing::default(), NOW).unwrap();
    let codes = verdicts.map(|verdict| verdict.rule as u8);
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 9]);
}

#[test]
fn without_a_budget_its_rules_are_not_set() {
    let verdicts =
        assess(&Rules::default(), &Ledger::default(), None, &plain(1), Standing::default(), NOW).unwrap();
    for verdict in &verdicts[9..12] {
        assert_eq!((verdict.set, verdict.passed, verdict.retry_at), (false, true, Some(NOW)));
    }
}

#[test]
fn what_the_budget_refuses_passes_at_the_time_its_verdict_names_and_not_a_second_before() {
    for seed in 1..=300u64 {
        let random = &mut Random(seed.wrapping_mul(0xe703_7ed1_a0b4_28db) | 1);
        let limits =
            Limits { max_per_day: Some(Usdc(500)), max_per_month: Some(Usdc(2_000)), velocity_cap: Some(8) };
        let (mut vaults, mut shared) = ([Ledger::default(); 3], Ledger::default());
        let mut clock = 1_700_000_000;
        for _ in 0..120 {
            clock += random.below(2_000) as i64;
            let vault = &mut vaults[random.below(3) as usize];
            let payment = plain(1 + random.below(120));
            if pay(&Rules::default(), vault, limits, &mut shared, &payment, clock).is_ok() {
                continue;
            }
            let budget = Budget { limits, ledger: &shared };
            let judge = |at| {
                authorize(
                    &Rules::default(),
                    vault,
                    Some(&budget),
                    &payment,
                    Standing::default(),
                    UnixTime(at),
                )
            };
            let verdicts = assess(
                &Rules::default(),
                vault,
                Some(&budget),
                &payment,
                Standing::default(),
                UnixTime(clock),
            )
            .unwrap();
            let at = verdicts.iter().filter(|one| one.set).map(|one| one.retry_at.unwrap().0).max().unwrap();
            assert!(judge(at).is_ok(), "seed {seed}");
            assert!(judge(at - 1).is_err(), "seed {seed}");
        }
    }
}

#[test]
fn what_is_outstanding_counts_as_if_it_were_paid() {
    for seed in 1..=300u64 {
        let random = &mut Random(seed.wrapping_mul(0x8ebc_6af0_9c88_c6e3) | 1);
        let (mut counted, mut clock) = (Ledger::default(), 1_700_000_000);
        for _ in 0..20 {
            clock = step(random, clock);
            let amounts = [1 + random.below(250), 1 + random.below(250)];
            let mut paid = counted;
            for amount in amounts {
                let charges = authorize(
                    &Rules::default(),
                    &paid,
                    None,
                    &plain(amount),
                    Standing::default(),
                    UnixTime(clock),
                )
                .unwrap();
                paid.charge(&charges.vault).unwrap();
            }
            counted.record(UnixTime(clock), Usdc(amounts.iter().sum()), 2).unwrap();
            assert_eq!(counted, paid, "seed {seed}");
        }
    }
    assert!(Ledger::default().record(NOW, Usdc(u64::MAX), 1).is_ok());
    let mut full = Ledger::default();
    full.record(NOW, Usdc(u64::MAX), 1).unwrap();
    assert!(full.record(NOW, Usdc(1), 1).is_err());
}
