//! `velocity_cap`: the most payments that any hour may hold.

use crate::{
    types::{Rule, Rules},
    Verdict,
};

/// Refuses the payment that would be one too many after the `count` of the last hour.
/// Limit and attempted are numbers of payments.
#[inline(always)]
pub fn check(rules: &Rules, count: u64) -> Verdict {
    let Some(cap) = rules.velocity_cap else {
        return Verdict::unset(Rule::VelocityCap);
    };
    let attempted = count.saturating_add(1);
    Verdict::set(Rule::VelocityCap, attempted <= cap, cap, attempted, cap.saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_is_reached_and_not_passed() {
        let rules = Rules { velocity_cap: Some(3), ..Rules::default() };
        for paid in 0..3 {
            let verdict = check(&rules, paid);
            assert!(verdict.passed);
            assert_eq!((verdict.limit, verdict.attempted, verdict.headroom), (3, paid + 1, 3 - paid));
        }
        let verdict = check(&rules, 3);
        assert!(!verdict.passed);
        assert_eq!((verdict.limit, verdict.attempted, verdict.headroom), (3, 4, 0));
    }

    #[test]
    fn a_cap_of_zero_refuses_everything() {
        let rules = Rules { velocity_cap: Some(0), ..Rules::default() };
        assert!(!check(&rules, 0).passed);
    }

    #[test]
    fn a_count_at_the_end_of_64_bits_is_refused_not_wrapped() {
        let rules = Rules { velocity_cap: Some(3), ..Rules::default() };
        assert!(!check(&rules, u64::MAX).passed);
    }
}
