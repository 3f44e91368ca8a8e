//! `max_per_month`: the most that a UTC calendar month may hold.

use crate::{
    types::{Month, Payment, Rule, Rules, UnixTime},
    Verdict,
};

/// Refuses a payment that would lift the month above the limit. Attempted is the total that would result.
#[inline(always)]
pub fn check(rules: &Rules, month: &Month, payment: &Payment, now: UnixTime) -> Verdict {
    let Some(limit) = rules.max_per_month else {
        return Verdict::unset(Rule::MaxPerMonth);
    };
    let spent = month.spent_at(now).0;
    let headroom = limit.0.saturating_sub(spent);
    Verdict::set(
        Rule::MaxPerMonth,
        payment.amount.0 <= headroom && spent <= limit.0,
        limit.0,
        spent.saturating_add(payment.amount.0),
        headroom,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Category, Usdc};

    #[test]
    fn the_month_reaches_the_limit_and_the_next_one_starts_at_nothing() {
        let rules = Rules { max_per_month: Some(Usdc(100)), ..Rules::default() };
        let payment = Payment { amount: Usdc(41), listed: false, category: Category(0), co_signed: false };
        let mut month = Month::default();
        let january_31 = UnixTime(1_769_903_999); // 2026-01-31T23:59:59Z
        month.add(january_31, Usdc(60)).unwrap();
        let refused = check(&rules, &month, &payment, january_31);
        assert!(!refused.passed);
        assert_eq!((refused.limit, refused.attempted, refused.headroom), (100, 101, 40));
        assert!(check(&rules, &month, &payment, UnixTime(january_31.0 + 1)).passed);
    }
}
