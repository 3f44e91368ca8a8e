"""Locks between processes. A lock lasts until its holder closes the file or ends."""

import fcntl
from pathlib import Path
from typing import IO


def take(path: Path, *, shared: bool = False) -> IO[str] | None:
    """Take the lock of a file and return the open file, or None if another process holds the lock.

    Creates the file if needed. Several processes may hold a ``shared`` lock, but not while another process holds an
    exclusive one.
    """
    handle = path.open("w")
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
