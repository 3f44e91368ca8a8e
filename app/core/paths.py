"""Paths of the service's files and folders."""

import contextlib
import os
from pathlib import Path


class ConfigurationError(Exception):
    """The settings contradict each other, the files, the database or the chain, or another process uses the data."""


class Paths:
    """Paths in the data folder. ``keys_dir`` is the folder of the keys if they are not in the data folder."""

    def __init__(self, root: Path, keys_dir: Path | None = None) -> None:
        self.root = root
        #: The SQLite file with the service's own state and its read models.
        self.database = root / "agent-vault.db"
        #: The file with the name of the database that the service's state was moved to; absent before the move.
        self.moved = root / "moved-to"
        #: The file with the random token that marks the SQLite files as in use; absent after a clean stop.
        self.in_use = root / "in-use"
        #: An empty file. Its modification time is that of the last backup or, without a backup, of the first start.
        self.backed_up = root / "backed-up"
        #: The SQLite file with the decoded events of the chain.
        self.events = root / "chain.db"
        #: The folder with copies of the databases as they were before the test clock was first advanced.
        self.before_clock = root / "before-test-clock"
        #: The folder with the state of the embedded chain.
        self.localnet = root / "localnet"
        #: The lock file of the process that serves this folder.
        self.serving = root / "serve.lock"
        #: The folder with the files of exports.
        self.exports = root / "exports"
        #: The lock file on which all processes next to the service hold a shared lock.
        self.sidecars = root / "sidecars.lock"
        #: The folder with the signing keys and the service's secret.
        self.keys = keys_dir or root / "keys"
        #: The file with the service's secret, used to recognise API keys, encrypt webhook secrets and sign links.
        self.secret = self.keys / "service-secret"
        #: The file with the admin API key that the quickstart creates.
        self.admin_key = root / "admin-api-key"
        #: The SQLite files in the order to copy them: each copy may be newer than the previous copy, but never older.
        self.databases = self.database, self.events, self.localnet / "localnet.db"


def keep_private(path: str | Path) -> None:
    """Create a SQLite file if needed, and let only this user read it and the files that SQLite keeps next to it.

    SQLite creates further files with the same mode. Errors are ignored here, because SQLite reports them itself.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):
            Path(f"{path}{suffix}").chmod(0o600)


def program_file() -> Path:
    """Return the path of the built program. Raises ConfigurationError if the file is missing."""
    path = Path(__file__).with_name("agent_vault.so")
    if not path.is_file():
        raise ConfigurationError(f"{path} is missing; build it with programs/toolchain/build")
    return path
