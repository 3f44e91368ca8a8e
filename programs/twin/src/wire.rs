//! Requests and responses, in binary. Numbers are little-endian. `bytes` are preceded by their length in 64 bits.
//!
//! A request consists of:
//!
//! - one byte: one if the second register contains the address of the data,
//! - the offset of the data in the input (64 bits),
//! - the number of the input's parts (64 bits), and for each its bytes and the number of zeros after them (64 bits),
//! - the number of sysvars (64 bits), and for each its address (32 bytes) and content (bytes).
//!
//! Each response begins with a letter, which names its kind:
//!
//! - `L`: a logged line (bytes).
//! - `D`: logged data (number of parts, and the bytes of each).
//! - `T`: return data (bytes).
//! - `C`: a call of another program (see [`crate::syscalls`]). The reply starts with a byte, which is zero if the call
//!   failed; otherwise lamports (64 bits), owner (32 bytes) and data (bytes) of each account follow.
//! - `R`, at the end: the result (64 bits) and the changed words of the input (their number, then offset and new word
//!   of each, 64 bits each).
//! - `X`, at the end: the number of the signal that ended the run (64 bits).

use std::{
    io::{self, Read, Write},
    mem::ManuallyDrop,
    os::fd::FromRawFd,
};

pub struct Request {
    pub passes_data: bool,
    pub data_at: usize,
    pub input: Vec<u8>,
    pub sysvars: Vec<([u8; 32], Vec<u8>)>,
}

/// Standard input without a buffer, because parent and child take turns reading it.
fn stream(descriptor: i32) -> ManuallyDrop<std::fs::File> {
    // SAFETY: the descriptor is open while the process runs, and this value does not close it.
    ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(descriptor) })
}

fn lost<T>(_: io::Error) -> T {
    super::fail("the other side is gone")
}

pub fn exact<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    stream(0).read_exact(&mut bytes).unwrap_or_else(lost);
    bytes
}

pub fn number() -> u64 {
    u64::from_le_bytes(exact())
}

pub fn bytes() -> Vec<u8> {
    let mut bytes = vec![0; number() as usize];
    stream(0).read_exact(&mut bytes).unwrap_or_else(lost);
    bytes
}

fn parts() -> Vec<u8> {
    let mut whole = Vec::new();
    for _ in 0..number() {
        whole.extend(bytes());
        whole.resize(whole.len() + number() as usize, 0);
    }
    whole
}

/// Returns the next request, or none at the end of the input.
pub fn request() -> Option<Request> {
    let mut first = [0];
    if stream(0).read(&mut first).unwrap_or_else(lost) == 0 {
        return None;
    }
    Some(Request {
        passes_data: first[0] != 0,
        data_at: number() as usize,
        input: parts(),
        sysvars: (0..number()).map(|_| (exact(), bytes())).collect(),
    })
}

/// A response under construction. It is sent as a whole.
pub struct Answer(Vec<u8>);

impl Answer {
    pub fn new(letter: u8) -> Self {
        Answer(vec![letter])
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn number(self, number: u64) -> Self {
        self.raw(&number.to_le_bytes())
    }

    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.number(bytes.len() as u64).raw(bytes)
    }

    pub fn send(self) {
        stream(1).write_all(&self.0).unwrap_or_else(lost);
    }
}

/// Sends the instruction's result and the changed 8-byte words of its input to the test.
pub fn finish(result: u64, before: &[u8], after: &[u8]) {
    let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)));
    let words = before.chunks(8).zip(after.chunks(8)).enumerate();
    let changed: Vec<_> = words.filter(|(_, (before, after))| before != after).collect();
    let answer = Answer::new(b'R').number(result).number(changed.len() as u64);
    changed
        .iter()
        .fold(answer, |answer, (at, (_, after))| answer.number(8 * *at as u64).number(word(after)))
        .send();
}

pub fn crashed(signal: i32) {
    Answer::new(b'X').number(signal as u64).send();
}
