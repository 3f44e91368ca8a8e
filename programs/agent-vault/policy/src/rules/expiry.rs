//! `expiry` and `budget_expired`: payments after the expiry are refused. A payment in exactly that second still passes.

use crate::{
    types::{Rule, Rules},
    units::UnixTime,
    Verdict,
};

/// Refuses a payment if `now` is after `expiry`. `rule` names the expiry that is checked: the policy's or a budget's.
/// Limit and attempted value are seconds since the epoch.
#[inline(always)]
pub fn check(rule: Rule, expiry: Option<UnixTime>, now: UnixTime) -> Verdict {
    match expiry {
        None => Verdict::unset(rule),
        Some(expiry) => Verdict::set(rule, now <= expiry, expiry.seconds(), now.seconds(), u64::MAX),
    }
}

/// Returns true if the policy has expired at `now`.
#[inline(always)]
pub fn has_passed(rules: &Rules, now: UnixTime) -> bool {
    !check(Rule::Expiry, rules.expiry, now).passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pays_up_to_the_second_of_expiry_and_not_after() {
        let rules = Rules { expiry: Some(UnixTime(1_000)), ..Rules::default() };
        let check = |rules: &Rules, now| super::check(Rule::Expiry, rules.expiry, now);
        assert!(check(&rules, UnixTime(999)).passed);
        assert!(check(&rules, UnixTime(1_000)).passed);
        assert!(!check(&rules, UnixTime(1_001)).passed);
        assert!(has_passed(&rules, UnixTime(1_001)));
        assert_eq!(check(&rules, UnixTime(1_001)).limit, 1_000);
        assert_eq!(check(&rules, UnixTime(1_001)).attempted, 1_001);
    }

    #[test]
    fn without_expiry_time_does_not_matter() {
        assert!(check(Rule::Expiry, None, UnixTime(i64::MAX)).passed);
    }
}
