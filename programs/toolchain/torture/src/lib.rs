//! Code that is hard to compile, run on random inputs both natively and on the Solana virtual machine.
//!
//! An input's first byte selects a section; the rest are its operands. Every section returns the numbers that it
//! computed. Both builds must return the same numbers: a difference is a bug of the toolchain.

mod arithmetic;
mod borsh;
mod bytes;
mod calls;
mod collections;
mod deep;
#[cfg(target_os = "solana")]
mod entrypoint;
mod returns;
mod signed;
mod widths;

type Section = fn(&Input) -> Vec<u64>;

/// The sections, in the order of the first input byte.
const SECTIONS: [Section; 9] = [
    arithmetic::run,
    signed::run,
    calls::run,
    collections::run,
    bytes::run,
    borsh::run,
    widths::run,
    returns::run,
    deep::run,
];

/// Capacity of an instruction's return data in numbers: 1,024 bytes.
const MAX_RESULTS: usize = 128;

/// The operands of one run.
pub(crate) struct Input<'a> {
    pub bytes: &'a [u8],
    /// The bytes as little-endian words, each rotated left by its index. If there are too few bytes, they repeat.
    pub words: [u64; 12],
}

impl<'a> Input<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let word = |i: usize| {
            let byte = |k: usize| bytes[(i * 8 + k) % bytes.len()];
            u64::from_le_bytes(core::array::from_fn(byte)).rotate_left(i as u32)
        };
        Self { bytes, words: core::array::from_fn(word) }
    }
}

/// Runs the section selected by the first byte, and returns its numbers in little-endian order.
pub fn run(data: &[u8]) -> Vec<u8> {
    let Some((&section, bytes)) = data.split_first() else { return Vec::new() };
    if bytes.is_empty() {
        return Vec::new();
    }
    let results = SECTIONS[usize::from(section) % SECTIONS.len()](&Input::new(bytes));
    assert!(results.len() <= MAX_RESULTS);
    results.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns one number computed from many bytes, sensitive to their order.
pub(crate) fn fold(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(1, |sum: u64, byte| sum.wrapping_mul(131) ^ u64::from(byte))
}
