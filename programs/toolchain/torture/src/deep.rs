//! Calls as deep as the virtual machine allows (64 frames). Arguments and results pass through memory, and each frame
//! has local variables that must not mix with those in other frames.

use crate::{fold, Input};

/// Frames of the virtual machine, minus the ones above this code.
const DEPTH: u64 = 56;

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let [a, b, c, d, e, f, ..] = input.words;
    let depth = a % (DEPTH + 1);
    let mut results = vec![down(depth, b, c, d, e, f), ping(depth, b, u128::from(c) << 64 | u128::from(d))];
    let Carried { wide, words, level } =
        carry(depth, Carried { wide: b.into(), words: [c, d, e, f], level: 0 });
    results.extend([wide as u64, (wide >> 64) as u64, words[0] ^ words[3], words[1], words[2], level]);
    let mut seen = Vec::new();
    results.push(visit(&mut |word| seen.push(word), depth, b, c, d, e));
    results.extend([seen.len() as u64, fold(seen.iter().flat_map(|word| word.to_le_bytes()))]);
    results.push(checked(depth, a >> 8, b >> 40).unwrap_or(depth));
    results
}

#[inline(never)]
fn down(depth: u64, a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    // A buffer in each frame, read after the call.
    let mut local: [u64; 12] = core::array::from_fn(|i| a.rotate_left(i as u32 + depth as u32) ^ b);
    if depth == 0 {
        return local.iter().fold(c ^ d ^ e, |sum, word| sum.wrapping_mul(3) ^ word);
    }
    let below = down(depth - 1, e, a ^ depth, b.wrapping_add(c), d, c);
    local[(below % 12) as usize] ^= below;
    local.iter().fold(below, |sum, word| sum.wrapping_mul(5) ^ word)
}

#[inline(never)]
fn ping(depth: u64, a: u64, b: u128) -> u64 {
    if depth == 0 {
        return a ^ b as u64;
    }
    let (x, y) = pong(depth - 1, b, a);
    x.wrapping_sub(y as u64)
}

#[inline(never)]
fn pong(depth: u64, a: u128, b: u64) -> (u64, u128) {
    if depth == 0 {
        return (b, a);
    }
    let below = ping(depth - 1, b.rotate_left(5), a.wrapping_mul(3) ^ u128::from(depth));
    (below ^ b, a.wrapping_add(u128::from(below)))
}

struct Carried {
    wide: u128,
    words: [u64; 4],
    level: u64,
}

#[inline(never)]
fn carry(depth: u64, carried: Carried) -> Carried {
    let Carried { wide, words: [a, b, c, d], level } = carried;
    if depth == 0 {
        return Carried { wide: wide ^ u128::from(a), words: [d, c, b, a], level };
    }
    let wide = wide.wrapping_mul(u128::from(b | 1)).wrapping_add(u128::from(depth));
    let next = Carried { wide, words: [b, c, d, a.wrapping_add(depth)], level: level + 1 };
    let below = carry(depth - 1, next);
    Carried { wide: below.wide ^ u128::from(a) << 13, ..below }
}

#[inline(never)]
fn visit(seen: &mut dyn FnMut(u64), depth: u64, a: u64, b: u64, c: u64, d: u64) -> u64 {
    seen(a ^ depth);
    if depth < 2 {
        return b;
    }
    let result = visit(seen, depth - 2, d, a, b.wrapping_add(1), c);
    seen(result);
    result ^ a.wrapping_mul(c)
}

/// Returns early, in any frame, if a product does not fit.
#[inline(never)]
fn checked(depth: u64, a: u64, b: u64) -> Option<u64> {
    if depth == 0 {
        return Some(a);
    }
    let next = a.checked_mul(b % 7 + 1)?;
    checked(depth - 1, next, b.rotate_left(3))?.checked_sub(depth)
}
