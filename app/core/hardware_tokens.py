"""Keys that never leave a token: Ed25519 signatures through PKCS#11.

A PKCS#11 module is foreign code that may hang. Each module therefore has its own thread, which makes one call at a
time, and callers wait for a limited time. Only this module needs the package `python-pkcs11`.
"""

import asyncio
import ctypes
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.core.errors import UnavailableError
from app.core.pkcs11_uri import Pkcs11Uri, parse_pkcs11_uri
from app.core.signers import KeyFileError, Signer, read_secret

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Bytes before the 32 bytes of a public key: none, the header of an OCTET STRING, or the header of a BIT STRING.
_POINT_PREFIXES = (b"", b"\x04\x20", b"\x03\x21\x00")
#: Message signed to check that the two keys of a pair belong together. No transaction's message begins with 0xff.
_PROBE = b"\xffagent-vault: check of a key"


class TokenSigner:
    """Signs with a key in a token, and reopens a lost session."""

    def __init__(self, token: "_Token", uri: Pkcs11Uri, address: Pubkey, *, name: str, limit: float) -> None:
        self._token = token
        self._uri = uri
        self._address = address
        self._name = name
        self._limit = limit

    def pubkey(self) -> Pubkey:
        """Return the key's address."""
        return self._address

    def sign_message(self, message: bytes) -> Signature:
        """Return the signature of a message, blocking this thread.

        Raises ``signer_unavailable`` if the token fails or does not respond in time.
        """
        try:
            return self._token.module.submit(lambda: self._sign(message), self._limit).result(self._limit)
        except TimeoutError as error:
            raise self._unavailable("no answer in time") from error

    async def sign(self, message: bytes) -> Signature:
        """Return the signature of a message without blocking the event loop.

        Raises ``signer_unavailable`` as ``sign_message`` does.
        """
        try:
            async with asyncio.timeout(self._limit):
                return await asyncio.wrap_future(self._token.module.submit(lambda: self._sign(message), self._limit))
        except TimeoutError as error:
            raise self._unavailable("no answer in time") from error

    def _sign(self, message: bytes) -> Signature:
        from pkcs11.exceptions import PKCS11Error  # noqa: PLC0415

        try:
            try:
                return _signature(self._token.session(), self._uri, message)
            except PKCS11Error as error:
                _log.warning("token_session_lost", key=self._name, error=_reason(error))
                session = self._token.session(anew=True)
                if _address(session, self._uri) != self._address:
                    raise KeyFileError("the token has another key now") from None
                return _signature(session, self._uri, message)
        except (PKCS11Error, KeyFileError) as error:
            raise self._unavailable(_reason(error)) from error

    def _unavailable(self, reason: str) -> UnavailableError:
        _log.warning("token_cannot_sign", key=self._name, error=reason)
        return UnavailableError("signer_unavailable")


async def signature_by(signer: Signer, message: bytes) -> Signature:
    """Return the signature of a message. A token signs in its thread, and may raise ``signer_unavailable``."""
    return await signer.sign(message) if isinstance(signer, TokenSigner) else signer.sign_message(message)


class HardwareTokens:
    """Opens keys in tokens. Keys in one token share a session, because a process can log in to it only once."""

    def __init__(self, limit: float) -> None:
        """Wait at most ``limit`` seconds for each call to a token."""
        self._limit = limit
        self._tokens: dict[tuple[Path, tuple[tuple[str, str], ...]], _Token] = {}

    def open(self, text: str, *, name: str) -> TokenSigner:
        """Return the signer for the key named by the PKCS#11 URI ``text``. Messages call the key ``name``.

        Raises KeyFileError if the key cannot be used. The message never shows the PIN.
        """
        try:
            uri = parse_pkcs11_uri(text)
            module = _module(uri.module)
        except ValueError as error:
            raise KeyFileError(f"{name}: {error}") from None
        place = (uri.module, tuple(sorted(uri.token.items())))
        token = self._tokens.setdefault(place, _Token(module, dict(uri.token), uri.pin_source))
        if token.pin_source != uri.pin_source:
            raise KeyFileError(f"{name}: another key in the same token has a different pin-source")
        try:
            address = module.submit(lambda: _checked(token, uri), self._limit).result(self._limit)
        except (TimeoutError, UnavailableError):
            raise KeyFileError(f"{name}: the token does not answer within {self._limit:g} seconds") from None
        except KeyFileError as error:
            raise KeyFileError(f"{name}: {error}") from None
        return TokenSigner(token, uri, address, name=name, limit=self._limit)


@dataclass(slots=True, eq=False)
class _Call:
    work: Callable[[], Any]
    future: "Future[Any]"


class _Module:
    """A loaded PKCS#11 library with the thread that calls it.

    The thread is a daemon thread: a call that hangs cannot be ended, and must not keep the process from ending.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Number of reinitialisations of the library. Each one closes the sessions of earlier generations.
        self.generation = 0
        self._jobs: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self._kept = False
        threading.Thread(target=self._run, name=f"pkcs11 {path.name}", daemon=True).start()

    def submit(self, work: Callable[[], T], limit: float) -> "Future[T]":
        """Run ``work`` in the thread.

        Raises ``signer_unavailable`` if an earlier call has been hanging for longer than ``limit`` seconds.
        """
        since = self._busy_since
        if since is not None and time.monotonic() - since > limit:
            raise UnavailableError("signer_unavailable")
        future: Future[T] = Future()
        self._jobs.put(_Call(work, future))
        return future

    def library(self, *, anew: bool = False) -> Any:
        """Return the initialised library. ``anew`` searches for tokens again and closes all sessions.

        Raises KeyFileError if the library cannot be used or `python-pkcs11` is not installed.
        """
        try:
            import pkcs11  # noqa: PLC0415 - an extra: only deployments with tokens install it
        except ImportError:
            raise KeyFileError(
                "keys in a token need the package python-pkcs11: pip install 'agent-vault[pkcs11]'"
            ) from None
        try:
            library = pkcs11.lib(str(self.path))
            if not self._kept:
                # Without this reference, Python would unload the library at exit during a hanging call, and crash.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
                self._kept = True
            if anew:
                self.generation += 1
                library.reinitialize()
        except pkcs11.PKCS11Error as error:
            raise KeyFileError(f"{self.path} cannot be used as a PKCS#11 module ({_reason(error)})") from None
        return library

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if not job.future.set_running_or_notify_cancel():
                continue
            self._busy_since = time.monotonic()
            try:
                result = job.work()
            except BaseException as error:  # noqa: BLE001 - passed on to the caller
                job.future.set_exception(error)
            else:
                job.future.set_result(result)
            finally:
                self._busy_since = None


_MODULES: dict[Path, _Module] = {}


def _module(path: Path) -> _Module:
    """Return this process's only instance of a module. Raises ValueError if the file does not exist."""
    if not path.is_file():
        raise ValueError(f"module-path: there is no file {path}")
    # A process loads a module only once. All keys in its tokens share the module.
    return _MODULES.setdefault(path, _MODULES.get(path) or _Module(path))


@dataclass(slots=True, eq=False)
class _Token:
    """A token and its session. Used only in the thread of its module."""

    module: _Module
    attributes: dict[str, str]
    pin_source: Path
    _session: Any = None
    #: The module's generation when the session was last requested; None before the first request.
    _generation: int | None = None
    #: Modification time of the PIN file when the token refused its PIN. Trying this PIN again could lock the token.
    _refused: int | None = None

    def session(self, *, anew: bool = False) -> Any:
        """Return the session, opened if needed. Pass ``anew`` if the current session has failed.

        Raises KeyFileError if no session can be opened.
        """
        lost = anew or (self._session is None and self._generation is not None)
        # If another token's loss has closed this session, the module has already been reinitialised.
        library = self.module.library(anew=lost and self._generation == self.module.generation)
        if self._session is None or self._generation != self.module.generation:
            self._session, self._generation = None, self.module.generation
            self._session = self._open(library)
        return self._session

    def _open(self, library: Any) -> Any:
        import pkcs11  # noqa: PLC0415

        try:
            found: pkcs11.Token = library.get_token(**self.attributes)
        except pkcs11.NoSuchToken:
            raise KeyFileError("the module has no such token") from None
        except pkcs11.MultipleTokensReturned:
            raise KeyFileError("several tokens match: add the serial to the URI") from None
        except pkcs11.PKCS11Error as error:
            raise KeyFileError(f"the token cannot be reached ({_reason(error)})") from None
        try:
            pin = read_secret(self.pin_source).rstrip("\r\n")
        except UnicodeDecodeError:
            raise KeyFileError(f"{self.pin_source}: is not text") from None
        written = self.pin_source.stat().st_mtime_ns
        if written == self._refused:
            raise KeyFileError("the token has refused this PIN before: correct the PIN file and write it again")
        try:
            return found.open(user_pin=pin)
        except pkcs11.UserAlreadyLoggedIn:
            return found.open()
        except pkcs11.PinLocked:
            self._refused = written
            raise KeyFileError("the token's PIN is locked: unlock it with the token's own tools") from None
        except (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange, pkcs11.PinExpired) as error:
            self._refused = written
            raise KeyFileError(f"the token refuses the PIN in {self.pin_source} ({_reason(error)})") from None
        except pkcs11.PKCS11Error as error:
            raise KeyFileError(f"the token does not open a session ({_reason(error)})") from None


def _checked(token: _Token, uri: Pkcs11Uri) -> Pubkey:
    """Return the address of a key after a test signature. Raises KeyFileError if the key cannot be used."""
    session = token.session()
    from pkcs11.exceptions import PKCS11Error  # noqa: PLC0415 - installed, because the session is open

    address = _address(session, uri)
    try:
        genuine = _signature(session, uri, _PROBE).verify(address, _PROBE)
    except PKCS11Error as error:
        raise KeyFileError(f"the key does not sign with Ed25519 ({_reason(error)})") from None
    if not genuine:
        raise KeyFileError("the token's public key does not belong to its private key")
    return address


def _address(session: Any, uri: Pkcs11Uri) -> Pubkey:
    """Return the public key of the pair that a URI names. Raises KeyFileError unless the URI names one Ed25519 key."""
    import pkcs11  # noqa: PLC0415

    try:
        private = _key(session, uri, private=True)
        if private.key_type != pkcs11.KeyType.EC_EDWARDS:
            raise KeyFileError(f"the key is not an Ed25519 key but {_type_name(private.key_type)}")
        point = bytes(_key(session, uri, private=False)[pkcs11.Attribute.EC_POINT])
    except pkcs11.MultipleObjectsReturned:
        raise KeyFileError("several keys match: add the id to the URI") from None
    except pkcs11.NoSuchKey:
        raise KeyFileError("the token has no such key, or its public key is missing") from None
    except pkcs11.PKCS11Error as error:
        raise KeyFileError(f"the key cannot be read ({_reason(error)})") from None
    for prefix in _POINT_PREFIXES:
        if len(point) == len(prefix) + Pubkey.LENGTH and point.startswith(prefix):
            return Pubkey(point[len(prefix) :])
    raise KeyFileError("the key is not an Ed25519 key but a key on another Edwards curve")


def _key(session: Any, uri: Pkcs11Uri, *, private: bool) -> Any:
    from pkcs11 import ObjectClass  # noqa: PLC0415

    kind = ObjectClass.PRIVATE_KEY if private else ObjectClass.PUBLIC_KEY
    return session.get_key(object_class=kind, label=uri.label, id=uri.key_id)


def _signature(session: Any, uri: Pkcs11Uri, message: bytes) -> Signature:
    from pkcs11 import Mechanism  # noqa: PLC0415

    # The key is looked up each time, because its handle becomes invalid when the token is removed.
    return Signature(_key(session, uri, private=True).sign(message, mechanism=Mechanism.EDDSA))


def _type_name(kind: Any) -> str:
    return str(getattr(kind, "name", kind))


def _reason(error: Exception) -> str:
    """Return a readable cause. Most exceptions of the library have no text, so their class names are used."""
    return str(error) or type(error).__name__
