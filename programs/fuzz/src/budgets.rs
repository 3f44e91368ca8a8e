//! The promise of a budget and of its parent: whatever their vaults and the clock do, no 24 hours, no hour, no month and
//! no life hold more spending than their limits. Each such interval is checked against a list of all payments with their
//! times.

use crate::{calendar::month_end, inputs, start, Step};
use agent_vault_policy::{
    authorize, Budget, Ledger, Limits, Payment, Place, Rules, Standing, UnixTime, Usdc,
};
use bolero::TypeGenerator;

const VAULTS: usize = 4;
const DAY: i64 = 86_400;
const HOUR: i64 = 3_600;

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Move {
    Pay { vault: u8, step: Step, amount: u8 },
    Credit { payment: u8, part: u8 },
}

#[derive(Clone, Copy)]
struct Paid {
    at: i64,
    net: u64,
    place: Place,
}

/// A budget's account, and all its payments.
struct Pot {
    limits: Limits,
    total: u64,
    ledger: Ledger,
    paid: Vec<Paid>,
}

fn assert_kept(Pot { limits, total, paid, .. }: &Pot) {
    assert_eq!(*total, paid.iter().map(|one| one.net).sum::<u64>());
    assert!(limits.max_total.is_none_or(|most| *total <= most.0));
    assert!(limits.expires_at.is_none_or(|end| paid.iter().all(|one| one.at <= end.0)));
    for (first, from) in paid.iter().enumerate() {
        let within = |seconds: i64| paid[first..].iter().take_while(move |one| one.at - from.at < seconds);
        if let Some(Usdc(most)) = limits.max_per_day {
            assert!(within(DAY).map(|one| one.net).sum::<u64>() <= most);
        }
        if let Some(most) = limits.velocity_cap {
            assert!(within(HOUR).count() as u64 <= most);
        }
        if let Some(Usdc(most)) = limits.max_per_month {
            let month = paid.iter().filter(|one| month_end(one.at) == month_end(from.at));
            assert!(month.map(|one| one.net).sum::<u64>() <= most);
        }
    }
}

#[test]
fn no_span_of_time_holds_more_than_the_budget_allows() {
    let runs =
        bolero::check!().with_type::<(u32, [[Option<u8>; 5]; 2], Vec<Move>)>().with_iterations(inputs(60));
    runs.for_each(|(offset, levels, moves)| {
        let mut clock = start(*offset);
        let mut ledgers = [Ledger::default(); VAULTS];
        let mut pots = levels.map(|[day, month, hour, life, end]| Pot {
            limits: Limits {
                max_per_day: day.map(|most| Usdc(most.into())),
                max_per_month: month.map(|most| Usdc(2 * u64::from(most))),
                velocity_cap: hour.map(|most| u64::from(most % 8)),
                max_total: life.map(|most| Usdc(4 * u64::from(most))),
                expires_at: end.map(|days| UnixTime(clock + DAY * i64::from(days))),
            },
            total: 0,
            ledger: Ledger::default(),
            paid: Vec::new(),
        });
        for each in moves {
            match *each {
                Move::Pay { vault, step, amount } => {
                    clock = step.from(clock);
                    let ledger = &mut ledgers[usize::from(vault) % VAULTS];
                    let payment = Payment {
                        amount: Usdc(amount.into()),
                        listed: true,
                        category: Default::default(),
                        co_signed: false,
                    };
                    let budgets = pots.each_ref().map(|Pot { limits, total, ledger, .. }| {
                        Some(Budget { limits: *limits, frozen: false, total_spent: Usdc(*total), ledger })
                    });
                    let (rules, standing) = (Rules::default(), Standing::default());
                    let clock = UnixTime(clock);
                    let Ok(charges) = authorize(&rules, ledger, &budgets, &payment, standing, clock) else {
                        continue;
                    };
                    ledger.charge(&charges.vault).unwrap();
                    for (pot, charge) in pots.iter_mut().zip(charges.budgets) {
                        let charge = charge.expect("it has both");
                        pot.ledger.charge(&charge).unwrap();
                        pot.total += u64::from(amount);
                        let place = pot.ledger.place();
                        pot.paid.push(Paid { at: charge.at.0, net: amount.into(), place });
                    }
                }
                Move::Credit { payment, part } => {
                    for pot in &mut pots {
                        let count = pot.paid.len();
                        if let Some(one) = pot.paid.get_mut(usize::from(payment) % count.max(1)) {
                            let returned = one.net * u64::from(part) / 255;
                            one.net -= returned;
                            pot.ledger.credit(one.place, Usdc(returned));
                            pot.total -= returned;
                        }
                    }
                }
            }
        }
        pots.iter().for_each(assert_kept);
    });
}
