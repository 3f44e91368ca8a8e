//! The syscalls that the program uses. If one is missing, the program cannot be loaded.
#![allow(clippy::missing_safety_doc)] // called by the program alone, under the runtime's own contract

use crate::wire::{self, Answer};
use curve25519_dalek::edwards::CompressedEdwardsY;
use sha2::{Digest, Sha256};
use std::{ptr, slice, sync::OnceLock};

static SYSVARS: OnceLock<Vec<([u8; 32], Vec<u8>)>> = OnceLock::new();

/// Sets the content that `sol_get_sysvar` reads.
pub fn set(sysvars: &[([u8; 32], Vec<u8>)]) {
    if SYSVARS.set(sysvars.to_vec()).is_err() {
        super::fail("a run has one set of sysvars");
    }
}

/// A slice as the runtime passes it: address and length.
#[repr(C)]
struct Part {
    at: *const u8,
    length: u64,
}

#[repr(C)]
struct Instruction {
    program: *const [u8; 32],
    metas: *const Meta,
    metas_length: u64,
    data: *const u8,
    data_length: u64,
}

#[repr(C)]
struct Meta {
    address: *const [u8; 32],
    is_writable: bool,
    is_signer: bool,
}

#[repr(C)]
struct AccountInfo {
    address: *const [u8; 32],
    lamports: *mut u64,
    data_length: u64,
    data: *mut u8,
    owner: *mut [u8; 32],
    rent_epoch: u64,
    is_signer: bool,
    is_writable: bool,
    executable: bool,
}

unsafe fn parts<'a, T>(at: *const T, length: u64) -> &'a [T] {
    if length == 0 {
        return &[];
    }
    slice::from_raw_parts(at, length as usize)
}

#[no_mangle]
pub unsafe extern "C" fn sol_log_(message: *const u8, length: u64) {
    Answer::new(b'L').bytes(parts(message, length)).send();
}

#[no_mangle]
pub unsafe extern "C" fn sol_log_data(fields: *const u8, length: u64) {
    let fields = parts(fields.cast::<Part>(), length);
    let answer = Answer::new(b'D').number(length);
    fields.iter().fold(answer, |answer, one| answer.bytes(parts(one.at, one.length))).send();
}

#[no_mangle]
pub unsafe extern "C" fn sol_set_return_data(data: *const u8, length: u64) {
    Answer::new(b'T').bytes(parts(data, length)).send();
}

#[no_mangle]
pub unsafe extern "C" fn sol_sha256(values: *const u8, length: u64, result: *mut u8) -> u64 {
    let mut hash = Sha256::new();
    for value in parts(values.cast::<Part>(), length) {
        hash.update(parts(value.at, value.length));
    }
    ptr::copy_nonoverlapping(hash.finalize().as_ptr(), result, 32);
    0
}

/// Returns zero if the point is on the curve.
#[no_mangle]
pub unsafe extern "C" fn sol_curve_validate_point(curve: u64, point: *const u8, _: *mut u8) -> u64 {
    const EDWARDS: u64 = 0;
    if curve != EDWARDS {
        super::fail("only points of Ed25519 are validated");
    }
    let point = CompressedEdwardsY(*point.cast());
    u64::from(point.decompress().is_none())
}

#[no_mangle]
pub unsafe extern "C" fn sol_get_sysvar(
    address: *const u8,
    result: *mut u8,
    offset: u64,
    length: u64,
) -> u64 {
    const LENGTH_EXCEEDS_SYSVAR: u64 = 1;
    const SYSVAR_NOT_FOUND: u64 = 2;
    let address = *address.cast::<[u8; 32]>();
    let Some((_, content)) = SYSVARS.get().and_then(|all| all.iter().find(|one| one.0 == address)) else {
        return SYSVAR_NOT_FOUND;
    };
    let Some(wanted) = content.get(offset as usize..).and_then(|rest| rest.get(..length as usize)) else {
        return LENGTH_EXCEEDS_SYSVAR;
    };
    ptr::copy_nonoverlapping(wanted.as_ptr(), result, wanted.len());
    0
}

/// Handles a call of another program: sends `C` with these fields: the program (32 bytes); the number of metas, and for
/// each its address and two bytes (writable, signer); the data (bytes); the number of signers, and for each the number
/// of its seeds and their bytes; the number of accounts, and for each its address, lamports, owner and data (bytes).
/// Then writes back the accounts' new contents.
#[no_mangle]
pub unsafe extern "C" fn sol_invoke_signed_c(
    instruction: *const u8,
    accounts: *const u8,
    accounts_length: u64,
    signers: *const u8,
    signers_length: u64,
) -> u64 {
    let instruction = &*instruction.cast::<Instruction>();
    let accounts = parts(accounts.cast::<AccountInfo>(), accounts_length);
    let mut answer = Answer::new(b'C').raw(&*instruction.program).number(instruction.metas_length);
    for meta in parts(instruction.metas, instruction.metas_length) {
        answer = answer.raw(&*meta.address).raw(&[u8::from(meta.is_writable), u8::from(meta.is_signer)]);
    }
    answer = answer.bytes(parts(instruction.data, instruction.data_length)).number(signers_length);
    for signer in parts(signers.cast::<Part>(), signers_length) {
        answer = answer.number(signer.length);
        for seed in parts(signer.at.cast::<Part>(), signer.length) {
            answer = answer.bytes(parts(seed.at, seed.length));
        }
    }
    answer = answer.number(accounts_length);
    for account in accounts {
        answer = answer.raw(&*account.address).number(*account.lamports).raw(&*account.owner);
        answer = answer.bytes(parts(account.data, account.data_length));
    }
    answer.send();
    if wire::exact::<1>() == [0] {
        // The transaction ends with the error of the called program.
        std::process::exit(0);
    }
    for account in accounts {
        *account.lamports = wire::number();
        *account.owner = wire::exact();
        let data = wire::bytes();
        // The serialized account stores the length right before the data.
        *account.data.cast::<u64>().sub(1) = data.len() as u64;
        ptr::copy_nonoverlapping(data.as_ptr(), account.data, data.len());
    }
    0
}
