//! The memory of a run, at the virtual machine's addresses and with its sizes. Nothing is mapped right before or after
//! it.

use std::{ptr, slice};

const HEAP: usize = 0x3_0000_0000;
const HEAP_LENGTH: usize = 32 * 1024;
const INPUT: usize = 0x4_0000_0000;

fn map(address: usize, length: usize) -> *mut u8 {
    let wanted = address as *mut libc::c_void;
    // SAFETY: the call fails if the addresses are already mapped.
    let mapped = unsafe {
        libc::mmap(
            wanted,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if mapped != wanted {
        super::fail("the virtual machine's addresses are taken");
    }
    mapped.cast()
}

/// Maps a zeroed heap at the address that the program's allocator expects.
pub fn map_heap() {
    map(HEAP, HEAP_LENGTH);
}

/// Maps the input and returns its address.
pub fn map_input(input: &[u8]) -> *mut u8 {
    let mapped = map(INPUT, input.len());
    // SAFETY: just mapped, with the length of the input.
    unsafe { ptr::copy_nonoverlapping(input.as_ptr(), mapped, input.len()) };
    mapped
}

/// Returns the input in its present state.
pub fn input<'a>(length: usize) -> &'a [u8] {
    // SAFETY: mapped with this length; the program no longer runs.
    unsafe { slice::from_raw_parts(INPUT as *const u8, length) }
}
