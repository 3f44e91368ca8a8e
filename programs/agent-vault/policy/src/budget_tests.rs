//! Vaults that share a budget, checked against a model that remembers every payment of all of them.
#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers
extern crate std;

use crate::{
    assess, authorize,
    tests::{plain, step, Random, NEW, NO_BUDGETS},
    window::month_end,
    Budget, Charge, Charges, Ledger, Level, Limits, Payment, Place, Refusal, Rule, Rules, Standing, UnixTime,
    Usdc, Violation,
};
use std::{env, vec::Vec};

const NOW: UnixTime = UnixTime(1_700_000_000);

/// A budget's account: its limits, its freeze and its spending.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Pot {
    pub limits: Limits,
    pub frozen: bool,
    pub total: u64,
    pub ledger: Ledger,
}

impl Pot {
    pub fn of(limits: Limits) -> Self {
        Pot { limits, ..Pot::default() }
    }

    pub fn budget(&self) -> Budget<'_> {
        let Pot { limits, frozen, total, ref ledger } = *self;
        Budget { limits, frozen, total_spent: Usdc(total), ledger }
    }

    pub fn charge(&mut self, charge: &Charge) {
        self.ledger.charge(charge).unwrap();
        self.total += charge.amount.0;
    }

    fn credit(&mut self, place: Place, returned: u64) {
        self.ledger.credit(place, Usdc(returned));
        self.total -= returned;
    }
}

/// Pays from a vault. `shared` is the budget in its present state, including the other vaults' payments.
fn pay(
    rules: &Rules,
    vault: &mut Ledger,
    shared: &mut Pot,
    payment: &Payment,
    clock: i64,
) -> Result<Charges, Refusal> {
    let budgets = [Some(shared.budget()), None];
    let charges = authorize(rules, vault, &budgets, payment, Standing::default(), UnixTime(clock))?;
    vault.charge(&charges.vault)?;
    shared.charge(&charges.budgets[0].unwrap());
    Ok(charges)
}

/// A vault's payment, as remembered by the model of one budget.
struct Paid {
    at: i64,
    amount: u64,
    place: Place,
}

/// Each vault belongs to one of two teams, and both teams to one company.
#[test]
fn no_interleaving_of_vaults_passes_any_budget() {
    const COMPANY: usize = 2;
    let sequences: u64 = env::var("POLICY_SEQUENCES").map_or(2_000, |n| n.parse().unwrap());
    for seed in 1..=sequences {
        let random = &mut Random(seed.wrapping_mul(0xa076_1d64_78bd_642f) | 1);
        let rules = Rules {
            max_per_day: (random.below(4) == 0).then(|| Usdc(random.below(600))),
            ..Rules::default()
        };
        let mut vaults = [Ledger::default(); 4];
        let mut clock = 1_700_000_000 + random.below(100_000_000) as i64;
        let mut pots = [0; 3].map(|_| Pot::of(drawn(random, clock)));
        // The payments charged to each budget; `made` has, for each payment, its entries in two of these lists.
        let mut paid: [Vec<Paid>; 3] = Default::default();
        let mut made: Vec<[(usize, usize); 2]> = Vec::new();
        for _ in 0..20 + random.below(181) {
            clock = step(random, clock);
            let vault = random.below(4) as usize;
            let levels = [vault / 2, COMPANY];
            match random.below(14) {
                // A refund is credited to all ledgers, in each at the charge's place. This test checks only budgets, so
                // the vault's ledger is left alone.
                0 if !made.is_empty() => {
                    let entries = made[random.below(made.len() as u64) as usize];
                    let returned = random.below(paid[entries[0].0][entries[0].1].amount + 1);
                    for (pot, index) in entries {
                        pots[pot].credit(paid[pot][index].place, returned);
                        paid[pot][index].amount -= returned;
                    }
                }
                1 => pots[random.below(3) as usize].limits = drawn(random, clock),
                2 => {
                    let frozen = random.below(3) == 0;
                    pots[random.below(3) as usize].frozen = frozen;
                }
                _ => {
                    let amount = 1 + random.below(250);
                    let before = (vaults[vault], pots);
                    let budgets = levels.map(|pot| Some(before.1[pot].budget()));
                    let ledger = &vaults[vault];
                    let at = UnixTime(clock);
                    match authorize(&rules, ledger, &budgets, &plain(amount), Standing::default(), at) {
                        Ok(charges) => {
                            assert_eq!(charges.vault.at, ledger.time(at));
                            vaults[vault].charge(&charges.vault).unwrap();
                            let mut entries = [(0, 0); 2];
                            for (level, pot) in levels.into_iter().enumerate() {
                                let charge = charges.budgets[level].unwrap();
                                assert_eq!(charge.at, pots[pot].ledger.time(at));
                                pots[pot].charge(&charge);
                                entries[level] = (pot, paid[pot].len());
                                let place = pots[pot].ledger.place();
                                paid[pot].push(Paid { at: charge.at.0, amount, place });
                                keeps_within(&pots[pot], &paid[pot], seed);
                            }
                            made.push(entries);
                        }
                        Err(Refusal::Overflow) => panic!("seed {seed}: overflow"),
                        Err(Refusal::Violation(_)) => assert_eq!(before, (vaults[vault], pots)),
                    }
                }
            }
            for (pot, paid) in pots.iter().zip(&paid) {
                assert_eq!(pot.ledger.day.slots.iter().sum::<u64>(), pot.ledger.day.total, "seed {seed}");
                assert_eq!(paid.iter().map(|one| one.amount).sum::<u64>(), pot.total, "seed {seed}");
            }
        }
    }
}

fn drawn(random: &mut Random, clock: i64) -> Limits {
    Limits {
        max_per_day: (random.below(4) > 0).then(|| Usdc(random.below(1_000))),
        max_per_month: (random.below(3) > 0).then(|| Usdc(random.below(3_000))),
        velocity_cap: (random.below(3) > 0).then(|| random.below(12)),
        max_total: (random.below(3) == 0).then(|| Usdc(random.below(5_000))),
        expires_at: (random.below(6) == 0).then(|| UnixTime(clock + random.below(1_000_000) as i64)),
    }
}

/// Checks every interval that ends with the newest payment. Earlier intervals were checked when their last payment was
/// new.
fn keeps_within(pot: &Pot, paid: &[Paid], seed: u64) {
    let Pot { limits, frozen, total, .. } = pot;
    let now = paid.last().unwrap().at;
    let since = |seconds: i64| paid.iter().filter(move |one| one.at > now - seconds);
    let sum = |paid: &mut dyn Iterator<Item = &Paid>| paid.map(|one| one.amount).sum::<u64>();
    assert!(!frozen, "seed {seed}: paid from a frozen budget");
    assert!(limits.expires_at.is_none_or(|end| now <= end.0), "seed {seed}: paid after the budget's end");
    assert!(limits.max_total.is_none_or(|cap| *total <= cap.0), "seed {seed}: {total} in total");
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
        (Limits { max_total: Some(Usdc(50)), ..Limits::default() }, Rule::BudgetMaxTotal),
    ] {
        let (mut vaults, mut shared) = ([Ledger::default(); 2], Pot::of(limits));
        for vault in &mut vaults {
            pay(&Rules::default(), vault, &mut shared, &plain(25), NOW.0).unwrap();
        }
        for vault in &mut vaults {
            let refused = pay(&Rules::default(), vault, &mut shared, &plain(1), NOW.0).unwrap_err();
            let (limit, attempted) = if rule == Rule::BudgetVelocityCap { (2, 3) } else { (50, 51) };
            let level = Level::Budget;
            assert_eq!(refused, Refusal::Violation(Violation { rule, limit, attempted, level }));
        }
    }
}

#[test]
fn a_total_outlasts_days_and_months_and_counts_held_money() {
    let mut shared = Pot::of(Limits { max_total: Some(Usdc(50)), ..Limits::default() });
    pay(&Rules::default(), &mut Ledger::default(), &mut shared, &plain(30), NOW.0).unwrap();
    let later = NOW.0 + 400 * 86_400;
    let refused = |shared: &mut Pot, amount, at| {
        pay(&Rules::default(), &mut Ledger::default(), shared, &plain(amount), at).err()
    };
    assert!(refused(&mut shared, 21, later).is_some());
    shared.ledger.held = Usdc(5);
    assert!(refused(&mut shared, 16, later).is_some());
    let verdicts = assess(
        &Rules::default(),
        &Ledger::default(),
        &[Some(shared.budget()), None],
        &NEW,
        &plain(16),
        Standing::default(),
        UnixTime(later),
    )
    .unwrap();
    let total = verdicts.iter().find(|one| one.rule == Rule::BudgetMaxTotal).unwrap();
    assert_eq!((total.headroom, total.retry_at), (15, None));
    assert_eq!(refused(&mut shared, 15, later), None);
    shared.credit(shared.ledger.place(), 10);
    assert!(refused(&mut shared, 11, later).is_some());
    assert_eq!(refused(&mut shared, 10, later), None);
}

#[test]
fn an_expired_or_frozen_budget_refuses_even_without_another_limit() {
    let refused = |budgets: [&Pot; 2], at| {
        let (rules, ledger) = (Rules::default(), Ledger::default());
        let budgets = budgets.map(|pot| Some(pot.budget()));
        match authorize(&rules, &ledger, &budgets, &plain(1), Standing::default(), UnixTime(at)) {
            Err(Refusal::Violation(violation)) => Some((violation.rule, violation.level)),
            _ => None,
        }
    };
    let open = Pot::default();
    let ends = Pot::of(Limits { expires_at: Some(NOW), ..Limits::default() });
    let frozen = Pot { frozen: true, ..Pot::default() };
    assert_eq!(refused([&ends, &ends], NOW.0), None);
    assert_eq!(refused([&ends, &open], NOW.0 + 1), Some((Rule::BudgetExpired, Level::Budget)));
    assert_eq!(refused([&open, &ends], NOW.0 + 1), Some((Rule::BudgetExpired, Level::Parent)));
    assert_eq!(refused([&frozen, &open], NOW.0), Some((Rule::BudgetFrozen, Level::Budget)));
    assert_eq!(refused([&open, &frozen], NOW.0), Some((Rule::BudgetFrozen, Level::Parent)));
    // A ledger that is ahead of the clock judges at its own time.
    let mut ahead = ends;
    ahead.ledger.last = UnixTime(NOW.0 + 1);
    assert_eq!(refused([&ahead, &open], NOW.0), Some((Rule::BudgetExpired, Level::Budget)));
    assert_eq!(refused([&ends, &open], NOW.0), None);
}

#[test]
fn a_vault_that_is_ahead_of_the_clock_does_not_move_the_budget() {
    let limits = Limits { max_per_day: Some(Usdc(50)), ..Limits::default() };
    let (mut ahead, mut shared) =
        (Ledger { last: UnixTime(NOW.0 + 200_000), ..Ledger::default() }, Pot::of(limits));
    let charges = pay(&Rules::default(), &mut ahead, &mut shared, &plain(50), NOW.0).unwrap();
    assert_eq!((charges.vault.at.0, shared.ledger.last), (NOW.0 + 200_000, NOW));
    // The preview refuses every payment that would be refused, whatever the vault's time
    let budgets = [Some(shared.budget()), None];
    let verdicts =
        assess(&Rules::default(), &ahead, &budgets, &NEW, &plain(1), Standing::default(), NOW).unwrap();
    assert!(!verdicts[12].passed);
    // A budget that is ahead makes no room if the clock steps back
    shared.ledger.last = UnixTime(NOW.0 + 500);
    let mut other = Ledger::default();
    assert!(pay(&Rules::default(), &mut other, &mut shared, &plain(1), NOW.0 - 90_000).is_err());
}

#[test]
fn budgets_are_judged_after_the_month_and_before_the_co_signature() {
    let mut rules =
        Rules { max_per_month: Some(Usdc(0)), require_co_sign: Some(Usdc(0)), ..Rules::default() };
    let strict = Pot {
        frozen: true,
        ..Pot::of(Limits {
            max_per_day: Some(Usdc(0)),
            max_per_month: Some(Usdc(0)),
            velocity_cap: Some(0),
            max_total: Some(Usdc(0)),
            expires_at: Some(UnixTime(0)),
        })
    };
    let mut pots = [strict; 2];
    let reported = |rules: &Rules, pots: &[Pot; 2]| {
        let budgets = [Some(pots[0].budget()), Some(pots[1].budget())];
        match authorize(rules, &Ledger::default(), &budgets, &plain(1), Standing::default(), NOW) {
            Err(Refusal::Violation(violation)) => Some((violation.rule, violation.level)),
            _ => None,
        }
    };
    assert_eq!(reported(&rules, &pots), Some((Rule::MaxPerMonth, Level::Vault)));
    rules.max_per_month = None;
    for (pot, level) in [(0, Level::Budget), (1, Level::Parent)] {
        assert_eq!(reported(&rules, &pots), Some((Rule::BudgetFrozen, level)));
        pots[pot].frozen = false;
        assert_eq!(reported(&rules, &pots), Some((Rule::BudgetExpired, level)));
        pots[pot].limits.expires_at = None;
        assert_eq!(reported(&rules, &pots), Some((Rule::BudgetMaxTotal, level)));
        pots[pot].limits.max_total = None;
        assert_eq!(reported(&rules, &pots), Some((Rule::BudgetMaxPerDay, level)));
        pots[pot].limits.max_per_day = None;
        assert_eq!(reported(&rules, &pots), Some((Rule::BudgetMaxPerMonth, level)));
        pots[pot].limits.max_per_month = None;
        assert_eq!(reported(&rules, &pots), Some((Rule::BudgetVelocityCap, level)));
        pots[pot].limits.velocity_cap = None;
    }
    assert_eq!(reported(&rules, &pots), Some((Rule::RequireCoSign, Level::Vault)));
    // The verdicts come in the same order
    let budgets = [Some(strict.budget()), Some(strict.budget())];
    let verdicts =
        assess(&rules, &Ledger::default(), &budgets, &NEW, &plain(1), Standing::default(), NOW).unwrap();
    let codes = verdicts.map(|verdict| (verdict.rule as u8, verdict.level as u8));
    let own = (0..9).map(|rule| (rule, 0));
    let shared = [1, 2].into_iter().flat_map(|level| [15, 14, 13, 10, 11, 12].map(|rule| (rule, level)));
    assert!(own.chain(shared).chain([(9, 0), (16, 0)]).eq(codes));
}

#[test]
fn without_budgets_their_rules_are_not_set() {
    let verdicts =
        assess(&Rules::default(), &Ledger::default(), &NO_BUDGETS, &NEW, &plain(1), Standing::default(), NOW)
            .unwrap();
    for verdict in &verdicts[9..21] {
        assert_eq!((verdict.set, verdict.passed, verdict.retry_at), (false, true, Some(NOW)));
    }
}

#[test]
fn what_the_budgets_refuse_passes_at_the_time_their_verdicts_name_and_not_a_second_before() {
    for seed in 1..=300u64 {
        let random = &mut Random(seed.wrapping_mul(0xe703_7ed1_a0b4_28db) | 1);
        let limits = Limits {
            max_per_day: Some(Usdc(500)),
            max_per_month: Some(Usdc(2_000)),
            velocity_cap: Some(8),
            ..Limits::default()
        };
        let wide = Limits { max_per_day: Some(Usdc(550)), velocity_cap: Some(9), ..limits };
        let (mut vaults, mut pots) = ([Ledger::default(); 3], [Pot::of(limits), Pot::of(wide)]);
        let mut clock = 1_700_000_000;
        for _ in 0..120 {
            clock += random.below(2_000) as i64;
            let payment = plain(1 + random.below(120));
            if random.below(5) == 0 {
                // Another team of the same parent
                let [_, parent] = &mut pots;
                let _ = pay(&Rules::default(), &mut Ledger::default(), parent, &payment, clock);
                continue;
            }
            let vault = &mut vaults[random.below(3) as usize];
            let before = pots;
            let budgets = [Some(before[0].budget()), Some(before[1].budget())];
            let judge = |at| {
                let (rules, standing) = (Rules::default(), Standing::default());
                authorize(&rules, vault, &budgets, &payment, standing, UnixTime(at))
            };
            if let Ok(charges) = judge(clock) {
                vault.charge(&charges.vault).unwrap();
                for (pot, charge) in pots.iter_mut().zip(charges.budgets) {
                    pot.charge(&charge.unwrap());
                }
                continue;
            }
            let verdicts = assess(
                &Rules::default(),
                vault,
                &budgets,
                &NEW,
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
                    &NO_BUDGETS,
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
