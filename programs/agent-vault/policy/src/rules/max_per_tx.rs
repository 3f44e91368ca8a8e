//! `max_per_tx`: the maximum amount of one payment.

use crate::{
    types::{Payment, Rule, Rules},
    Verdict,
};

/// Refuses a payment with an amount above the limit.
#[inline(always)]
pub fn check(rules: &Rules, payment: &Payment) -> Verdict {
    match rules.max_per_tx {
        None => Verdict::unset(Rule::MaxPerTx),
        Some(limit) => {
            Verdict::set(Rule::MaxPerTx, payment.amount <= limit, limit.0, payment.amount.0, limit.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{types::Category, units::Usdc};

    fn judge(limit: Option<u64>, amount: u64) -> bool {
        let rules = Rules { max_per_tx: limit.map(Usdc), ..Rules::default() };
        let payment =
            Payment { amount: Usdc(amount), listed: false, category: Category(0), co_signed: false };
        check(&rules, &payment).passed
    }

    #[test]
    fn the_limit_itself_passes_and_one_more_does_not() {
        assert!(judge(Some(100), 100));
        assert!(!judge(Some(100), 101));
        assert!(judge(None, u64::MAX));
    }

    #[test]
    fn a_limit_of_zero_refuses_everything() {
        assert!(!judge(Some(0), 1));
    }
}
