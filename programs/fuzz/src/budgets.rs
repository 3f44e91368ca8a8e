//! The promise of a budget: whatever its vaults and the clock do, no 24 hours, no hour and no month hold more spending
//! than its limits. Each such interval is checked against a list of all payments with their times.

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

struct Paid {
    at: i64,
    net: u64,
    place: Place,
}

fn assert_kept(limits: &Limits, paid: &[Paid]) {
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
    let runs = bolero::check!().with_type::<(u32, [Option<u8>; 3], Vec<Move>)>().with_iterations(inputs(40));
    runs.for_each(|(offset, [day, month, hour], moves)| {
        let mut clock = start(*offset);
        let limits = Limits {
            max_per_day: day.map(|most| Usdc(most.into())),
            max_per_month: month.map(|most| Usdc(2 * u64::from(most))),
            velocity_cap: hour.map(|most| u64::from(most % 8)),
        };
        let (mut ledgers, mut shared) = ([Ledger::default(); VAULTS], Ledger::default());
        let mut paid: Vec<Paid> = Vec::new();
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
                    let budget = Budget { limits, ledger: &shared };
                    let (rules, standing) = (Rules::default(), Standing::default());
                    let clock = UnixTime(clock);
                    let Ok(charges) = authorize(&rules, ledger, Some(&budget), &payment, standing, clock)
                    else {
                        continue;
                    };
                    let charge = charges.budget.expect("it has one");
                    ledger.charge(&charges.vault).unwrap();
                    shared.charge(&charge).unwrap();
                    paid.push(Paid { at: charge.at.0, net: amount.into(), place: shared.place() });
                }
                Move::Credit { payment, part } => {
                    let count = paid.len();
                    if let Some(one) = paid.get_mut(usize::from(payment) % count.max(1)) {
                        let returned = one.net * u64::from(part) / 255;
                        one.net -= returned;
                        shared.credit(one.place, Usdc(returned));
                    }
                }
            }
        }
        assert_kept(&limits, &paid);
    });
}
