//! Borsh as read and written by Anchor 2: wincode with 32-bit lengths and fixed-width little-endian integers.

use wincode::{
    config::Configuration,
    int_encoding::{FixInt, LittleEndian},
    len::FixIntLen,
    SchemaRead, SchemaWrite,
};

use crate::{fold, Input};

/// The largest allocation for one damaged length, in bytes. The virtual machine has a heap of 32 kB that never frees
/// memory, so an input with a larger length would end in a panic there.
const PREALLOCATION_LIMIT: usize = 1024;

/// Same as `anchor_lang::BORSH_CONFIG`, except for the limit.
type BorshConfig = Configuration<true, PREALLOCATION_LIMIT, FixIntLen<u32>, LittleEndian, FixInt, u8>;

const BORSH: BorshConfig = Configuration::new();

#[derive(SchemaRead, SchemaWrite, Debug, PartialEq)]
struct Arguments {
    amount: u64,
    limit: Option<u64>,
    cap: Option<u32>,
    expiry: Option<i64>,
    entries: Vec<[u8; 32]>,
    action: Action,
    name: String,
    nested: Vec<Option<Inner>>,
    sealed: bool,
}

#[derive(SchemaRead, SchemaWrite, Debug, PartialEq)]
struct Inner {
    key: [u8; 16],
    set: bool,
    value: u16,
}

#[derive(SchemaRead, SchemaWrite, Debug, PartialEq)]
enum Action {
    Freeze,
    Unfreeze { reason: u8 },
    Expire(u64, u8),
}

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let arguments = arguments(input);
    let encoded = wincode::config::serialize(&arguments, BORSH).unwrap();
    let decoded: Arguments = wincode::config::deserialize_exact(&encoded, BORSH).unwrap();
    assert!(decoded == arguments);
    let mut results = vec![encoded.len() as u64, fold(encoded.iter().copied())];

    // Damaged input is refused, or decoded to something else, in the same way by both builds.
    for (i, word) in input.words.iter().step_by(2).enumerate() {
        let mut damaged = encoded.clone();
        let at = *word as usize % damaged.len().min(20 + 10 * i);
        damaged[at] = damaged[at].wrapping_add((word >> 32) as u8 % 3);
        damaged.truncate(damaged.len() - (word >> 40) as usize % 3);
        results.push(reread(&damaged));
    }
    results.push(reread(input.bytes));
    results
}

fn reread(bytes: &[u8]) -> u64 {
    match wincode::config::deserialize_exact::<Arguments, _>(bytes, BORSH) {
        Ok(arguments) => {
            let Arguments { amount, limit, entries, action, nested, .. } = arguments;
            let chosen = match action {
                Action::Freeze => 1,
                Action::Unfreeze { reason } => u64::from(reason),
                Action::Expire(at, kind) => at ^ u64::from(kind),
            };
            let inner = nested.into_iter().flatten().map(|inner| fold(inner.key) ^ u64::from(inner.value));
            amount
                ^ limit.unwrap_or(3)
                ^ fold(entries.into_iter().flatten())
                ^ chosen
                ^ inner.fold(0, |a, b| a ^ b)
        }
        Err(_) => 0xbad,
    }
}

fn arguments(input: &Input) -> Arguments {
    let [a, b, c, d, ..] = input.words;
    let optional = |word: u64| (!word.is_multiple_of(3)).then_some(word);
    Arguments {
        amount: a,
        limit: optional(b),
        cap: optional(c).map(|word| word as u32),
        expiry: optional(d).map(|word| word as i64),
        entries: input.bytes.chunks_exact(32).take(8).map(|chunk| chunk.try_into().unwrap()).collect(),
        action: match a % 3 {
            0 => Action::Freeze,
            1 => Action::Unfreeze { reason: b as u8 },
            _ => Action::Expire(c, d as u8),
        },
        name: format!("vault {}", b % 100),
        nested: input.words[4..].iter().map(|&word| optional(word).map(inner)).collect(),
        sealed: b % 2 == 1,
    }
}

fn inner(word: u64) -> Inner {
    let key = core::array::from_fn(|i| (word >> (i % 8 * 8)) as u8);
    Inner { key, set: word.is_multiple_of(2), value: (word >> 16) as u16 }
}
