//! A frozen vault makes no payments.

use crate::{
    types::{Rule, Standing},
    Verdict,
};

/// Refuses any payment while the vault is frozen.
#[inline(always)]
pub fn check(standing: Standing) -> Verdict {
    Verdict::set(Rule::Frozen, !standing.frozen, 0, 0, u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_vault_refuses() {
        assert!(!check(Standing { paused: false, frozen: true }).passed);
        assert!(check(Standing { paused: true, frozen: false }).passed);
    }
}
