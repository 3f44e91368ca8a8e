"""Locks between processes, held until the holder closes the file or ends."""

import fcntl
from pathlib import Path
from typing import IO


def take(path: Path, *, shared: bool = False) -> IO[str] | None:
    """Take the lock of a file, creating the file if needed; None if another process holds it.

    Several may hold a ``shared`` lock, but only while nobody holds it alone.
    """
    handle = path.open("w")
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
