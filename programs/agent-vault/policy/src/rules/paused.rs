//! While the organisation is paused, none of its vaults makes payments.

use crate::{
    types::{Rule, Standing},
    Verdict,
};

/// Refuses any payment while the organisation is paused.
#[inline(always)]
pub fn check(standing: Standing) -> Verdict {
    Verdict::set(Rule::Paused, !standing.paused, 0, 0, u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_organisation_refuses() {
        assert!(!check(Standing { paused: true, frozen: false }).passed);
        assert!(check(Standing { paused: false, frozen: true }).passed);
    }
}
