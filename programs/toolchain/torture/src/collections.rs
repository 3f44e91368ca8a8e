//! Collections, sorting, searching, iterators and formatting.

use std::collections::BTreeMap;

use crate::{fold, Input};

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let words = &input.words;
    let mut results = Vec::new();

    let mut sorted = words.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    results.extend(sorted.iter().map(|word| word.rotate_left(3)));
    sorted.reverse();
    results.push(sorted.binary_search(&words[5]).map_or_else(|at| at as u64 | 1 << 32, |at| at as u64));
    sorted.dedup();
    sorted.retain(|word| word % 3 != 0);
    results.push(sorted.len() as u64);

    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word % 5).or_insert(0_u64) += word >> 8;
    }
    results.extend(counts.iter().map(|(key, count)| key ^ count));

    let text = format!("{:>8}|{:08x}|{:?}", words[0] % 1000, words[1] as u32, &words[2..4]);
    results.push(fold(text.bytes()));
    results.push(text.split('|').filter_map(|part| part.trim().parse::<u64>().ok()).sum());
    results.push(fold(text.chars().rev().collect::<String>().to_uppercase().bytes()));

    results.push(words.iter().zip(words.iter().skip(1)).filter(|(a, b)| a < b).count() as u64);
    results.push(words.chunks(5).map(|chunk| chunk.iter().copied().max().unwrap_or(0)).fold(0, |a, b| a ^ b));
    results.push(words.iter().position(|word| word % 4 == 1).map_or(99, |at| at as u64));
    results
}
