//! The memory of a run, at the virtual machine's addresses and of its sizes, with nothing mapped next to it.

use std::{ptr, slice};

const HEAP: usize = 0x3_0000_0000;
const HEAP_LENGTH: usize = 32 * 1024;
const INPUT: usize = 0x4_0000_0000;

fn map(address: usize, length: usize) -> *mut u8 {
    let wanted = address as *mut libc::c_void;
    // SAFETY: fails where something is mapped already.
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

/// Maps a heap of zeros, where the program's allocator expects it.
pub fn map_heap() {
    map(HEAP, HEAP_LENGTH);
}

/// Maps the input and returns its address.
pub fn map_input(input: &[u8]) -> *mut u8 {
    let mapped = map(INPUT, input.len());
    // SAFETY: just mapped, as long as the input.
    unsafe { ptr::copy_nonoverlapping(input.as_ptr(), mapped, input.len()) };
    mapped
}

/// The input as it is now.
pub fn input<'a>(length: usize) -> &'a [u8] {
    // SAFETY: mapped with this length; the program does not run any more.
    unsafe { slice::from_raw_parts(INPUT as *const u8, length) }
}
