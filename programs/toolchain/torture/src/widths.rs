//! The same operations on integers of every width, signed and unsigned: checked, wrapping, saturating and overflowing.
//!
//! For 128 bits, division, shifts by a variable and checked products are missing, because the toolchain refuses them.

use crate::Input;

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let mut results = Vec::new();
    let [a, b, c, d, ..] = input.words;
    let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
    // Operands with small differences, so that sums, differences and products come near the ends of the range.
    let near = if c.is_multiple_of(2) { b } else { a.wrapping_neg().wrapping_add(b % 5) };
    results.extend(u8s(a as u8, near as u8));
    results.extend(u16s(a as u16, near as u16));
    results.extend(u32s(a as u32, near as u32));
    results.extend(u64s(a, near));
    results.extend(i8s(a as i8, near as i8));
    results.extend(i16s(a as i16, near as i16));
    results.extend(i32s(a as i32, near as i32));
    results.extend(i64s(a as i64, near as i64));
    results.extend(u128s(wide(a, b), wide(c, d)));
    results.extend(u128s(wide(0, a), wide(c % 3, d)));
    results.extend(i128s(wide(a, b) as i128, wide(c, d) as i128));
    results.extend(i128s(wide(0, a) as i128, (wide(0, c) as i128).wrapping_neg()));
    results
}

const MARK: u64 = 0x0bad_cafe_5ead_beef;

fn both(pair: (u64, bool)) -> u64 {
    pair.0.wrapping_mul(2) ^ u64::from(pair.1)
}

macro_rules! of_width {
    ($name:ident, $type:ty) => {
        #[inline(never)]
        fn $name(a: $type, b: $type) -> [u64; 8] {
            let word = |value: $type| value as u64;
            let checked = |value: Option<$type>| value.map_or(MARK, word);
            let shift = u32::from(b as u8) % <$type>::BITS;
            [
                checked(a.checked_add(b)).rotate_left(1) ^ checked(a.checked_sub(b)),
                checked(a.checked_mul(b)),
                checked(a.checked_div(b)).rotate_left(1) ^ checked(a.checked_rem(b)),
                word(a.saturating_add(b)).rotate_left(1) ^ word(a.saturating_sub(b)),
                word(a.saturating_mul(b)).rotate_left(1) ^ word(a.wrapping_mul(b).wrapping_sub(b)),
                both({
                    let (value, over) = a.overflowing_mul(b);
                    (word(value), over)
                }),
                both({
                    let (value, over) = a.overflowing_sub(b);
                    (word(value), over)
                }),
                word(a >> shift).rotate_left(1) ^ word(a.wrapping_shl(shift)) ^ u64::from(a < b),
            ]
        }
    };
}

of_width!(u8s, u8);
of_width!(u16s, u16);
of_width!(u32s, u32);
of_width!(u64s, u64);
of_width!(i8s, i8);
of_width!(i16s, i16);
of_width!(i32s, i32);
of_width!(i64s, i64);

macro_rules! of_128_bits {
    ($name:ident, $type:ty) => {
        #[inline(never)]
        fn $name(a: $type, b: $type) -> [u64; 6] {
            let word = |value: $type| value as u64 ^ ((value >> 64) as u64).rotate_left(7);
            let checked = |value: Option<$type>| value.map_or(MARK, word);
            let (difference, under) = a.overflowing_sub(b);
            [
                checked(a.checked_add(b)).rotate_left(1) ^ checked(a.checked_sub(b)),
                word(a.wrapping_mul(b)),
                word(a.saturating_add(b)).rotate_left(1) ^ word(a.saturating_sub(b)),
                both((word(difference), under)),
                word(a >> 3).rotate_left(1) ^ word(a << 91) ^ word(a >> 64),
                u64::from(a < b) | u64::from(a.count_ones()) << 8 | u64::from(b.leading_zeros()) << 32,
            ]
        }
    };
}

of_128_bits!(u128s, u128);
of_128_bits!(i128s, i128);
