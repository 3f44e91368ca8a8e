//! Replays payments from standard input and prints the verdict of each. This is the native side of the comparison with
//! the program as built for the chain.
//!
//! The commands, one per line:
//!
//! - `rules TX DAY MONTH VELOCITY COSIGN EXPIRY BLOCKED RESTRICTED` sets the rules (`-` leaves a rule unset).
//! - `budget DAY MONTH VELOCITY TOTAL EXPIRY FROZEN` gives the vaults a budget, or changes it.
//! - `parent DAY MONTH VELOCITY TOTAL EXPIRY FROZEN` gives that budget a parent, or changes it.
//! - `vault NUMBER` selects the vault that pays.
//! - `reset` empties all ledgers and removes the budgets.
//! - `pay CLOCK AMOUNT LISTED CATEGORY COSIGNED` pays and prints `ok`, `CODE LIMIT ATTEMPTED` or `overflow`.
//! - `hold CLOCK AMOUNT LISTED CATEGORY COSIGNED` grants an allowance and prints the same as `pay`.
//! - `settle NUMBER CLOCK SPENT` settles the allowance that is payment NUMBER; SPENT was spent.
//! - `refund NUMBER AMOUNT` returns AMOUNT of successful payment NUMBER, counted from zero since the last `reset`.

use agent_vault_policy::{
    authorize, Budget, Category, Charge, Ledger, Limits, Overflow, Payment, Place, Refusal, Rules, Standing,
    UnixTime, Usdc,
};
use std::{
    collections::HashMap,
    io::{stdin, stdout, BufRead, BufWriter, Write},
};

/// A budget's account.
#[derive(Default)]
struct Pot {
    limits: Limits,
    frozen: bool,
    total: u64,
    ledger: Ledger,
}

impl Pot {
    fn spend(&mut self, amount: Usdc) -> Result<(), Overflow> {
        self.total = self.total.checked_add(amount.0).ok_or(Overflow)?;
        Ok(())
    }
}

fn main() {
    let mut rules = Rules::default();
    let mut ledgers: HashMap<u64, Ledger> = HashMap::new();
    let mut paying = 0;
    let mut budgets: [Option<Pot>; 2] = [None, None];
    let mut made: Vec<(u64, Usdc, Place, [Place; 2])> = Vec::new();
    let mut out = BufWriter::new(stdout().lock());
    for line in stdin().lock().lines() {
        let line = line.expect("standard input is readable");
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse::<u64>().ok();
        let required = |at: usize| number(at).expect("a number");
        match fields[0] {
            "reset" => {
                ledgers.clear();
                made.clear();
                budgets = [None, None];
            }
            "vault" => paying = required(1),
            level @ ("budget" | "parent") => {
                let pot = budgets[usize::from(level == "parent")].get_or_insert_default();
                pot.limits = Limits {
                    max_per_day: number(1).map(Usdc),
                    max_per_month: number(2).map(Usdc),
                    velocity_cap: number(3),
                    max_total: number(4).map(Usdc),
                    expires_at: number(5).map(|time| UnixTime(i64::try_from(time).expect("a time"))),
                };
                pot.frozen = required(6) == 1;
            }
            "rules" => {
                rules = Rules {
                    max_per_tx: number(1).map(Usdc),
                    max_per_day: number(2).map(Usdc),
                    max_per_month: number(3).map(Usdc),
                    velocity_cap: number(4),
                    require_co_sign: number(5).map(Usdc),
                    expiry: number(6).map(|time| UnixTime(i64::try_from(time).expect("a time"))),
                    blocked_categories: u32::try_from(required(7)).expect("a bit set"),
                    restricted: required(8) == 1,
                }
            }
            "refund" => {
                let (vault, _, own, shared) = made[usize::try_from(required(1)).expect("a number")];
                let returned = Usdc(required(2));
                ledgers.entry(vault).or_default().credit(own, returned);
                for (pot, place) in budgets.iter_mut().zip(shared) {
                    let Some(pot) = pot else { continue };
                    pot.ledger.credit(place, returned);
                    pot.total = pot.total.saturating_sub(returned.0);
                }
            }
            "settle" => {
                let (vault, amount, ..) = made[usize::try_from(required(1)).expect("a number")];
                let (clock, spent) = (UnixTime(fields[2].parse().expect("a time")), Usdc(required(3)));
                let ledger = ledgers.entry(vault).or_default();
                ledger.release(clock, amount, spent).expect("it fits");
                for pot in budgets.iter_mut().flatten() {
                    pot.ledger.release(clock, amount, spent).expect("it fits");
                    pot.spend(spent).expect("it fits");
                }
            }
            kind @ ("pay" | "hold") => {
                let clock = UnixTime(fields[1].parse().expect("a time"));
                let payment = Payment {
                    amount: Usdc(required(2)),
                    listed: required(3) == 1,
                    category: Category(u8::try_from(required(4)).expect("a category")),
                    co_signed: required(5) == 1,
                };
                let ledger = ledgers.entry(paying).or_default();
                let levels = budgets.each_ref().map(|pot| {
                    let Pot { limits, frozen, total, ledger } = pot.as_ref()?;
                    Some(Budget { limits: *limits, frozen: *frozen, total_spent: Usdc(*total), ledger })
                });
                let verdict = authorize(&rules, ledger, &levels, &payment, Standing::default(), clock);
                let charged = verdict.and_then(|charges| {
                    let held = kind == "hold";
                    let record = if held { Ledger::hold } else { Ledger::charge };
                    record(ledger, &charges.vault)?;
                    let mut places = [Place::default(); 2];
                    for ((pot, charge), place) in budgets.iter_mut().zip(charges.budgets).zip(&mut places) {
                        let (Some(pot), Some(charge @ Charge { amount, .. })) = (pot, charge) else {
                            continue;
                        };
                        record(&mut pot.ledger, &charge)?;
                        pot.spend(if held { Usdc(0) } else { amount })?;
                        *place = pot.ledger.place();
                    }
                    made.push((paying, payment.amount, ledger.place(), places));
                    Ok(())
                });
                match charged {
                    Ok(()) => writeln!(out, "ok"),
                    Err(Refusal::Overflow) => writeln!(out, "overflow"),
                    Err(Refusal::Violation(v)) => {
                        writeln!(out, "{} {} {}", v.rule as u8, v.limit, v.attempted)
                    }
                }
                .expect("standard output is writable");
            }
            other => panic!("unknown command {other:?}"),
        }
    }
}
