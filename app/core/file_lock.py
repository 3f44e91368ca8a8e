"""Locks between processes: held by whoever took a file's, until it closes the file or ends."""

import fcntl
from pathlib import Path
from typing import IO


def take(path: Path) -> IO[str] | None:
    """Take the lock of a file, which is made when it is missing; `None` when another process has it."""
    handle = path.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
