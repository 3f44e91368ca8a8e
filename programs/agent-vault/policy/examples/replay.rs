//! Replays payments from standard input and prints the verdict of each: the native side of the comparison with the
//! program as built for the chain.
//!
//! `rules TX DAY MONTH VELOCITY COSIGN EXPIRY BLOCKED RESTRICTED` sets the rules (`-`: not set);
//! `reset` empties the ledger; `pay CLOCK AMOUNT LISTED CATEGORY COSIGNED` pays and prints
//! `ok` or `CODE LIMIT ATTEMPTED` or `overflow`.

use agent_vault_policy::{authorize, Category, Ledger, Payment, Refusal, Rules, Standing, UnixTime, Usdc};
use std::io::{stdin, stdout, BufRead, BufWriter, Write};

fn main() {
    let mut rules = Rules::default();
    let mut ledger = Ledger::default();
    let mut out = BufWriter::new(stdout().lock());
    for line in stdin().lock().lines() {
        let line = line.expect("standard input is readable");
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse::<u64>().ok();
        let required = |at: usize| number(at).expect("a number");
        match fields[0] {
            "reset" => ledger = Ledger::default(),
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
            "pay" => {
                let clock = UnixTime(fields[1].parse().expect("a time"));
                let payment = Payment {
                    amount: Usdc(required(2)),
                    listed: required(3) == 1,
                    category: Category(u8::try_from(required(4)).expect("a category")),
                    co_signed: required(5) == 1,
                };
                let verdict = authorize(&rules, &ledger, &payment, Standing::default(), clock)
                    .and_then(|charge| ledger.charge(&charge).map_err(Refusal::from));
                match verdict {
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
