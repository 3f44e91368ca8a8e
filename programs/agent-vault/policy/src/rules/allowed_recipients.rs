//! `allowed_recipients`: a restricted policy pays only listed recipients. An empty list refuses every recipient.

use crate::{
    types::{Payment, Rule, Rules},
    Verdict,
};

/// If the policy is restricted, refuses a recipient that is not on its allowlist.
#[inline(always)]
pub fn check(rules: &Rules, payment: &Payment) -> Verdict {
    if !rules.restricted {
        return Verdict::unset(Rule::AllowedRecipients);
    }
    Verdict::set(Rule::AllowedRecipients, payment.listed, 0, 0, u64::MAX)
}

/// Returns true if `entry` is among `entries`, which are sorted in ascending order as byte strings.
///
/// Compares eight bytes at a time, because this runs on every payment under a restricted policy.
#[inline(always)]
pub fn contains(entries: &[[u8; 32]], entry: &[u8; 32]) -> bool {
    let wanted = words(entry);
    let mut rest = entries;
    // Invariant: `rest` keeps the last entry that is not above the wanted one.
    while rest.len() > 1 {
        let (below, from) = rest.split_at(rest.len() / 2);
        let Some(candidate) = from.first() else {
            return false;
        };
        // The first word differs between nearly all entries.
        let [first, ..] = words(candidate);
        let is_above = if first == wanted[0] { words(candidate) > wanted } else { first > wanted[0] };
        rest = if is_above { below } else { from };
    }
    rest.first().is_some_and(|candidate| words(candidate) == wanted)
}

/// Returns true if `next` may follow `previous` in a sorted list without duplicates.
#[inline(always)]
pub fn follows(previous: &[u8; 32], next: &[u8; 32]) -> bool {
    words(previous) < words(next)
}

/// Returns the bytes as big-endian words, which compare in the same order as the bytes.
#[inline(always)]
fn words(bytes: &[u8; 32]) -> [u64; 4] {
    let (chunks, _) = bytes.as_chunks::<8>();
    [
        u64::from_be_bytes(chunks[0]),
        u64::from_be_bytes(chunks[1]),
        u64::from_be_bytes(chunks[2]),
        u64::from_be_bytes(chunks[3]),
    ]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{types::Category, units::Usdc};
    use std::vec::Vec;

    fn payment(listed: bool) -> Payment {
        Payment { amount: Usdc(1), listed, category: Category(0), co_signed: false }
    }

    #[test]
    fn only_a_restricted_policy_asks() {
        let restricted = Rules { restricted: true, ..Rules::default() };
        assert!(check(&restricted, &payment(true)).passed);
        assert!(!check(&restricted, &payment(false)).passed);
        assert!(check(&Rules::default(), &payment(false)).passed);
    }

    #[test]
    fn an_empty_list_holds_nobody() {
        assert!(!contains(&[], &[7; 32]));
    }

    #[test]
    fn finds_every_entry_and_nothing_else_in_lists_of_all_sizes() {
        for size in 0..70u8 {
            let entries: Vec<[u8; 32]> = (0..size).map(|n| [n.wrapping_mul(2); 32]).collect();
            for n in 0..=255u8 {
                let expected = n % 2 == 0 && n / 2 < size;
                assert_eq!(contains(&entries, &[n; 32]), expected, "{n} among {size}");
            }
        }
    }

    #[test]
    fn tells_entries_apart_that_begin_alike() {
        for differs in 8..32 {
            let entry = |last: u8| {
                let mut entry = [7; 32];
                entry[differs] = last;
                entry
            };
            let entries: Vec<[u8; 32]> = (0..9u8).map(|n| entry(n.wrapping_mul(2))).collect();
            for last in 0..=18u8 {
                let expected = last % 2 == 0 && last < 18;
                assert_eq!(contains(&entries, &entry(last)), expected, "{last} at {differs}");
            }
        }
    }

    #[test]
    fn compares_as_bytes_do() {
        let mut low = [0u8; 32];
        let mut high = [0u8; 32];
        for position in 0..32 {
            low[position] = 1;
            high[position] = 255;
            assert!(follows(&low, &high), "{position}");
            assert!(!follows(&high, &low), "{position}");
            low[position] = 9;
            high[position] = 9;
            assert!(!follows(&low, &high), "equal at {position}");
        }
    }
}
