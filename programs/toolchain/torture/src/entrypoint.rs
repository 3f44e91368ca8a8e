//! The entrypoint of the sBPF build: instruction data in, return data out, no accounts.

use core::slice;

pinocchio::default_allocator!();
pinocchio::default_panic_handler!();

/// # Safety
/// Only the runtime may call this, with the serialized instruction: the number of accounts (0), the length of the data,
/// and the data.
#[no_mangle]
pub unsafe extern "C" fn entrypoint(input: *const u8) -> u64 {
    let length = *(input.add(8) as *const u64) as usize;
    let data = slice::from_raw_parts(input.add(16), length);
    let results = super::run(data);
    pinocchio::syscalls::sol_set_return_data(results.as_ptr(), results.len() as u64);
    0
}
