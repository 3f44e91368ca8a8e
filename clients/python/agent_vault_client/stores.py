"""Stores of idempotency keys, so that a payment can be repeated safely after its process has died."""

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_vault_client.errors import StoreError


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An order's key, the Unix time in seconds of its first use, and the facts with which to find the payment."""

    order: str
    key: str
    created_at: float
    wallet_id: str
    payee: str
    amount: str


class KeyStore(Protocol):
    """Keeps the key of each order."""

    def claim(self, new: StoredKey) -> StoredKey:
        """Return the order's stored key, after storing `new` durably if there is none. Raise StoreError on failure.

        Simultaneous claims of an order must all return the same key, even in different processes.
        """


class FolderStore:
    """A folder with one file per order. Processes may share the folder, and the TypeScript client reads the same files.

    Delete an order's file only if the order will never be repeated.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def claim(self, new: StoredKey) -> StoredKey:
        """Return the order's stored key, after storing `new` if there is none."""
        path = self._folder / f"{hashlib.sha256(new.order.encode()).hexdigest()}.json"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                self._store(path, json.dumps(asdict(new)))
            found = json.loads(path.read_text())
            texts: Any = {name: str(value) for name, value in found.items()}
            return StoredKey(**texts | {"created_at": float(found["created_at"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"The key of order {new.order!r} cannot be stored: {error}. Nothing was sent.") from error

    def _store(self, path: Path, text: str) -> None:
        handle, temporary = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces the key of a simultaneous claim.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            Path(temporary).unlink()
        if os.name == "posix":
            folder = os.open(self._folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
