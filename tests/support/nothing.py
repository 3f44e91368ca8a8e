"""Two tiny programs: one always succeeds and can replace another program; the other returns a register's value."""

import struct

_EXIT = bytes([0x95, 0, 0, 0, 0, 0, 0, 0])
SUCCEED = bytes([0xB7, 0, 0, 0, 0, 0, 0, 0]) + _EXIT
"""`mov r0, 0` and `exit`."""
RETURN_SECOND_REGISTER = bytes([0xBF, 0x20, 0, 0, 0, 0, 0, 0]) + _EXIT
"""`mov r0, r2` and `exit`: succeeds if the runtime set the register r2 to zero."""
_NAMES = b"\0.text\0.shstrtab\0"
_IDENTITY = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
_SHARED, _BPF = 3, 247
_HEADER, _PROGRAM_HEADER, _SECTION_HEADER = 64, 56, 64
_PROGBITS, _STRTAB = 1, 3
_ALLOCATED_CODE = 6
_LOAD, _READ_EXECUTE = 1, 5


def program(instructions: bytes = SUCCEED) -> bytes:
    """Return the program as an ELF file."""
    code = _HEADER + _PROGRAM_HEADER
    names = code + len(instructions)
    sections = -(-(names + len(_NAMES)) // 8) * 8
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(_IDENTITY, _SHARED, _BPF, 1, code, _HEADER, sections, 0),
        *(_HEADER, _PROGRAM_HEADER, 1, _SECTION_HEADER, 3, 2),
    )
    size = len(instructions)
    segment = struct.pack("<IIQQQQQQ", _LOAD, _READ_EXECUTE, code, code, code, size, size, 4_096)
    text = struct.pack("<IIQQQQIIQQ", _NAMES.index(b".text"), _PROGBITS, _ALLOCATED_CODE, code, code, size, 0, 0, 8, 0)
    strings = struct.pack("<IIQQQQIIQQ", _NAMES.index(b".shstrtab"), _STRTAB, 0, 0, names, len(_NAMES), 0, 0, 1, 0)
    body = (header + segment + instructions + _NAMES).ljust(sections, b"\0")
    return body + bytes(_SECTION_HEADER) + text + strings
