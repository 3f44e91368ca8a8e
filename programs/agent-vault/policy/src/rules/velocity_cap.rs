//! `velocity_cap`: the maximum number of payments in any hour.

use crate::{types::Rule, Verdict};

/// Refuses a payment that would exceed the cap, given the `count` payments of the last hour. `rule` names the cap that
/// is checked: the vault's or its budget's. Limit and attempted value are numbers of payments.
#[inline(always)]
pub fn check(rule: Rule, cap: Option<u64>, count: u64) -> Verdict {
    let Some(cap) = cap else {
        return Verdict::unset(rule);
    };
    let attempted = count.saturating_add(1);
    Verdict::set(rule, attempted <= cap, cap, attempted, cap.saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(cap: u64, count: u64) -> Verdict {
        check(Rule::VelocityCap, Some(cap), count)
    }

    #[test]
    fn the_cap_is_reached_and_not_passed() {
        for paid in 0..3 {
            let verdict = judge(3, paid);
            assert!(verdict.passed);
            assert_eq!((verdict.limit, verdict.attempted, verdict.headroom), (3, paid + 1, 3 - paid));
        }
        let verdict = judge(3, 3);
        assert!(!verdict.passed);
        assert_eq!((verdict.limit, verdict.attempted, verdict.headroom), (3, 4, 0));
    }

    #[test]
    fn a_cap_of_zero_refuses_everything() {
        assert!(!judge(0, 0).passed);
    }

    #[test]
    fn a_count_at_the_end_of_64_bits_is_refused_not_wrapped() {
        assert!(!judge(3, u64::MAX).passed);
    }
}
