//! The verdicts of all rules on payments, of vaults with and without a budget, checked against one long list of
//! conditions.

use crate::{
    book::{Book, Charged},
    inputs, start, Amount, Step,
};
use agent_vault_policy::{
    assess, authorize, Budget, Category, Ledger, Limits, Payment, Refusal, Rules, Standing, UnixTime, Usdc,
};
use bolero::TypeGenerator;

const VAULTS: usize = 3;

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct Terms {
    max_per_tx: Option<Amount>,
    max_per_day: Option<Amount>,
    max_per_month: Option<Amount>,
    velocity_cap: Option<u8>,
    require_co_sign: Option<Amount>,
    expires_in: Option<i32>,
    blocked_categories: u32,
    blocks: bool,
    restricted: bool,
}

impl Terms {
    fn rules(&self, clock: i64) -> Rules {
        let money = |amount: Option<Amount>| amount.map(|amount| Usdc(amount.get()));
        Rules {
            max_per_tx: money(self.max_per_tx),
            max_per_day: money(self.max_per_day),
            max_per_month: money(self.max_per_month),
            velocity_cap: self.velocity_cap.map(u64::from),
            require_co_sign: money(self.require_co_sign),
            expiry: self.expires_in.map(|seconds| UnixTime(clock + i64::from(seconds))),
            blocked_categories: if self.blocks { self.blocked_categories } else { 0 },
            restricted: self.restricted,
        }
    }
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct Bounds {
    max_per_day: Option<Amount>,
    max_per_month: Option<Amount>,
    velocity_cap: Option<u8>,
}

impl Bounds {
    fn limits(&self) -> Limits {
        Limits {
            max_per_day: self.max_per_day.map(|amount| Usdc(amount.get())),
            max_per_month: self.max_per_month.map(|amount| Usdc(amount.get())),
            velocity_cap: self.velocity_cap.map(u64::from),
        }
    }
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct Asked {
    vault: u8,
    step: Step,
    amount: Amount,
    unlisted: bool,
    category: u8,
    co_signed: bool,
    in_budget: bool,
    /// The organisation counts as paused only if all bits are set. Few random values have them, so most payments are
    /// judged.
    paused: u8,
    frozen: u8,
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Move {
    Pay(Asked),
    PayAgain,
    Credit { charge: u8, part: u8 },
    Rules(Terms),
    Limits(Bounds),
}

/// A payment in the model's terms.
struct Case<'a> {
    rules: Rules,
    limits: Option<Limits>,
    own: &'a Book,
    shared: &'a Book,
    payment: Payment,
    standing: Standing,
    clock: i64,
}

impl Case<'_> {
    /// Returns, for each rule in the order of judgement: its code, true if it refuses, its limit, and the value that
    /// the payment would reach. An unset rule has zeros; without a budget, the budget's rules are missing.
    fn judge(&self) -> Vec<(u8, bool, u64, u64)> {
        let Case { rules, payment, standing, own, shared, clock, .. } = self;
        let (amount, now) = (payment.amount.0, own.time(*clock));
        let cut = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        let cap = |code: u8, limit: Option<u64>, held: u128, more: u64| match limit {
            Some(limit) => {
                let sum = held + u128::from(more);
                (code, sum > u128::from(limit), limit, cut(sum))
            }
            None => (code, false, 0, 0),
        };
        let money = |limit: Option<Usdc>| limit.map(|limit| limit.0);
        let is_blocked = |code: u8| code >= 32 || (rules.blocked_categories >> code) % 2 == 1;
        let category = payment.category.0;
        let blocked = rules.blocked_categories.into();
        let mut judged = vec![
            (0, standing.paused, 0, 0),
            (1, standing.frozen, 0, 0),
            match rules.expiry {
                Some(end) => (2, now > end.0, end.0.max(0).unsigned_abs(), now.max(0).unsigned_abs()),
                None => (2, false, 0, 0),
            },
            (3, rules.restricted && !payment.listed, 0, 0),
            (4, rules.blocked_categories != 0 && is_blocked(category), blocked, category.into()),
            cap(5, money(rules.max_per_tx), 0, amount),
            cap(6, rules.velocity_cap, own.hour(now), 1),
            cap(7, money(rules.max_per_day), own.day(now), amount),
            cap(8, money(rules.max_per_month), own.month(now), amount),
        ];
        if let Some(limits) = self.limits {
            let now = shared.time(*clock);
            judged.push(cap(10, money(limits.max_per_day), shared.day(now), amount));
            judged.push(cap(11, money(limits.max_per_month), shared.month(now), amount));
            judged.push(cap(12, limits.velocity_cap, shared.hour(now), 1));
        }
        let (_, above, threshold, attempted) = cap(9, money(rules.require_co_sign), 0, amount);
        judged.push((9, above && !payment.co_signed, threshold, attempted));
        judged
    }
}

/// Asserts that the preview's verdict on each rule matches the model's, and that its `retry_at` is the first time that
/// passes.
fn assert_previewed(case: &Case, ledger: &Ledger, budget: Option<&Budget>, judged: &[(u8, bool, u64, u64)]) {
    let ask = |clock: i64| {
        assess(&case.rules, ledger, budget, &case.payment, case.standing, UnixTime(clock)).unwrap()
    };
    for verdict in ask(case.clock) {
        let code = verdict.rule as u8;
        let refused = judged.iter().find(|one| one.0 == code).is_some_and(|one| one.1);
        assert_eq!(verdict.passed, !refused, "rule {code}");
        let passes_at = |at: i64| ask(at).iter().any(|one| one.rule == verdict.rule && one.passed);
        match verdict.retry_at {
            Some(UnixTime(at)) if refused => {
                assert!(passes_at(at), "rule {code} at {at}");
                assert!(!passes_at(at - 1), "rule {code} before {at}");
            }
            _ => {}
        }
    }
}

#[test]
fn every_payment_is_judged_as_one_list_of_conditions_says() {
    let runs = bolero::check!().with_type::<(u32, Terms, Bounds, Vec<Move>)>().with_iterations(inputs(150));
    runs.for_each(|(offset, terms, bounds, moves)| {
        let mut clock = start(*offset);
        let (mut rules, mut limits) = (terms.rules(clock), bounds.limits());
        let mut ledgers = [Ledger::default(); VAULTS];
        let mut books: [Book; VAULTS] = Default::default();
        let (mut pot, mut shared) = (Ledger::default(), Book::default());
        let mut made: Vec<(usize, u64, Charged, Option<Charged>)> = Vec::new();
        let mut last = None;
        for each in moves {
            let asked = match *each {
                Move::Pay(asked) => asked,
                Move::PayAgain => match last {
                    Some(asked) => asked,
                    None => continue,
                },
                Move::Rules(terms) => {
                    rules = terms.rules(clock);
                    continue;
                }
                Move::Limits(bounds) => {
                    limits = bounds.limits();
                    continue;
                }
                Move::Credit { charge, part } => {
                    if made.is_empty() {
                        continue;
                    }
                    let at = usize::from(charge) % made.len();
                    let (vault, left, own, of_budget) = made[at];
                    let returned = u64::try_from(u128::from(left) * u128::from(part) / 255).unwrap();
                    made[at].1 -= returned;
                    ledgers[vault].credit(own.place, Usdc(returned));
                    books[vault].credit(own.entry, returned);
                    if let Some(charged) = of_budget {
                        pot.credit(charged.place, Usdc(returned));
                        shared.credit(charged.entry, returned);
                    }
                    continue;
                }
            };
            last = Some(asked);
            clock = asked.step.from(clock);
            let vault = usize::from(asked.vault) % VAULTS;
            let case = Case {
                rules,
                limits: asked.in_budget.then_some(limits),
                own: &books[vault],
                shared: &shared,
                payment: Payment {
                    amount: Usdc(asked.amount.get()),
                    listed: !asked.unlisted,
                    category: Category(asked.category),
                    co_signed: asked.co_signed,
                },
                standing: Standing { paused: asked.paused == u8::MAX, frozen: asked.frozen == u8::MAX },
                clock,
            };
            let judged = case.judge();
            let budget = case.limits.map(|limits| Budget { limits, ledger: &pot });
            assert_previewed(&case, &ledgers[vault], budget.as_ref(), &judged);
            let verdict = authorize(
                &rules,
                &ledgers[vault],
                budget.as_ref(),
                &case.payment,
                case.standing,
                UnixTime(clock),
            );
            let refused = judged.into_iter().find(|one| one.1);
            let charges = match (verdict, refused) {
                (Ok(charges), None) => charges,
                (Err(Refusal::Violation(found)), Some((code, _, limit, attempted))) => {
                    assert_eq!((found.rule as u8, found.limit, found.attempted), (code, limit, attempted));
                    continue;
                }
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            };
            // A charge that does not fit into 64 bits leaves everything unchanged.
            let (amount, mut own_next, mut pot_next) = (asked.amount.get(), ledgers[vault], pot);
            let (mut own_book, mut shared_book) = (books[vault].clone(), shared.clone());
            let charged = own_next
                .charge(&charges.vault)
                .and_then(|()| charges.budget.map_or(Ok(()), |charge| pot_next.charge(&charge)));
            let own = own_book.charge(own_book.time(clock), amount, 1);
            let of_budget = charges.budget.map(|_| shared_book.charge(shared_book.time(clock), amount, 1));
            let (Some(own), of_budget) = (own, of_budget.map_or(Some(None), |entry| entry.map(Some))) else {
                assert!(charged.is_err());
                continue;
            };
            assert_eq!(charged.is_ok(), of_budget.is_some());
            let Some(of_budget) = of_budget else { continue };
            (ledgers[vault], pot) = (own_next, pot_next);
            (books[vault], shared) = (own_book, shared_book);
            let own = Charged { place: ledgers[vault].place(), entry: own };
            let of_budget = of_budget.map(|entry| Charged { place: pot.place(), entry });
            made.push((vault, amount, own, of_budget));
            books[vault].assert_is(&ledgers[vault], books[vault].time(clock));
            shared.assert_is(&pot, shared.time(clock));
        }
    });
}
