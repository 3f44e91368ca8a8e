//! `max_per_month`: the maximum spending in a UTC calendar month.

use crate::{
    types::{Ledger, Payment, Rule},
    units::{UnixTime, Usdc},
    Verdict,
};

/// Refuses a payment that would raise the month's spending and the held money together above the limit. `rule` names
/// the limit that is checked: the vault's or its budget's. The attempted value is the resulting total.
#[inline(always)]
pub fn check(rule: Rule, limit: Option<Usdc>, ledger: &Ledger, payment: &Payment, now: UnixTime) -> Verdict {
    let Some(limit) = limit else {
        return Verdict::unset(rule);
    };
    let spent = ledger.month.spent_at(now).0.saturating_add(ledger.held.0);
    let headroom = limit.0.saturating_sub(spent);
    Verdict::set(
        rule,
        payment.amount.0 <= headroom && spent <= limit.0,
        limit.0,
        spent.saturating_add(payment.amount.0),
        headroom,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Category;

    #[test]
    fn the_month_reaches_the_limit_and_the_next_one_starts_at_nothing() {
        let judge = |ledger: &Ledger, payment: &Payment, now| {
            check(Rule::MaxPerMonth, Some(Usdc(100)), ledger, payment, now)
        };
        let payment = Payment { amount: Usdc(41), listed: false, category: Category(0), co_signed: false };
        let mut ledger = Ledger { held: Usdc(25), ..Ledger::default() };
        let january_31 = UnixTime(1_769_903_999); // 2026-01-31T23:59:59Z
        ledger.month.add(january_31, Usdc(35)).unwrap();
        let refused = judge(&ledger, &payment, january_31);
        assert!(!refused.passed);
        assert_eq!((refused.limit, refused.attempted, refused.headroom), (100, 101, 40));
        assert!(judge(&ledger, &payment, UnixTime(january_31.0 + 1)).passed);
    }
}
