"""Copies Debian's Rust library source and adds the operating system "solana" to its `std`.

usage: patch_std.py SOURCE_LIBRARY DESTINATION

The new system has no threads, files, clock or environment; `std` treats it like the zkVM targets, which have none
either. Every edit names the text that it expects. If a Rust release changes that text, this script stops, instead of a
program failing later.
"""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple


class Edit(NamedTuple):
    """A text that must occur in a file of `std`, and its replacement."""

    file: str
    find: str
    replace: str


def insert(file: str, after: str, text: str) -> Edit:
    """Return the edit that inserts `text` after the text `after`."""
    return Edit(file, after, after + text)


# Programs define their own #[global_allocator]; this one only has to exist.
ALLOCATOR = """use crate::alloc::{GlobalAlloc, Layout, System};

#[stable(feature = "alloc_system_type", since = "1.28.0")]
unsafe impl GlobalAlloc for System {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        crate::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _ptr: *mut u8, _layout: Layout) {}
}
"""

EDITS = [
    # The list of systems supported by `std`.
    insert("build.rs", '|| target_os == "zkvm"', '\n        || target_os == "solana"'),
    # A single thread.
    insert("src/sys/thread_local/mod.rs", 'target_os = "zkvm",', '\n        target_os = "solana",'),
    # The minimum alignment of every allocation, and the allocator.
    insert("src/sys/alloc/mod.rs", '    target_arch = "x86",\n', '    target_arch = "bpf",\n'),
    insert(
        "src/sys/alloc/mod.rs",
        "        mod zkvm;\n    }",
        '\n    target_os = "solana" => {\n        mod solana;\n    }',
    ),
    # Neither system error codes nor a source of randomness.
    insert("src/sys/io/error/mod.rs", 'target_os = "vexos",', '\n        target_os = "solana",'),
    Edit(
        "src/sys/random/mod.rs",
        '        target_os = "vexos",\n    ) =>',
        '        target_os = "vexos",\n        target_os = "solana",\n    ) =>',
    ),
    Edit(
        "src/sys/random/mod.rs",
        '    target_os = "vexos",\n)))]',
        '    target_os = "vexos",\n    target_os = "solana",\n)))]',
    ),
]


def main(source: Path, destination: Path) -> None:
    """Copy the library and apply the edits; exit with the missing text if one does not fit."""
    shutil.copytree(source, destination, ignore_dangling_symlinks=True)
    std = destination / "std"
    (std / "src/sys/alloc/solana.rs").write_text(ALLOCATOR, encoding="utf-8")
    for edit in EDITS:
        path = std / edit.file
        text = path.read_text(encoding="utf-8")
        if edit.find not in text:
            sys.exit(f"patch_std: {edit.file} has no {edit.find!r}: this Rust release needs another edit")
        path.write_text(text.replace(edit.find, edit.replace), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
