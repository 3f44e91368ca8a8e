//! `require_co_sign`: a payment above this threshold needs the operator's co-signature or approval.

use crate::{
    types::{Payment, Rule, Rules},
    Verdict,
};

/// Refuses an amount above the threshold unless the payment was co-signed. The headroom is the largest amount without a
/// co-signature.
#[inline(always)]
pub fn check(rules: &Rules, payment: &Payment) -> Verdict {
    match rules.require_co_sign {
        None => Verdict::unset(Rule::RequireCoSign),
        Some(threshold) => Verdict::set(
            Rule::RequireCoSign,
            payment.amount <= threshold || payment.co_signed,
            threshold.0,
            payment.amount.0,
            threshold.0,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{types::Category, units::Usdc};

    fn judge(amount: u64, co_signed: bool) -> bool {
        let rules = Rules { require_co_sign: Some(Usdc(100)), ..Rules::default() };
        let payment = Payment { amount: Usdc(amount), listed: false, category: Category(0), co_signed };
        check(&rules, &payment).passed
    }

    #[test]
    fn the_threshold_itself_needs_no_co_signature() {
        assert!(judge(100, false));
        assert!(!judge(101, false));
        assert!(judge(101, true));
    }
}
