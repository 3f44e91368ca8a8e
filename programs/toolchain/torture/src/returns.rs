//! Results larger than a register, in every shape that Rust gives them: pairs, structs of mixed widths, arrays, 128-bit
//! integers, options, enums with fields. Returned by direct calls, through function pointers and through a trait.

use crate::{fold, Input};

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let [a, b, c, d, e, f, g, h, ..] = input.words;
    let mut results = Vec::new();
    let wide = double(a, b);
    results.extend([wide as u64, (wide >> 64) as u64]);
    let signed = signed(a as i64, b as i64, c);
    results.extend([signed as u64, (signed >> 64) as u64]);
    let (x, y, z) = three(a as u8, b as u16, c as u32);
    results.push(u64::from(x) ^ u64::from(y) << 8 ^ u64::from(z) << 24);
    let mixed = mixed(a, b, c, d, e, f, g);
    results.extend([mixed.wide as u64, u64::from(mixed.small), mixed.signed as u64, fold(mixed.bytes)]);
    results.push(u64::from(mixed.flag) ^ mixed.words.iter().fold(0, |sum, word| sum ^ word.rotate_left(1)));
    results.push(maybe(a, b).map_or(1, |value| value as u64 ^ (value >> 64) as u64));
    match attempt(a, b, c) {
        Ok(words) => results.extend(words),
        Err(Refusal::Small(code)) => results.push(u64::from(code)),
        Err(Refusal::Wide(value)) => results.push(value as u64 ^ (value >> 64) as u64),
        Err(Refusal::Text(bytes, length)) => results.push(fold(bytes) ^ length),
    }
    for function in TABLE {
        let (first, second) = function(a, b, c, d, e, f, g, h);
        results.extend([first, second as u64, (second >> 64) as u64]);
    }
    let makers: [Box<dyn Maker>; 2] = [Box::new(Adds(a)), Box::new(Turns([b, c, d]))];
    for maker in &makers {
        let Made { wide, rest, last } = maker.make(e, f, g, h, a, b, c as u8);
        results.extend([wide as u64, (wide >> 64) as u64, rest[0], rest[2], u64::from(last)]);
        results.push(maker.try_make(d).map_or(3, |made| made.rest[1]));
    }
    let pointer: fn(u64, u64) -> Option<u128> = if a.is_multiple_of(2) { maybe } else { never };
    results.push(pointer(c, d).map_or(9, |value| value as u64));
    results
}

#[inline(never)]
fn double(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[inline(never)]
fn signed(a: i64, b: i64, c: u64) -> i128 {
    i128::from(a).wrapping_mul(i128::from(b)).wrapping_sub(i128::from(c))
}

#[inline(never)]
fn three(a: u8, b: u16, c: u32) -> (u8, u16, u32) {
    (a.wrapping_add(b as u8), b ^ c as u16, c.wrapping_mul(u32::from(a)))
}

struct Mixed {
    wide: u128,
    small: u8,
    signed: i32,
    bytes: [u8; 5],
    words: [u64; 3],
    flag: bool,
}

#[inline(never)]
fn mixed(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64) -> Mixed {
    Mixed {
        wide: u128::from(a) << 64 | u128::from(b),
        small: c as u8,
        signed: (d as i32).wrapping_neg(),
        bytes: core::array::from_fn(|i| (e >> (8 * i)) as u8),
        words: [f, g, f.wrapping_sub(g)],
        flag: a < g,
    }
}

#[inline(never)]
fn maybe(a: u64, b: u64) -> Option<u128> {
    (!a.is_multiple_of(3)).then(|| u128::from(a ^ b) << 64 | u128::from(b))
}

#[inline(never)]
fn never(_: u64, _: u64) -> Option<u128> {
    None
}

enum Refusal {
    Small(u8),
    Wide(u128),
    Text([u8; 17], u64),
}

#[inline(never)]
fn attempt(a: u64, b: u64, c: u64) -> Result<[u64; 4], Refusal> {
    match a % 4 {
        0 => Ok([a, b, c, a ^ b ^ c]),
        1 => Err(Refusal::Small(b as u8)),
        2 => Err(Refusal::Wide(u128::from(b) << 32 | u128::from(c))),
        _ => Err(Refusal::Text(core::array::from_fn(|i| (b >> (i % 8)) as u8), c)),
    }
}

type Eight = fn(u64, u64, u64, u64, u64, u64, u64, u64) -> (u64, u128);

static TABLE: [Eight; 2] = [
    |a, b, c, d, e, f, g, h| (a ^ b, u128::from(c ^ d) << 64 | u128::from(e ^ f ^ g ^ h)),
    |a, b, c, d, e, f, g, h| (h.wrapping_sub(a), u128::from(b.wrapping_add(c)) * u128::from(d ^ e ^ f ^ g)),
];

struct Made {
    wide: u128,
    rest: [u64; 3],
    last: u8,
}

trait Maker {
    #[allow(clippy::too_many_arguments)] // this is the case under test
    fn make(&self, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u8) -> Made;
    fn try_make(&self, a: u64) -> Option<Made>;
}

struct Adds(u64);

struct Turns([u64; 3]);

impl Maker for Adds {
    #[inline(never)]
    fn make(&self, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u8) -> Made {
        let wide = u128::from(self.0) + u128::from(a) + u128::from(b);
        Made { wide, rest: [c.wrapping_add(d), e, f], last: g.wrapping_add(self.0 as u8) }
    }

    #[inline(never)]
    fn try_make(&self, a: u64) -> Option<Made> {
        a.checked_add(self.0).map(|sum| Made { wide: sum.into(), rest: [sum; 3], last: 0 })
    }
}

impl Maker for Turns {
    #[inline(never)]
    fn make(&self, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u8) -> Made {
        let [x, y, z] = self.0;
        let wide = (u128::from(a ^ x) << 64 | u128::from(b)).rotate_left(19);
        Made { wide, rest: [y ^ c, z ^ d, e.rotate_left((f % 64) as u32)], last: g }
    }

    #[inline(never)]
    fn try_make(&self, a: u64) -> Option<Made> {
        (a > self.0[0]).then(|| self.make(a, a, a, a, a, a, 1))
    }
}
