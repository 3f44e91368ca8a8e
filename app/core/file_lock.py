"""Locks between processes. A lock lasts until the process that holds it closes the file or ends."""

import fcntl
from pathlib import Path
from typing import IO


def take(path: Path, *, shared: bool = False) -> IO[str] | None:
    """Take the lock of a file and return the open file, or None if the lock is not free.

    Creates the file if needed. Several processes may hold the lock with ``shared`` at the same time. Without
    ``shared``, only one process may hold it.
    """
    handle = path.open("w")
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
