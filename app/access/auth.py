"""Authentication and authorisation: API keys from the Authorization header, session tokens from Session-Token."""

from collections.abc import Collection
from dataclasses import replace
from ipaddress import ip_address

from based58 import b58decode, b58encode
from solders.keypair import Keypair
from starlette.requests import Request

from app.access.keyring import KeyRing, Principal, unauthenticated
from app.chain.clock import ChainClock
from app.core.actors import Role
from app.core.errors import AuthenticationError, RequestError
from app.core.turns import Lane
from app.store.wallets import WalletRecord

READERS: frozenset[Role] = frozenset({"viewer", "operator", "admin"})
READERS_AND_AGENT: frozenset[Role] = READERS | {"agent"}
PAYERS: frozenset[Role] = frozenset({"agent", "operator", "admin"})
OPERATORS: frozenset[Role] = frozenset({"operator", "admin"})
ADMINS: frozenset[Role] = frozenset({"admin"})

_TOKEN_PREFIX = "avs_"  # noqa: S105 - a prefix
_SEED_BYTES = 32


async def admit(request: Request, keys: KeyRing) -> Principal:
    """Return the caller. A failed authentication is counted for the rate limit and for the audit log.

    Raises the errors of ``authenticate``. Raises ``rate_limited`` instead of ``authentication_failed`` if the client's
    address has exceeded its limit of failed authentications.
    """
    try:
        found = await authenticate(request, keys)
    except AuthenticationError:
        count_failure(request)
        raise
    principal = replace(found, address=client_address(request), request_id=request.state.request_id)
    request.state.principal = principal
    return principal


def count_failure(request: Request) -> None:
    """Count a failed authentication. Raises ``rate_limited`` above the limit of the client's address."""
    client = client_host(request)
    request.app.state.recorder.failed(client)
    request.app.state.rate_limits.failed(client)


def client_host(request: Request) -> str | None:
    """Return the client's address as reported by the server or a trusted proxy, or None if it is unknown."""
    return request.client.host if request.client else None


async def count(
    request: Request, principal: Principal, weight: int = 1, *, brake: bool = False, lifts: bool = False
) -> None:
    """Count a request of ``principal`` against the rate limit of its key, and wait for the request's turn.

    The response headers show the limit, unless it is off. A ``brake`` has its own limit and waits only for other
    brakes, because it may have to stop a flood of other requests from the same key. A request that ``lifts`` a brake
    waits in the same queue as brakes, so that no later freeze overtakes it. Raises ``rate_limited`` above the limit.
    Raises ``insufficient_permissions`` for a key used outside its allowed addresses, unless the request is a ``brake``.
    """
    state = request.app.state
    if principal.outside:
        state.recorder.used_outside(principal, f"{request.method} {request.scope['route'].path}")
    request.state.headers = state.rate_limits.count(principal.key_id, weight, brake=brake)
    authorise_address(principal, brake=brake)
    request.state.lane = Lane(principal.org, principal.key_id, brake or lifts)
    await state.turns.pause(request.state.lane)


def spend(request: Request, principal: Principal, weight: int) -> None:
    """Count a cost that is known only after the request's work. The request is never refused because of this cost."""
    request.state.headers = request.app.state.rate_limits.count(principal.key_id, weight, spent=True)


def authorise_address(principal: Principal, *, brake: bool) -> None:
    """Raise ``insufficient_permissions`` if a key is used outside its allowed addresses, except for a ``brake``."""
    if principal.outside and not brake:
        message = "The API key does not allow this address."
        if principal.role in OPERATORS:
            message += " From this address, the key may only freeze wallets and pause the organisation."
        raise AuthenticationError("insufficient_permissions", message)


def client_address(request: Request) -> str | None:
    """Return the client's IP address, or None if it is unknown or a trusted proxy reports other text.

    An IPv4 address mapped to IPv6 is returned as IPv4.
    """
    try:
        found = ip_address(client_host(request) or "")
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)


async def authenticate(request: Request, keys: KeyRing) -> Principal:
    """Return the caller.

    Raises ``authentication_failed`` without a valid API key, and ``invalid_request`` if one of the headers
    Authorization, Session-Token and Idempotency-Key is repeated.
    """
    for name in ("Authorization", "Session-Token", "Idempotency-Key"):
        if len(request.headers.getlist(name)) > 1:
            # A proxy may have checked one copy of the header, while the service would use the other.
            raise RequestError("invalid_request", f"The request repeats the header {name}. Send it once.")
    key = presented_key(request)
    principal = await keys.recognise(key, client_address(request)) if key is not None else None
    if principal is None:
        raise unauthenticated()
    return principal


def presented_key(request: Request) -> str | None:
    """Return the text that the request presents as its API key, or None if it has no bearer token."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def authorise(principal: Principal, roles: Collection[Role]) -> None:
    """Require one of the roles. Raises ``insufficient_permissions`` if the caller has a different role."""
    if principal.role not in roles:
        named = " or ".join(", ".join(sorted(roles)).rsplit(", ", 1))
        raise AuthenticationError(
            "insufficient_permissions", f"This operation requires an API key with the role {named}."
        )


def authorise_wallet(principal: Principal, wallet_id: str) -> None:
    """Raise ``insufficient_permissions`` for an agent of another wallet."""
    if principal.wallet_id is not None and principal.wallet_id != wallet_id:
        raise AuthenticationError("insufficient_permissions", "The API key is bound to another wallet.")


def encode_token(session: Keypair) -> str:
    """Return the session token of a session key.

    Anyone who has the token can sign on-chain, with or without this service.
    """
    return _TOKEN_PREFIX + b58encode(session.secret()).decode()


def decode_token(token: str) -> Keypair:
    """Return the session key that a token encodes. Raises ``session_token_invalid`` for any other text."""
    try:
        seed = b58decode(token.removeprefix(_TOKEN_PREFIX).encode("ascii")) if len(token) <= 64 else b""
    except ValueError:
        seed = b""
    if not token.startswith(_TOKEN_PREFIX) or len(seed) != _SEED_BYTES:
        raise AuthenticationError("session_token_invalid")
    return Keypair.from_seed(seed)


def session_key(principal: Principal, token: str | None, wallet: WalletRecord, clock: ChainClock) -> Keypair | None:
    """Return the key that signs for the session, or None if the operator signs instead.

    Agents must send a token; for other roles it is optional. A token must always match the wallet's session
    authority, and its expiry is compared with the chain's clock.

    Raises ``session_token_invalid`` if an agent sends no token or if the token is not the wallet's current one, and
    ``session_token_expired`` if the wallet's current token has expired.
    """
    if token is None:
        if principal.role == "agent":
            raise AuthenticationError("session_token_invalid", "An agent's API key requires the header Session-Token.")
        return None
    session = decode_token(token)
    if wallet.session_authority is None or str(session.pubkey()) != wallet.session_authority:
        raise AuthenticationError("session_token_invalid")
    if wallet.session_expires_at <= clock.now():
        raise AuthenticationError("session_token_expired")
    return session
