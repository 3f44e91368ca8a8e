//! Calls that exceed the virtual machine's convention: more than five arguments, or results of more than one register.
//! They are made directly, through a trait object and through a table of functions.

use crate::{fold, Input};

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let [a, b, c, d, e, f, g, h, ..] = input.words;
    let mut results = vec![six(a, b, c, d, e, f), many(a, b, c as u32, d as u8, e as i64, f, g as u16, h)];

    let (sum, mixed) = pair(b, c);
    results.extend([sum, mixed]);
    results.extend(array(d));
    results.push(option(a >> 20, b >> 30).unwrap_or(7));
    results.push(option(a, b).map_or(1, |product| product ^ 5));
    match fallible(a, b, c, d, e, f) {
        Ok((x, y, bytes)) => results.extend([x, u64::from(y), fold(bytes)]),
        Err(code) => results.push(u64::from(code)),
    }
    let wide = wide_arguments(a, u128::from(b) << 64 | u128::from(c), d, u128::from(e), f);
    results.extend([wide as u64, (wide >> 64) as u64]);
    results.push(recursive(a % 20, b, c, d, e, f));

    let shapes: [Box<dyn Shape>; 2] = [Box::new(Scalar(a)), Box::new(Matrix([b, c, d, e]))];
    for shape in &shapes {
        let (x, y, z) = shape.measure(f, g, h, a, b, c);
        results.extend([x, y, z, fold(shape.name().bytes())]);
    }
    results.push(TABLE[(a % 3) as usize](b, c, d, e, f, g, h));
    results.push(apply(&|x, y, z| x ^ y.wrapping_mul(z) ^ a, b, c, d));
    results
}

#[inline(never)]
fn six(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 {
    a ^ b.rotate_left(3) ^ c.wrapping_mul(d) ^ e.wrapping_sub(f)
}

#[allow(clippy::too_many_arguments)] // this is the case under test
#[inline(never)]
fn many(a: u64, b: u64, c: u32, d: u8, e: i64, f: u64, g: u16, h: u64) -> u64 {
    let small = u64::from(c) << 3 ^ u64::from(d) ^ u64::from(g) << 9;
    a.wrapping_mul(3) ^ b.rotate_left(7) ^ small ^ (e as u64).wrapping_add(f) ^ h
}

#[inline(never)]
fn pair(a: u64, b: u64) -> (u64, u64) {
    (a.wrapping_add(b), a ^ b.rotate_right(3))
}

#[inline(never)]
fn array(a: u64) -> [u64; 9] {
    core::array::from_fn(|i| a.wrapping_mul(i as u64 + 1) ^ (a >> i))
}

#[inline(never)]
fn option(a: u64, b: u64) -> Option<u64> {
    a.checked_mul(b)
}

#[inline(never)]
fn fallible(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> Result<(u64, u32, [u8; 40]), u32> {
    if a.is_multiple_of(7) {
        return Err((b % 1000) as u32);
    }
    let bytes = core::array::from_fn(|i| ((a >> (i % 8)) ^ c ^ (d >> (i % 5))) as u8);
    Ok((e.wrapping_add(f), (b >> 3) as u32, bytes))
}

#[inline(never)]
fn wide_arguments(a: u64, b: u128, c: u64, d: u128, e: u64) -> u128 {
    b.wrapping_mul(d) ^ u128::from(a) << 64 ^ u128::from(c.wrapping_add(e))
}

/// The packed arguments of different depths must not mix.
#[inline(never)]
fn recursive(depth: u64, a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    if depth == 0 {
        return a ^ b ^ c ^ d ^ e;
    }
    let below = recursive(depth - 1, e, a ^ depth, b, c.wrapping_add(d), d.rotate_left(1));
    below.wrapping_mul(31) ^ a.wrapping_sub(e)
}

#[inline(never)]
fn apply(function: &dyn Fn(u64, u64, u64) -> u64, a: u64, b: u64, c: u64) -> u64 {
    function(a, b, c) ^ function(c, a, b)
}

trait Shape {
    fn measure(&self, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> (u64, u64, u64);
    fn name(&self) -> String;
}

struct Scalar(u64);

struct Matrix([u64; 4]);

impl Shape for Scalar {
    #[inline(never)]
    fn measure(&self, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> (u64, u64, u64) {
        (self.0 ^ a ^ b, c.wrapping_sub(d), e | f)
    }

    fn name(&self) -> String {
        format!("scalar {}", self.0)
    }
}

impl Shape for Matrix {
    #[inline(never)]
    fn measure(&self, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> (u64, u64, u64) {
        (self.0[(a % 4) as usize].wrapping_add(b), c ^ d, e.wrapping_mul(f))
    }

    fn name(&self) -> String {
        format!("matrix {:?}", &self.0[..2])
    }
}

type Seven = fn(u64, u64, u64, u64, u64, u64, u64) -> u64;

static TABLE: [Seven; 3] = [
    |a, b, c, d, e, f, g| a ^ b.wrapping_add(c) ^ d.wrapping_mul(e) ^ f ^ g,
    |a, b, c, d, e, f, g| (a.wrapping_sub(b) ^ c ^ d) | (e & f ^ g.rotate_left(1)),
    |a, _, _, _, _, _, g| a.max(g),
];
