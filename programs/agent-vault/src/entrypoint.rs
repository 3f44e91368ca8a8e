//! The program's entrypoint, for old and new runtimes alike.
//!
//! Runtimes with SIMD-0321 pass the address of the instruction data in the second register; older ones leave it zero,
//! and the data has to be found behind the serialized accounts.
//! <https://github.com/solana-foundation/solana-improvement-documents/blob/main/proposals/0321-vm-r2-instruction-data-pointer.md>

anchor_lang::pinocchio::default_allocator!();
anchor_lang::pinocchio::default_panic_handler!();

/// Called by the runtime.
///
/// # Safety
/// `input` is the runtime's serialization of accounts and instruction; `data` is null or points at the instruction
/// data in it.
#[no_mangle]
pub unsafe extern "C" fn entrypoint(input: *mut u8, data: *const u8) -> u64 {
    let data = if data.is_null() { find_data(input) } else { data };
    if crate::events::is_own(input, data) {
        return 0;
    }
    crate::__anchor_dispatch(input, data)
}

/// Walks the serialized accounts up to the instruction data behind them.
/// Layout: `solana_program_entrypoint::deserialize`.
unsafe fn find_data(input: *mut u8) -> *const u8 {
    const NOT_DUPLICATE: u8 = 0xff;
    const DATA_LENGTH: usize = 80;
    const HEADER: usize = 88;
    const MAX_PERMITTED_DATA_INCREASE: usize = 10_240;
    const RENT_EPOCH: usize = 8;
    const DUPLICATE: usize = 8;
    const LENGTH: usize = 8;
    let accounts = *input.cast::<u64>();
    let mut at = input.add(LENGTH);
    for _ in 0..accounts {
        at = if *at == NOT_DUPLICATE {
            let length = *at.add(DATA_LENGTH).cast::<u64>() as usize;
            let end = at.add(HEADER + length + MAX_PERMITTED_DATA_INCREASE);
            end.add(end.align_offset(8)).add(RENT_EPOCH)
        } else {
            at.add(DUPLICATE)
        };
    }
    at.add(LENGTH)
}
