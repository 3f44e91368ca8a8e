//! `max_per_month`: the maximum spending in a UTC calendar month.

use crate::{
    types::{Payment, Rule},
    units::{Month, UnixTime, Usdc},
    Verdict,
};

/// Refuses a payment that would raise the month's spending above the limit. `rule` names the limit that is checked: the
/// vault's or its budget's. The attempted value is the resulting total.
#[inline(always)]
pub fn check(rule: Rule, limit: Option<Usdc>, month: &Month, payment: &Payment, now: UnixTime) -> Verdict {
    let Some(limit) = limit else {
        return Verdict::unset(rule);
    };
    let spent = month.spent_at(now).0;
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
        let judge = |month: &Month, payment: &Payment, now| {
            check(Rule::MaxPerMonth, Some(Usdc(100)), month, payment, now)
        };
        let payment = Payment { amount: Usdc(41), listed: false, category: Category(0), co_signed: false };
        let mut month = Month::default();
        let january_31 = UnixTime(1_769_903_999); // 2026-01-31T23:59:59Z
        month.add(january_31, Usdc(60)).unwrap();
        let refused = judge(&month, &payment, january_31);
        assert!(!refused.passed);
        assert_eq!((refused.limit, refused.attempted, refused.headroom), (100, 101, 40));
        assert!(judge(&month, &payment, UnixTime(january_31.0 + 1)).passed);
    }
}
