//! Replays payments from standard input and prints the verdict of each. This is the native side of the comparison with
//! the program as built for the chain.
//!
//! The commands, one per line:
//!
//! - `rules TX DAY MONTH VELOCITY COSIGN EXPIRY BLOCKED RESTRICTED` sets the rules (`-` leaves a rule unset).
//! - `budget DAY MONTH VELOCITY` gives the vaults a budget, or changes its limits.
//! - `vault NUMBER` selects the vault that pays.
//! - `reset` empties all ledgers and removes the budget.
//! - `pay CLOCK AMOUNT LISTED CATEGORY COSIGNED` pays and prints `ok`, `CODE LIMIT ATTEMPTED` or `overflow`.
//! - `hold CLOCK AMOUNT LISTED CATEGORY COSIGNED` grants an allowance and prints the same as `pay`.
//! - `settle NUMBER CLOCK SPENT` settles the allowance that is payment NUMBER; SPENT was spent.
//! - `refund NUMBER AMOUNT` returns AMOUNT of successful payment NUMBER, counted from zero since the last `reset`.

use agent_vault_policy::{
    authorize, Budget, Category, Ledger, Limits, Payment, Place, Refusal, Rules, Standing, UnixTime, Usdc,
};
use std::{
    collections::HashMap,
    io::{stdin, stdout, BufRead, BufWriter, Write},
};

fn main() {
    let mut rules = Rules::default();
    let mut ledgers: HashMap<u64, Ledger> = HashMap::new();
    let mut paying = 0;
    let mut budget: Option<(Limits, Ledger)> = None;
    let mut made: Vec<(u64, Usdc, Place, Place)> = Vec::new();
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
                budget = None;
            }
            "vault" => paying = required(1),
            "budget" => {
                let limits = Limits {
                    max_per_day: number(1).map(Usdc),
                    max_per_month: number(2).map(Usdc),
                    velocity_cap: number(3),
                };
                budget = Some((limits, budget.map(|(_, ledger)| ledger).unwrap_or_default()));
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
                if let Some((_, ledger)) = &mut budget {
                    ledger.credit(shared, returned);
                }
            }
            "settle" => {
                let (vault, amount, ..) = made[usize::try_from(required(1)).expect("a number")];
                let (clock, spent) = (UnixTime(fields[2].parse().expect("a time")), Usdc(required(3)));
                let ledger = ledgers.entry(vault).or_default();
                ledger.release(clock, amount, spent).expect("it fits");
                if let Some((_, ledger)) = &mut budget {
                    ledger.release(clock, amount, spent).expect("it fits");
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
                let shared = budget.as_ref().map(|(limits, ledger)| Budget { limits: *limits, ledger });
                let verdict =
                    authorize(&rules, ledger, shared.as_ref(), &payment, Standing::default(), clock);
                let charged = verdict.and_then(|charges| {
                    let record = if kind == "hold" { Ledger::hold } else { Ledger::charge };
                    record(ledger, &charges.vault)?;
                    let mut shared = Place::default();
                    if let (Some((_, ledger)), Some(charge)) = (&mut budget, &charges.budget) {
                        record(ledger, charge)?;
                        shared = ledger.place();
                    }
                    made.push((paying, payment.amount, ledger.place(), shared));
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
