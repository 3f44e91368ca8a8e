"""The client of the company's OpenID Connect provider, built on Authlib. It makes sign-in URLs and verifies ID tokens.

Only claims that a key of the provider signed for this client and this one sign-in are trusted. Requests go to the
provider's discovery document and the addresses in it, are limited in time and bytes, and follow no redirection.
"""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any, Final, Never
from urllib.parse import quote, urlsplit

import httpx
import structlog
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet
from joserfc.jws import JWSRegistry

from app.core.errors import ApiError, AuthenticationError, UnavailableError
from app.core.hosts import is_loopback
from app.core.outbound import Outbound, Received
from app.core.paths import ConfigurationError
from app.core.settings import Settings

_log = structlog.get_logger(__name__)

Json = dict[str, Any]

#: Accepted algorithms. Each signs with a key known only to the provider. `none` and shared secrets are refused.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
#: Tolerated difference between the provider's clock and the service's, in seconds.
LEEWAY: Final = 30
#: Seconds for which the provider's description is cached. Its keys are read again at each sign-in.
_KEPT = 300.0
#: Base64url characters of the modulus of a 2048-bit RSA key, the smallest size allowed (RFC 7518, section 3.3).
_SMALLEST_MODULUS = 342
#: Maximum bytes of a response, and characters of a subject (OpenID Connect Core, section 2).
_MAX_BYTES, _MAX_SUBJECT = 262_144, 255
_NOT_OPENID = "The response of the company sign-in is not valid OpenID Connect."
#: Exceptions that malformed responses can cause.
_MALFORMED = (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class SignInRefusedError(AuthenticationError):
    """A sign-in, join or step-up through the provider is refused (401). ``reason`` goes into the audit log."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__("authentication_failed", message)
        self.reason = reason


class SignInUnavailableError(UnavailableError):
    """The provider cannot be used at the moment (503). ``reason`` goes into the audit log."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__("sign_in_unavailable", f"{message} Nothing has changed.")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity signed by the provider.

    ``auth_time`` is the Unix second when the person last authenticated at the provider, or None if it is not stated.
    """

    issuer: str
    subject: str
    auth_time: int | None

    def authenticated_since(self, started: int) -> bool:
        """Return True if the authentication is known to be at most ``LEEWAY`` seconds older than ``started``.

        ``started`` is in Unix milliseconds.
        """
        return self.auth_time is not None and self.auth_time >= started // 1000 - LEEWAY


@dataclass(frozen=True, slots=True)
class _Description:
    """The parts of the provider's discovery document that sign-ins need."""

    authorize: str
    token: str
    keys: str
    auth_method: str
    names_itself: bool


class _Signatures(JWSRegistry):
    """Accepts long token headers, because some providers include certificates. The certificates are ignored."""

    max_header_length = 16_384


class CompanySignIn:
    """The client of the provider in the settings. ``issuer`` and ``name`` are None if no provider is set."""

    def __init__(self, settings: Settings, outbound: Outbound | None = None) -> None:
        """Raise ConfigurationError if the file of the client's secret cannot be read or is empty."""
        self.issuer = settings.oidc_issuer
        self.name = None if self.issuer is None else settings.oidc_name
        self._client_id = settings.oidc_client_id or ""
        self._secret = _secret(settings)
        self._seconds = settings.oidc_timeout
        # Private addresses are allowed: the operator chose them, and companies run providers in private networks.
        self._outbound = outbound or Outbound(allowed=lambda _address: True)
        self._known: tuple[float, _Description] | None = None
        self._asking: asyncio.Task[_Description] | None = None

    def close(self) -> None:
        """Cancel a running discovery and start no further name lookups."""
        if self._asking is not None:
            self._asking.cancel()
        self._outbound.close()

    async def authorization_url(
        self, *, returns_to: str, state: str, nonce: str, verifier: str, confirm: bool = False
    ) -> str:
        """Return the URL to send the browser to. ``confirm`` asks the provider to authenticate the person again.

        Raises ``sign_in_unavailable`` if the provider's discovery document cannot be read or used.
        """
        found = await self._description()
        return str(
            prepare_grant_uri(
                found.authorize,
                self._client_id,
                "code",
                redirect_uri=returns_to,
                scope="openid",
                state=state,
                nonce=nonce,
                code_challenge=create_s256_code_challenge(verifier),
                code_challenge_method="S256",
                max_age="0" if confirm else None,
            )
        )

    async def check_source(self, issuer: str | None) -> None:
        """Raise ``authentication_failed`` if a response names another issuer, or lacks a required issuer (RFC 9207).

        The discovery document states whether responses must name the issuer. Raises ``sign_in_unavailable`` if this
        document cannot be read.
        """
        if issuer is None and not (await self._description()).names_itself:
            return
        if issuer != self.issuer:
            raise SignInRefusedError("iss", "The response is not from the company sign-in. Start again.")

    async def identify(self, code: str, *, returns_to: str, nonce: str, verifier: str) -> Identity:
        """Exchange a code for the identity signed by the provider.

        Raises ``authentication_failed`` if the provider refuses the code or the ID token is not valid, and
        ``sign_in_unavailable`` if the provider cannot be used now.
        """
        found = await self._description()
        answer = await self._exchange(found, code, returns_to, verifier)
        keys = _key_set(_read(await self._ask("GET", found.keys), 200))
        return self._verified(answer, keys, nonce)

    async def _description(self) -> _Description:
        if self._known is not None and time.monotonic() - self._known[0] < _KEPT:
            return self._known[1]
        if self._asking is None or self._asking.done():
            # Concurrent sign-ins share one request for the provider's description.
            self._asking = asyncio.create_task(self._discover(), name="openid_discovery")
            # Retrieve the task's exception here, because every sign-in that waited for the task may be gone. Otherwise
            # asyncio would log the exception as never retrieved.
            self._asking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(self._asking)

    async def _discover(self) -> _Description:
        issuer = self.issuer or ""
        said = _read(await self._ask("GET", get_well_known_url(issuer, external=True)), 200)
        if said.get("issuer") != issuer:
            _unavailable("issuer", "The issuer named by the company sign-in differs from the one in the settings.")
        urls = [said.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        if not all(self._usable(url) for url in urls):
            _unavailable("endpoints", "The discovery document of the company sign-in lacks a usable https URL.")
        authorize, token, keys = map(str, urls)
        methods = said.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        names_itself = said.get("authorization_response_iss_parameter_supported", False)
        if not isinstance(methods, list) or not isinstance(names_itself, bool):
            _unavailable("malformed", _NOT_OPENID)
        method = next((one for one in ("client_secret_basic", "client_secret_post") if one in methods), None)
        if method is None:
            _unavailable(
                "client_authentication", "The company's identity provider supports no authentication by client secret."
            )
        self._known = time.monotonic(), _Description(authorize, token, keys, method, names_itself)
        return self._known[1]

    def _usable(self, url: object) -> bool:
        """Return True for an https URL. With an http issuer, http URLs of this machine are usable too."""
        if not isinstance(url, str) or not url.isascii():
            return False
        try:
            parts = urlsplit(url)
        except ValueError:
            return False
        plain = urlsplit(self.issuer or "").scheme == "http" and is_loopback(parts.hostname or "")
        return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and plain))

    async def _exchange(self, found: _Description, code: str, returns_to: str, verifier: str) -> Json:
        body = prepare_token_request("authorization_code", code=code, redirect_uri=returns_to, code_verifier=verifier)
        basic = found.auth_method == "client_secret_basic"
        # RFC 6749, section 2.3.1: the id and the secret are form-encoded before they are joined. Authlib leaves this to
        # its caller.
        pair = (quote(one, safe="") if basic else one for one in (self._client_id, self._secret))
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        _, headers, body = ClientAuth(*pair, found.auth_method).prepare("POST", found.token, headers, body)
        answer = await self._ask("POST", found.token, headers, body.encode())
        if answer.status in (400, 401):
            error = _read(answer, answer.status).get("error")
            if error == "invalid_grant":
                raise SignInRefusedError(
                    "code", "The company sign-in refused the code, which may be used already or too old. Start again."
                )
            if error == "invalid_client":
                _unavailable("client", "The company sign-in does not know this service, or refuses its client secret.")
        return _read(answer, 200)

    def _verified(self, answer: Json, keys: KeySet, nonce: str) -> Identity:
        """Verify an ID token and return its identity. Raises ``authentication_failed`` if it is not valid."""
        issuer = self.issuer or ""
        options = {"iss": {"essential": True, "value": issuer}, "aud": {"essential": True, "value": self._client_id}}
        params = {"nonce": nonce, "client_id": self._client_id, "access_token": answer.get("access_token")}
        try:
            registry = _Signatures(algorithms=ALGORITHMS, strict_check_header=False)
            token = jwt.decode(answer["id_token"], keys, registry=registry)
            claims = CodeIDToken(token.claims, token.header, options, params)
            claims.validate(leeway=LEEWAY)
            subject, auth_time = claims["sub"], claims.get("auth_time")
            if not (0 < len(subject) <= _MAX_SUBJECT and subject.isascii()):
                raise ValueError("sub")
            if auth_time is not None:
                # A boolean is a number in Python, and a time far in the future would make every confirmation fresh.
                if isinstance(auth_time, bool) or auth_time > time.time() + LEEWAY:
                    raise ValueError("auth_time")
                auth_time = int(auth_time)
        except InvalidKeyIdError:
            self._unproven("key", "no published key of the provider signed the token")
        except _MALFORMED as error:
            # Authlib's error names the invalid claim, but never contains its value.
            claim = getattr(error, "claim", None) or (error.args[0] if type(error) is ValueError else None)
            self._unproven(str(claim or getattr(error, "error", "malformed"))[:40], type(error).__name__)
        return Identity(issuer, subject, auth_time)

    def _unproven(self, what: str, detail: str) -> Never:
        _log.warning("openid_token_refused", what=what, detail=detail)
        raise SignInRefusedError(
            f"id_token:{what}",
            "The response of the company sign-in could not be verified for this sign-in. Start again.",
        )

    async def _ask(
        self, method: str, url: str, headers: dict[str, str] | None = None, content: bytes = b""
    ) -> Received:
        """Send a request and return the response.

        Raises ``sign_in_unavailable`` if no complete response arrives in time, or if it is too long.
        """
        sent = {"Accept": "application/json", "User-Agent": "agent-vault-sign-in/1", **(headers or {})}
        try:
            received = await self._outbound.exchange(method, httpx.URL(url), sent, content, _MAX_BYTES, self._seconds)
        except TimeoutError:
            _unavailable("timeout", f"The company sign-in did not answer within {self._seconds:g} seconds.")
        except (OSError, ValueError, ApiError, httpx.HTTPError, httpx.InvalidURL) as error:
            _log.warning("openid_request_failed", host=urlsplit(url).hostname, error=type(error).__name__)
            _unavailable("unreachable", "The company sign-in cannot be reached.")
        if received.truncated:
            reason = "too_long" if len(received.body) >= _MAX_BYTES else "incomplete"
            _unavailable(reason, "The response of the company sign-in is too long or incomplete.")
        return received


def _read(answer: Received, expected: int) -> Json:
    """Return the JSON object in a response. Raises ``sign_in_unavailable`` for any other content or status."""
    if answer.status != expected:
        _unavailable("status", f"The company sign-in answered with the HTTP status {answer.status}.")
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        _unavailable("malformed", _NOT_OPENID)
    return found


def _key_set(said: Json) -> KeySet:
    """Return the keys that can verify tokens, skipping unsupported ones.

    Raises ``sign_in_unavailable`` if no supported key is left.
    """
    given, keys = said.get("keys"), list[Key]()
    for one in given if isinstance(given, list) else []:
        if not isinstance(one, dict) or one.get("kty") not in ("RSA", "EC") or one.get("use", "sig") != "sig":
            continue
        if one["kty"] == "RSA" and len(str(one.get("n"))) < _SMALLEST_MODULUS:
            continue
        with contextlib.suppress(*_MALFORMED):
            keys.append(JWKRegistry.import_key(one))
    if not keys:
        _unavailable("keys", "The company sign-in publishes no usable key.")
    return KeySet(keys)


def _secret(settings: Settings) -> str:
    """Return the client's secret, empty if none is set. Raises ConfigurationError for an unreadable or empty file."""
    if settings.oidc_client_secret is not None:
        return settings.oidc_client_secret.get_secret_value()
    path = settings.oidc_client_secret_file
    if path is None:
        return ""
    try:
        found = path.read_text().strip()
    except (OSError, ValueError):
        found = ""
    if not found:
        raise ConfigurationError(f"AGENT_VAULT_OIDC_CLIENT_SECRET_FILE: {path} cannot be read, or is empty")
    return found


def _unavailable(reason: str, message: str) -> Never:
    _log.warning("openid_provider_unavailable", reason=reason)
    raise SignInUnavailableError(reason, message)
