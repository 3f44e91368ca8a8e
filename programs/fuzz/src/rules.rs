//! The verdicts of all rules on payments, of vaults with and without budgets, checked against one long list of
//! conditions.

use crate::{
    book::{Book, Charged},
    inputs, start, Amount, Step,
};
use agent_vault_policy::{
    assess, authorize, payees::NewRecipient, Budget, Budgets, Category, Ledger, Limits, Payment, Refusal,
    Rules, Standing, UnixTime, Usdc,
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
    max_total: Option<Amount>,
    expires_in: Option<i32>,
}

impl Bounds {
    fn limits(&self, clock: i64) -> Limits {
        Limits {
            max_per_day: self.max_per_day.map(|amount| Usdc(amount.get())),
            max_per_month: self.max_per_month.map(|amount| Usdc(amount.get())),
            velocity_cap: self.velocity_cap.map(u64::from),
            max_total: self.max_total.map(|amount| Usdc(amount.get())),
            expires_at: self.expires_in.map(|seconds| UnixTime(clock + i64::from(seconds))),
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
    /// Number of budgets above the vault: none, one, or one with a parent.
    budgets: u8,
    /// The organisation counts as paused only if all bits are set. Few random values have them, so most payments are
    /// judged.
    paused: u8,
    frozen: u8,
    /// The same for the budget and its parent.
    frozen_budgets: [u8; 2],
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Move {
    Pay(Asked),
    PayAgain,
    Credit { charge: u8, part: u8 },
    Rules(Terms),
    Limits(bool, Bounds),
}

/// A budget: as the policy crate keeps it, and as the model does.
#[derive(Clone, Default)]
struct Pot {
    limits: Limits,
    frozen: bool,
    total: u64,
    ledger: Ledger,
    book: Book,
    /// Total in the model.
    spent: u128,
}

impl Pot {
    fn budget(&self) -> Budget<'_> {
        let Pot { limits, frozen, total, ledger, .. } = self;
        Budget { limits: *limits, frozen: *frozen, total_spent: Usdc(*total), ledger }
    }
}

/// A payment in the model's terms.
struct Case<'a> {
    rules: Rules,
    own: &'a Book,
    pots: &'a [Pot],
    payment: Payment,
    standing: Standing,
    clock: i64,
}

impl Case<'_> {
    /// Returns, for each rule in the order of judgement: its code, true if it refuses, its limit, and the value that
    /// the payment would reach. The first field is the level. An unset rule has zeros; the rules of missing budgets are
    /// missing.
    fn judge(&self) -> Vec<Judged> {
        let Case { rules, payment, standing, own, pots, clock } = self;
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
        let until = |code: u8, end: Option<UnixTime>, now: i64| match end {
            Some(end) => (code, now > end.0, end.0.max(0).unsigned_abs(), now.max(0).unsigned_abs()),
            None => (code, false, 0, 0),
        };
        let of_vault = [
            (0, standing.paused, 0, 0),
            (1, standing.frozen, 0, 0),
            until(2, rules.expiry, now),
            (3, rules.restricted && !payment.listed, 0, 0),
            (4, rules.blocked_categories != 0 && is_blocked(category), blocked, category.into()),
            cap(5, money(rules.max_per_tx), 0, amount),
            cap(6, rules.velocity_cap, own.hour(now), 1),
            cap(7, money(rules.max_per_day), own.day(now), amount),
            cap(8, money(rules.max_per_month), own.month(now), amount),
        ];
        let mut judged: Vec<Judged> = of_vault.map(|one| (0, one)).to_vec();
        for (level, Pot { limits, frozen, book, spent, .. }) in (1u8..).zip(pots.iter()) {
            let now = book.time(*clock);
            let of_budget = [
                (15, *frozen, 0, 0),
                until(14, limits.expires_at, now),
                cap(13, money(limits.max_total), *spent, amount),
                cap(10, money(limits.max_per_day), book.day(now), amount),
                cap(11, money(limits.max_per_month), book.month(now), amount),
                cap(12, limits.velocity_cap, book.hour(now), 1),
            ];
            judged.extend(of_budget.map(|one| (level, one)));
        }
        let (_, above, threshold, attempted) = cap(9, money(rules.require_co_sign), 0, amount);
        judged.push((0, (9, above && !payment.co_signed, threshold, attempted)));
        judged
    }
}

/// The level, and the rule's code, true if it refuses, its limit and the attempted value.
type Judged = (u8, (u8, bool, u64, u64));

/// Asserts that the preview's verdict on each rule matches the model's, and that its `retry_at` is the first time that
/// passes.
fn assert_previewed(case: &Case, ledger: &Ledger, budgets: &Budgets<Budget>, judged: &[Judged]) {
    let ask = |clock: i64| {
        assess(
            &case.rules,
            ledger,
            budgets,
            &NewRecipient::default(),
            &case.payment,
            case.standing,
            UnixTime(clock),
        )
        .unwrap()
    };
    for verdict in ask(case.clock) {
        let (code, level) = (verdict.rule as u8, verdict.level as u8);
        let refused = judged.iter().any(|(at, one)| (*at, one.0) == (level, code) && one.1);
        assert_eq!(verdict.passed, !refused, "rule {code}");
        let passes_at = |at: i64| {
            ask(at).iter().any(|one| (one.rule, one.level) == (verdict.rule, verdict.level) && one.passed)
        };
        match verdict.retry_at {
            Some(UnixTime(at)) if refused => {
                assert!(passes_at(at), "rule {code} at {at}");
                assert!(!passes_at(at - 1), "rule {code} before {at}");
            }
            _ => {}
        }
    }
}

/// A payment that was made: its vault, the rest of it, and its places in the ledgers.
struct Made {
    vault: usize,
    left: u64,
    own: Charged,
    of_budgets: Vec<Charged>,
}

#[test]
fn every_payment_is_judged_as_one_list_of_conditions_says() {
    let runs = bolero::check!().with_type::<(u32, Terms, [Bounds; 2], Vec<Move>)>();
    runs.with_iterations(inputs(150)).for_each(|(offset, terms, bounds, moves)| {
        let mut clock = start(*offset);
        let mut rules = terms.rules(clock);
        let mut pots = bounds.map(|bounds| Pot { limits: bounds.limits(clock), ..Pot::default() });
        let mut ledgers = [Ledger::default(); VAULTS];
        let mut books: [Book; VAULTS] = Default::default();
        let mut made: Vec<Made> = Vec::new();
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
                Move::Limits(of_parent, bounds) => {
                    pots[usize::from(of_parent)].limits = bounds.limits(clock);
                    continue;
                }
                Move::Credit { charge, part } => {
                    if made.is_empty() {
                        continue;
                    }
                    let at = usize::from(charge) % made.len();
                    let Made { vault, left, own, of_budgets } = &mut made[at];
                    let returned = u64::try_from(u128::from(*left) * u128::from(part) / 255).unwrap();
                    *left -= returned;
                    ledgers[*vault].credit(own.place, Usdc(returned));
                    books[*vault].credit(own.entry, returned);
                    for (pot, charged) in pots.iter_mut().zip(of_budgets) {
                        pot.ledger.credit(charged.place, Usdc(returned));
                        pot.total -= returned;
                        pot.book.credit(charged.entry, returned);
                        pot.spent -= u128::from(returned);
                    }
                    continue;
                }
            };
            last = Some(asked);
            clock = asked.step.from(clock);
            let vault = usize::from(asked.vault) % VAULTS;
            for (pot, frozen) in pots.iter_mut().zip(asked.frozen_budgets) {
                pot.frozen = frozen == u8::MAX;
            }
            let count = usize::from(asked.budgets) % 3;
            let case = Case {
                rules,
                own: &books[vault],
                pots: &pots[..count],
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
            let budgets = [0, 1].map(|at| case.pots.get(at).map(Pot::budget));
            assert_previewed(&case, &ledgers[vault], &budgets, &judged);
            let at = UnixTime(clock);
            let verdict = authorize(&rules, &ledgers[vault], &budgets, &case.payment, case.standing, at);
            let refused = judged.into_iter().find(|(_, one)| one.1);
            let charges = match (verdict, refused) {
                (Ok(charges), None) => charges,
                (Err(Refusal::Violation(found)), Some((level, (code, _, limit, attempted)))) => {
                    let of = (found.level as u8, found.rule as u8, found.limit, found.attempted);
                    assert_eq!(of, (level, code, limit, attempted));
                    continue;
                }
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            };
            // A charge that does not fit into 64 bits leaves everything unchanged.
            let (amount, mut own_next, mut own_book) =
                (asked.amount.get(), ledgers[vault], books[vault].clone());
            let charged = own_next.charge(&charges.vault).is_ok();
            let own = own_book.charge(own_book.time(clock), amount, 1);
            assert_eq!(charged, own.is_some());
            let mut next = pots.clone();
            let of_budgets: Option<Vec<Charged>> = next
                .iter_mut()
                .zip(charges.budgets)
                .filter_map(|(pot, charge)| Some((pot, charge?)))
                .map(|(pot, charge)| {
                    let fits = pot.ledger.charge(&charge).is_ok();
                    let entry = pot.book.charge(pot.book.time(clock), amount, 1);
                    assert_eq!(fits, entry.is_some());
                    pot.total = pot.total.checked_add(amount)?;
                    pot.spent += u128::from(amount);
                    Some(Charged { place: pot.ledger.place(), entry: entry? })
                })
                .collect();
            let (Some(entry), Some(of_budgets)) = (own, of_budgets) else { continue };
            assert_eq!(of_budgets.len(), count);
            (ledgers[vault], books[vault], pots) = (own_next, own_book, next);
            let own = Charged { place: ledgers[vault].place(), entry };
            made.push(Made { vault, left: amount, own, of_budgets });
            books[vault].assert_is(&ledgers[vault], books[vault].time(clock));
            for pot in &pots {
                pot.book.assert_is(&pot.ledger, pot.book.time(clock));
                assert_eq!(u128::from(pot.total), pot.spent);
            }
        }
    });
}
