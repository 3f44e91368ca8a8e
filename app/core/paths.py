"""Paths of the service's files and folders."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


class ConfigurationError(Exception):
    """The settings do not fit each other, the files, the database or the chain, or the data is in use."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths in the data folder. ``keys_dir`` is the folder of the keys if they are not in the data folder."""

    root: Path
    keys_dir: Path | None = None

    @property
    def database(self) -> Path:
        """The SQLite file with the service's own state and its read models."""
        return self.root / "agent-vault.db"

    @property
    def moved(self) -> Path:
        """The file with the name of the database that the service's state was moved to; absent before the move."""
        return self.root / "moved-to"

    @property
    def in_use(self) -> Path:
        """The file with the token of the run that uses the SQLite files; absent after a clean stop."""
        return self.root / "in-use"

    @property
    def backed_up(self) -> Path:
        """An empty file, modified by the last backup; without a backup, by the first start."""
        return self.root / "backed-up"

    @property
    def events(self) -> Path:
        """The SQLite file with the decoded events of the chain."""
        return self.root / "chain.db"

    @property
    def localnet(self) -> Path:
        """The folder with the state of the embedded chain."""
        return self.root / "localnet"

    @property
    def serving(self) -> Path:
        """The lock file of the process that serves this folder."""
        return self.root / "serve.lock"

    @property
    def exports(self) -> Path:
        """The folder with the files of exports."""
        return self.root / "exports"

    @property
    def sidecars(self) -> Path:
        """The lock file on which all processes next to the service hold a shared lock."""
        return self.root / "sidecars.lock"

    @property
    def keys(self) -> Path:
        """The folder with the signing keys and the service's secret."""
        return self.keys_dir or self.root / "keys"

    @property
    def secret(self) -> Path:
        """The file with the service's secret, used to recognise API keys, encrypt webhook secrets and sign links."""
        return self.keys / "service-secret"

    @property
    def admin_key(self) -> Path:
        """The file with the admin API key that the quickstart creates."""
        return self.root / "admin-api-key"


def keep_private(path: str | Path) -> None:
    """Create a SQLite file if needed, and let only this user read it and the files that SQLite keeps next to it.

    SQLite gives new files next to it its mode, and reports any error of the file itself.
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
