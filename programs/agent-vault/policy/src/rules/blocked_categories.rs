//! `blocked_categories`: recipients in a blocked category are not paid. An unregistered recipient is `uncategorized`.

use crate::{
    types::{Payment, Rule, Rules, CATEGORIES},
    Verdict,
};

/// The bits that a policy may set: one for each existing category.
pub const KNOWN: u32 = (1 << CATEGORIES) - 1;

/// Refuses a recipient in a blocked category. The verdict's limit is the blocked bit set; its attempted value is the
/// category code.
#[inline(always)]
pub fn check(rules: &Rules, payment: &Payment) -> Verdict {
    if rules.blocked_categories == 0 {
        return Verdict::unset(Rule::BlockedCategories);
    }
    let code = payment.category.0;
    let bit = 1u32.checked_shl(u32::from(code)).unwrap_or(0);
    Verdict::set(
        Rule::BlockedCategories,
        // A code beyond the bit set cannot be judged, so it is refused.
        bit != 0 && rules.blocked_categories & bit == 0,
        u64::from(rules.blocked_categories),
        u64::from(code),
        u64::MAX,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{types::Category, units::Usdc};

    fn judge(blocked: u32, code: u8) -> bool {
        let rules = Rules { blocked_categories: blocked, ..Rules::default() };
        let payment = Payment { amount: Usdc(1), listed: false, category: Category(code), co_signed: false };
        check(&rules, &payment).passed
    }

    #[test]
    fn each_bit_blocks_its_code_alone() {
        for blocked in 0..CATEGORIES {
            for code in 0..CATEGORIES {
                assert_eq!(judge(1 << blocked, code), blocked != code);
            }
        }
    }

    #[test]
    fn nothing_blocked_lets_every_code_pass() {
        assert!(judge(0, 0));
        assert!(judge(0, 255));
    }

    #[test]
    fn a_code_beyond_the_bit_set_does_not_pass_a_policy_that_blocks() {
        assert!(judge(1, 31));
        assert!(!judge(1, 32));
        assert!(!judge(1, 255));
    }
}
