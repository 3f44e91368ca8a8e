//! The windows of a ledger and the refunds credited to them, checked against a [`Book`].

use crate::{
    book::{Book, Charged},
    inputs, start, Amount, Step,
};
use agent_vault_policy::{authorize, Budget, Category, Ledger, Payment, Rules, Standing, UnixTime, Usdc};
use bolero::TypeGenerator;

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Move {
    Charge { step: Step, amount: Amount, count: u8 },
    Credit { charge: u8, returned: Amount },
    Hold { step: Step, amount: Amount },
    Release { step: Step, hold: u8, spent: Amount },
    Look { step: Step },
}

#[test]
fn a_ledger_says_what_a_book_of_everything_says() {
    let moves = bolero::check!().with_type::<(u32, Vec<Move>)>().with_iterations(inputs(60));
    moves.for_each(|(offset, moves)| {
        let (mut clock, mut ledger, mut book) = (start(*offset), Ledger::default(), Book::default());
        let mut charges: Vec<Charged> = Vec::new();
        let mut held: Vec<u64> = Vec::new();
        for each in moves {
            match *each {
                Move::Charge { step, amount, count } => {
                    clock = step.from(clock);
                    let (now, amount, count) = (book.time(clock), amount.get(), u64::from(count));
                    let mut next = ledger;
                    let charged = next.record(UnixTime(clock), Usdc(amount), count);
                    let entry = book.charge(now, amount, count);
                    assert_eq!(charged.is_ok(), entry.is_some());
                    if let Some(entry) = entry {
                        ledger = next;
                        charges.push(Charged { place: ledger.place(), entry });
                    }
                }
                Move::Credit { charge, returned } if !charges.is_empty() => {
                    let charged = charges[usize::from(charge) % charges.len()];
                    ledger.credit(charged.place, Usdc(returned.get()));
                    book.credit(charged.entry, returned.get());
                }
                Move::Hold { step, amount } => {
                    clock = step.from(clock);
                    let payment = Payment {
                        amount: Usdc(amount.get()),
                        listed: false,
                        category: Category(0),
                        co_signed: false,
                    };
                    let (rules, standing) = (Rules::default(), Standing::default());
                    let charges =
                        authorize(&rules, &ledger, &[None::<Budget>; 2], &payment, standing, UnixTime(clock));
                    let mut next = ledger;
                    if next.hold(&charges.unwrap().vault).is_ok() {
                        ledger = next;
                        held.push(amount.get());
                        book.charge(book.time(clock), 0, 1).unwrap();
                    }
                }
                Move::Release { step, hold, spent } if !held.is_empty() => {
                    clock = step.from(clock);
                    let amount = held.swap_remove(usize::from(hold) % held.len());
                    let (now, spent) = (book.time(clock), spent.get().min(amount));
                    let mut next = ledger;
                    let released = next.release(UnixTime(clock), Usdc(amount), Usdc(spent));
                    let recorded = spent == 0 || book.charge(now, spent, 0).is_some();
                    assert_eq!(released.is_ok(), recorded);
                    if recorded {
                        ledger = next;
                    } else {
                        held.push(amount);
                    }
                }
                Move::Credit { .. } | Move::Release { .. } => {}
                Move::Look { step } => clock = step.from(clock),
            }
            book.assert_is(&ledger, book.time(clock));
            assert_eq!(ledger.held.0, held.iter().sum::<u64>());
        }
    });
}
