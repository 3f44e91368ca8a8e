//! `max_per_day`: the maximum spending in any 24 hours; `budget_max_total`: the maximum in a budget's life.

use crate::{
    types::{Payment, Rule},
    units::Usdc,
    Verdict,
};

/// Refuses a payment that would raise `spent`, the spending of the last 24 hours or of a budget's life, and the `held`
/// money together above the limit. `rule` names the limit that is checked. The attempted value is the resulting total.
#[inline(always)]
pub fn check(rule: Rule, limit: Option<Usdc>, spent: u64, held: Usdc, payment: &Payment) -> Verdict {
    let Some(limit) = limit else {
        return Verdict::unset(rule);
    };
    let spent = spent.saturating_add(held.0);
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

    fn judge(limit: u64, spent: u64, amount: u64) -> Verdict {
        let held = spent / 3;
        let payment =
            Payment { amount: Usdc(amount), listed: false, category: Category(0), co_signed: false };
        check(Rule::MaxPerDay, Some(Usdc(limit)), spent.saturating_sub(held), Usdc(held), &payment)
    }

    #[test]
    fn the_total_reaches_the_limit_and_not_more() {
        assert!(judge(100, 60, 40).passed);
        let refused = judge(100, 60, 41);
        assert!(!refused.passed);
        assert_eq!((refused.limit, refused.attempted, refused.headroom), (100, 101, 40));
    }

    #[test]
    fn a_limit_lowered_below_what_was_spent_refuses() {
        assert!(!judge(50, 60, 0).passed);
    }

    #[test]
    fn a_sum_beyond_64_bits_is_refused_not_wrapped() {
        let refused = judge(u64::MAX, u64::MAX, 1);
        assert!(!refused.passed);
        assert_eq!(refused.attempted, u64::MAX);
    }
}
