//! Byte slices: copying, filling, comparing, unaligned reads, hashing.

use crate::{fold, Input};

pub(crate) fn run(input: &Input) -> Vec<u64> {
    let bytes = input.bytes;
    let mut results = Vec::new();

    // Copies longer and shorter than the toolchain's minimum length for a syscall.
    let mut buffer = [0_u8; 300];
    let length = bytes.len().min(buffer.len());
    buffer[..length].copy_from_slice(&bytes[..length]);
    buffer.copy_within(10..200, 37);
    buffer.copy_within(50..90, 45);
    buffer[5..90].fill(bytes[0]);
    let from = usize::from(bytes[0]) % 100;
    buffer.copy_within(from..from + 33, 150);
    results.push(fold(buffer));
    results
        .push(u64::from(buffer[..100] < buffer[100..200]) << 1 | u64::from(buffer[..32] == buffer[32..64]));

    // A search in the sorted 32-byte entries of an allowlist.
    let mut entries: Vec<[u8; 32]> = buffer.chunks_exact(32).map(|chunk| chunk.try_into().unwrap()).collect();
    let wanted = entries[usize::from(bytes[0]) % entries.len()];
    entries.sort_unstable();
    results.push(u64::from(entries.windows(2).all(|pair| pair[0] < pair[1])));
    results.push(entries.binary_search(&wanted).map_or(77, |at| at as u64));
    results.push(u64::from(entries.iter().any(|entry| entry.starts_with(&wanted[..3]))));

    // Reads at every alignment.
    for at in 0..8 {
        let word = |from: usize| u64::from_le_bytes(buffer[from..from + 8].try_into().unwrap());
        results.push(word(at) ^ word(100 + at * 3).swap_bytes());
    }

    for part in [bytes, &buffer[..], &[]] {
        results.push(fold(solana_sha256_hasher::hash(part).to_bytes()));
    }
    results.push(fold(solana_sha256_hasher::hashv(&[&bytes[..1], &buffer[..40], b"seed"]).to_bytes()));
    results.push(u64::from(core::str::from_utf8(bytes).is_ok()));
    results
}
