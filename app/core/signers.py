"""The service's signing keys and their files, which have mode 600 and the format of the Solana command line."""

import itertools
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.core.errors import UnavailableError

_ELSEWHERE = (
    "The service runs without the authority's key. Repeat the request with `?sign=offline` to get its transaction, and "
    "sign it on the machine that has the key."
)


class KeyFileError(Exception):
    """A key file is missing, readable by others or not a key, or a key in a token cannot be used."""


class Signer(Protocol):
    """Signs for an address: a ``Keypair`` in memory, or a key in a token (``app.core.hardware_tokens``)."""

    def pubkey(self) -> Pubkey:
        """Return the address that the signer signs for."""
        ...

    def sign_message(self, message: bytes) -> Signature:
        """Return the signature of a message.

        A hardware token blocks the calling thread until it has signed. In the event loop, use ``signature_by`` instead.
        """
        ...


@dataclass(frozen=True, slots=True)
class Signers:
    """The keys of the roles. Without the authority's key, the authority signs its changes offline.

    Without the arbiter's key, disputes are decided elsewhere. The addresses that every payment needs are cached,
    because deriving an address takes a curve multiplication.
    """

    fee_payer: Signer
    operator: Signer
    authority: Signer | None
    arbiter: Signer | None
    fee_payer_address: Pubkey = field(init=False)
    operator_address: Pubkey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fee_payer_address", self.fee_payer.pubkey())
        object.__setattr__(self, "operator_address", self.operator.pubkey())

    def require_authority(self) -> Signer:
        """Return the authority's key. Raises ``authority_offline`` if the service runs without it."""
        if self.authority is None:
            raise UnavailableError("authority_offline", _ELSEWHERE)
        return self.authority

    def require_arbiter(self) -> Signer:
        """Return the arbiter's key. Raises ``authority_offline`` if the service runs without it."""
        if self.arbiter is None:
            raise UnavailableError(
                "authority_offline",
                "The service runs without the arbiter's key. Decide disputes with that key, outside this service.",
            )
        return self.arbiter


def read_secret(path: Path) -> str:
    """Return the content of a secret file.

    Raises KeyFileError if there is no regular file at the path, or if the file does not belong to this user or has
    another mode than 600.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise KeyFileError(f"{path}: is not a file")
    with os.fdopen(descriptor) as file:
        found = os.fstat(file.fileno())
        if stat.S_IMODE(found.st_mode) != 0o600 or found.st_uid != os.geteuid():
            raise KeyFileError(f"{path}: must belong to this user and have mode 600 (chmod 600 {path})")
        return file.read()


def read_key(path: Path) -> Keypair:
    """Return the key in a file. Raises KeyFileError if the file has none, without showing its content."""
    try:
        return Keypair.from_bytes(bytes(json.loads(read_secret(path))))
    except (ValueError, TypeError):
        raise KeyFileError(f"{path}: is not a key file (a JSON array of 64 numbers)") from None


def write_secret(path: Path, text: str) -> None:
    """Write a file that only this user can read. If the process dies, the file has its old or its new content."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def next_key(folder: Path, role: str) -> Keypair:
    """Return the key that will replace a role's key. Creates it if needed."""
    path = folder / f"{role}.next.json"
    return read_key(path) if path.exists() else create_key(path)


def install_next(folder: Path, role: str) -> None:
    """Replace the current key of a role with the next key. The replaced key is kept as ``ROLE.old.json``.

    No key is overwritten: a second old key becomes ``ROLE.old-2.json``. If the process dies, the role's file holds
    either the current or the next key.
    """
    path = folder / f"{role}.json"
    if path.exists():
        _keep(path, role)
    (folder / f"{role}.next.json").replace(path)


def _keep(path: Path, role: str) -> None:
    for number in itertools.count(1):
        old = path.with_name(f"{role}.old.json" if number == 1 else f"{role}.old-{number}.json")
        try:
            os.link(path, old)
        except FileExistsError:
            # An earlier process already kept the current key, but died before it installed the next key.
            if not old.samefile(path):
                continue
        return


def file_of(folder: Path, role: str, address: Pubkey) -> Path | None:
    """Return the file among a role's current, next and old keys that has the key of an address, or None."""
    for path in sorted(folder.glob(f"{role}*.json")):
        with suppress(KeyFileError):
            if read_key(path).pubkey() == address:
                return path
    return None


def create_key(path: Path) -> Keypair:
    """Create a key, write it to a file and return it."""
    key = Keypair()
    write_secret(path, json.dumps(list(bytes(key))))
    return key
