"""Backup archives of a data folder: zip files with a manifest that holds the hash of every file in them."""

import hashlib
import hmac
import json
import os
import re
import zipfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from pydantic import BaseModel, ConfigDict, Field

from app.core.paths import ConfigurationError

_MANIFEST, _SEALED = "manifest.json", "keys.sealed"
_MAX_MANIFEST = 16 * 1024 * 1024
#: The only file names that are restored to a disk. An archive with other data or key files is refused.
DATA = re.compile(r"agent-vault\.db|chain\.db|localnet/localnet\.db|exports/exp_[0-9A-Za-z]{1,64}\.(csv|json)")
KEYS = re.compile(r"keys/[0-9A-Za-z][0-9A-Za-z._-]{0,100}|admin-api-key|localnet/faucet\.json")
_MAC_LABEL = b"agent-vault backup manifest"
_CHUNK = 1024 * 1024
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError)


class _Part(BaseModel):
    """The required size and hash of one file in the archive."""

    model_config = ConfigDict(extra="forbid")

    size: int = Field(ge=0)
    sha256: str


class _Seal(_Part):
    """The sealed keys: their size and hash, and the salt and nonce in base64."""

    salt: str
    nonce: str


class Manifest(BaseModel):
    """An archive's own description of its contents."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["agent-vault-backup"] = "agent-vault-backup"
    version: Literal[1] = 1
    created_at: str
    files: dict[str, _Part]
    sealed: _Seal | None = None
    mac: str | None = None

    def bound(self) -> bytes:
        """Return the data that the seal authenticates in addition to the keys: the manifest without seal and MAC."""
        return self._without("sealed", "mac")

    def fingerprint(self) -> str:
        """Return the SHA-256 of the manifest without its MAC, in hex. The manifest has the hash of every file."""
        return hashlib.sha256(self._without("mac")).hexdigest()

    def mac_under(self, secret: bytes) -> str:
        """Return the HMAC-SHA256 of the manifest, in hex, under a key derived from the service's secret."""
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_MAC_LABEL).derive(secret)
        return hmac.new(key, self._without("mac"), hashlib.sha256).hexdigest()

    def _without(self, *names: str) -> bytes:
        return json.dumps(self.model_dump(exclude={*names}), sort_keys=True, separators=(",", ":")).encode()


def create_archive(
    path: Path,
    manifest: Manifest,
    files: Mapping[str, Path],
    keys: Mapping[str, Path] | None,
    passphrase: str,
    *,
    secret: bytes,
) -> None:
    """Write an archive of ``files``, and of ``keys`` sealed under the passphrase. A failure leaves no archive.

    Fills in the manifest, including a MAC under the service's ``secret``. Raises OSError, for example if a file with
    this name already exists.
    """
    draft = path.with_name(f"{path.name}.part")
    draft.unlink(missing_ok=True)
    try:
        with (
            os.fdopen(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, source in sorted(files.items()):
                assert DATA.fullmatch(name), name
                with source.open("rb") as content, archive.open(name, "w", force_zip64=True) as member:
                    manifest.files[name] = _copy(content, member)
            if keys is not None:
                sealed, manifest.sealed = _seal(keys, passphrase, manifest.bound())
                archive.writestr(_SEALED, sealed)
            manifest.mac = manifest.mac_under(secret)
            archive.writestr(_MANIFEST, manifest.model_dump_json(indent=2))
            archive.close()
            file.flush()
            os.fsync(file.fileno())
        # Use a hard link, because it fails if another process has created the file by now. A rename would replace that
        # file.
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def open_archive(path: Path) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """Open an archive and check it against its manifest.

    Raises ConfigurationError if the archive does not match the manifest or cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(_MANIFEST).file_size > _MAX_MANIFEST:
                raise ValueError
            manifest = Manifest.model_validate_json(archive.read(_MANIFEST))
            expected = {_MANIFEST, *manifest.files, *([_SEALED] if manifest.sealed else [])}
            if any(member.flag_bits & 1 for member in archive.infolist()):
                raise ValueError  # The member is encrypted, but backups never use zip encryption.
            names = archive.namelist()
            if len(names) != len(expected) or set(names) != expected:
                raise ConfigurationError(f"{path} is broken: its files are not the files in its manifest")
            if not all(DATA.fullmatch(name) for name in manifest.files) or "agent-vault.db" not in manifest.files:
                raise ConfigurationError(f"{path} has files that do not belong in a backup, or lacks the database")
            yield archive, manifest
    except _BROKEN as error:
        detail = f" ({type(error).__name__})" if isinstance(error, zipfile.BadZipFile | zlib.error | EOFError) else ""
        raise ConfigurationError(f"{path} is not a backup made by agent-vault, or it is broken{detail}") from None


def extract(archive: zipfile.ZipFile, manifest: Manifest, folder: Path) -> None:
    """Write the files into a folder. Raises ConfigurationError if a file differs from the manifest."""
    for name, part in manifest.files.items():
        with archive.open(name) as content, _new(folder / name) as file:
            _require(name, part, _copy(content, file, most=part.size))


def extract_keys(archive: zipfile.ZipFile, manifest: Manifest, folder: Path, passphrase: Callable[[], str]) -> None:
    """Decrypt the keys into a folder. Raises ConfigurationError if the passphrase is wrong or the archive altered."""
    seal = manifest.sealed
    assert seal is not None
    content = archive.read(_SEALED)
    _require(_SEALED, seal, _Part(size=len(content), sha256=hashlib.sha256(content).hexdigest()))
    key = _derive(passphrase(), b64decode(seal.salt))
    try:
        bundle = ChaCha20Poly1305(key).decrypt(b64decode(seal.nonce), content, manifest.bound())
    except InvalidTag:
        raise ConfigurationError("the passphrase is wrong, or the archive was altered") from None
    for name, text in json.loads(bundle).items():
        if not KEYS.fullmatch(name):
            raise ConfigurationError("the archive has key files that do not belong in a backup")
        with _new(folder / name) as file:
            file.write(b64decode(text))


def _seal(keys: Mapping[str, Path], passphrase: str, bound: bytes) -> tuple[bytes, _Seal]:
    assert all(KEYS.fullmatch(name) for name in keys)
    salt, nonce = os.urandom(16), os.urandom(12)
    bundle = json.dumps({name: b64encode(path.read_bytes()).decode() for name, path in keys.items()}).encode()
    content = ChaCha20Poly1305(_derive(passphrase, salt)).encrypt(nonce, bundle, bound)
    return content, _Seal(
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        salt=b64encode(salt).decode(),
        nonce=b64encode(nonce).decode(),
    )


def _derive(passphrase: str, salt: bytes) -> bytes:
    # Each guess costs 128 MB and half a second. The version of the format determines the cost, so that no archive can
    # demand more.
    return Scrypt(salt=salt, length=32, n=2**17, r=8, p=1).derive(passphrase.encode())


def _new(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _copy(source: IO[bytes], target: IO[bytes], *, most: int | None = None) -> _Part:
    """Copy a file and return the size and hash of the copy. Stop at most one chunk after ``most`` bytes."""
    digest, size = hashlib.sha256(), 0
    while (most is None or size <= most) and (chunk := source.read(_CHUNK)):
        digest.update(chunk)
        size += len(chunk)
        target.write(chunk)
    return _Part(size=size, sha256=digest.hexdigest())


def _require(name: str, expected: _Part, found: _Part) -> None:
    if (found.size, found.sha256) != (expected.size, expected.sha256):
        raise ConfigurationError(f"the archive is broken: {name} differs from its manifest")
