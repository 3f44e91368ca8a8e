//! The windows of a ledger and the refunds credited to them, checked against a [`Book`].

use crate::{
    book::{Book, Charged},
    inputs, start, Amount, Step,
};
use agent_vault_policy::{Ledger, UnixTime, Usdc};
use bolero::TypeGenerator;

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Move {
    Charge { step: Step, amount: Amount, count: u8 },
    Credit { charge: u8, returned: Amount },
    Look { step: Step },
}

#[test]
fn a_ledger_says_what_a_book_of_everything_says() {
    let moves = bolero::check!().with_type::<(u32, Vec<Move>)>().with_iterations(inputs(60));
    moves.for_each(|(offset, moves)| {
        let (mut clock, mut ledger, mut book) = (start(*offset), Ledger::default(), Book::default());
        let mut charges: Vec<Charged> = Vec::new();
        for each in moves {
            match *each {
                Move::Charge { step, amount, count } => {
                    clock = step.from(clock);
                    let (now, amount, count) = (book.time(clock), amount.get(), u64::from(count));
                    let mut next = ledger;
                    let charged = next.count_outstanding(UnixTime(clock), Usdc(amount), count);
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
                Move::Credit { .. } => {}
                Move::Look { step } => clock = step.from(clock),
            }
            book.assert_is(&ledger, book.time(clock));
        }
    });
}
