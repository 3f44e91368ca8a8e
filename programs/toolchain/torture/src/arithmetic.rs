//! Unsigned arithmetic: checked, saturating and wrapping operations, 128 bits, bit counts.

use crate::Input;

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let mut results = Vec::new();
    for pair in input.words.windows(2).step_by(3) {
        let (a, b) = (pair[0], pair[1]);
        results.extend(checked(a, b));
        results.extend(checked(a >> 31, b >> 33));
        results.extend(wrapping(a, b));
        results.extend(narrow(a, b));
    }
    let [a, b, c, d, ..] = input.words;
    results.extend(wide(a, b, c, d));
    results.push(triangle(a >> 40, b));
    results
}

/// Maps `None` to a number that is an unlikely sum or product of the inputs.
fn or_mark(value: Option<u64>) -> u64 {
    value.unwrap_or(0xdead_beef_0bad_cafe)
}

#[inline(never)]
fn checked(a: u64, b: u64) -> [u64; 7] {
    [
        or_mark(a.checked_add(b)),
        or_mark(a.checked_sub(b)),
        or_mark(a.checked_mul(b)),
        or_mark(a.checked_div(b)),
        or_mark(a.checked_rem(b >> 50)),
        a.saturating_add(b) ^ a.saturating_sub(b),
        a.saturating_mul(b),
    ]
}

#[inline(never)]
fn wrapping(a: u64, b: u64) -> [u64; 6] {
    let (sum, carry) = a.overflowing_add(b);
    [
        sum.wrapping_mul(3) ^ u64::from(carry),
        a.rotate_left((b % 64) as u32) ^ (a >> (b % 64)),
        u64::from(a.leading_zeros()) << 32 | u64::from(b.trailing_zeros()) << 16 | u64::from(a.count_ones()),
        a.swap_bytes() ^ b.reverse_bits(),
        a.abs_diff(b),
        (a / 900) ^ (b % 86_400),
    ]
}

/// Operations on integers smaller than a register.
#[inline(never)]
fn narrow(a: u64, b: u64) -> [u64; 4] {
    let (x, y) = (a as u32, b as u32);
    let (v, w) = (a as u16, b as u8);
    [
        or_mark(x.checked_mul(y >> 16).map(u64::from)),
        or_mark(x.checked_add(y).map(u64::from)),
        or_mark(v.checked_sub(u16::from(w)).map(u64::from)) ^ u64::from(w.wrapping_mul(v as u8)),
        u64::from(x < y) << 1 | u64::from(v as u8 > w),
    ]
}

/// 128-bit operations. Division is missing because the toolchain refuses it.
#[inline(never)]
fn wide(a: u64, b: u64, c: u64, d: u64) -> Vec<u64> {
    let product = u128::from(a) * u128::from(b);
    let mixed = product.wrapping_add(u128::from(c) << 64) ^ u128::from(d);
    let squared = mixed.wrapping_mul(product ^ u128::from(c));
    let halves =
        [product, mixed, squared, squared.rotate_left(17), mixed >> 37, mixed.saturating_sub(product)];
    let mut results: Vec<u64> = halves.iter().flat_map(|wide| [*wide as u64, (*wide >> 64) as u64]).collect();
    results.push(u64::from(mixed < product) ^ product.checked_add(mixed).map_or(5, |sum| sum as u64));
    results
}

/// A loop that the optimizer replaces by a 65-bit product.
#[inline(never)]
fn triangle(count: u64, start: u64) -> u64 {
    (0..count).fold(start, |sum, i| sum.wrapping_add(i))
}
