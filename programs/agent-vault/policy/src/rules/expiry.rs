//! `expiry`: payments after this time are refused. A payment at exactly this second still passes.

use crate::{
    types::{Rule, Rules},
    units::UnixTime,
    Verdict,
};

/// Refuses a payment if `now` is after the policy's expiry. Limit and attempted value are seconds since the epoch.
#[inline(always)]
pub fn check(rules: &Rules, now: UnixTime) -> Verdict {
    match rules.expiry {
        None => Verdict::unset(Rule::Expiry),
        Some(expiry) => Verdict::set(Rule::Expiry, now <= expiry, expiry.seconds(), now.seconds(), u64::MAX),
    }
}

/// Returns true if the policy has expired at `now`.
#[inline(always)]
pub fn has_passed(rules: &Rules, now: UnixTime) -> bool {
    !check(rules, now).passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pays_up_to_the_second_of_expiry_and_not_after() {
        let rules = Rules { expiry: Some(UnixTime(1_000)), ..Rules::default() };
        assert!(check(&rules, UnixTime(999)).passed);
        assert!(check(&rules, UnixTime(1_000)).passed);
        assert!(!check(&rules, UnixTime(1_001)).passed);
        assert!(has_passed(&rules, UnixTime(1_001)));
        assert_eq!(check(&rules, UnixTime(1_001)).limit, 1_000);
        assert_eq!(check(&rules, UnixTime(1_001)).attempted, 1_001);
    }

    #[test]
    fn without_expiry_time_does_not_matter() {
        assert!(check(&Rules::default(), UnixTime(i64::MAX)).passed);
    }
}
