"""Turns a handler into an endpoint, with authentication, parsing, idempotency and an entry in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import get_annotations, getdoc
from types import ModuleType
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from solders.keypair import Keypair
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.access.auth import (
    admit,
    authorise,
    authorise_address,
    authorise_wallet,
    count,
    presented_key,
    session_key,
    spend,
)
from app.access.keyring import KeyRing, Principal
from app.access.sealing import ResponseSeal
from app.api._parsing import query_items, read_json, validation_error
from app.api.declared import Declared
from app.api.fields import Body, ChangeBody, IdempotencyKey, Query
from app.api.money_body import MoneyBody
from app.api.replay import BRAKING_FIELDS, fingerprint, prepare
from app.api.signing import awaiting_signature, signs_offline
from app.api.versions import tag_header
from app.core.actors import Role
from app.core.errors import (
    CATALOGUE,
    ApiError,
    ConflictError,
    NotFoundError,
    OutdatedError,
    RequestError,
    UnavailableError,
)
from app.core.http_api import FIRST_CALL, PREFER_FIRST_CALL
from app.core.timestamps import iso_ms
from app.store.wallets import WalletRecord
from app.submission.claim import Claim, Fingerprint
from app.submission.context import Service
from app.submission.idempotency import Idempotency
from app.submission.plan import AwaitingSignatureError

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[BaseModel]])

_ALWAYS = (
    "invalid_request",
    "authentication_failed",
    "host_not_allowed",
    "rate_limited",
    "internal_error",
    "chain_unavailable",
    "storage_unavailable",
)
_BODIES = ("request_too_large", "request_timeout")
_MONEY = ("restore_catching_up", "restore_unacknowledged")
_SESSION = ("session_token_invalid", "session_token_expired")
_SIGNED_ELSEWHERE = ("authority_offline", "too_many_unsigned_transactions")
_CHANGES = ("idempotency_conflict", "idempotency_in_progress", "signer_unavailable", "fee_payer_insufficient")

#: Number of rows of a page that cost 1 of the rate limit.
_ROWS = 10


@dataclass(frozen=True, slots=True)
class Call:
    """An authenticated request, with its principal and its claim."""

    service: Service
    principal: Principal
    request: Request
    claim: Claim

    def path(self, name: str) -> str:
        """Return the path parameter with this name."""
        return str(self.request.path_params[name])

    @property
    def session_token(self) -> str | None:
        """The header Session-Token, or None if the request lacks it."""
        return self.request.headers.get("session-token")

    def session(self, wallet: WalletRecord) -> Keypair | None:
        """Return the session's key if it signs for the wallet; see ``session_key``."""
        return session_key(self.principal, self.session_token, wallet, self.service.clock)


def operation(
    place: str,
    *,
    tag: str | None = None,
    roles: Collection[Role],
    errors: Collection[str] = (),
    changes: bool = True,
    session: bool = False,
    version: bool = False,
    tagged: bool = False,
    secret: bool = False,
    pays: bool = False,
    signable: bool = False,
    weight: int = 1,
    brakes: bool = False,
) -> Callable[[Handler], Route]:
    """Make the route of ``handler(call, body or query)``. The handler's annotations declare the models.

    - ``place``: the method and the path, such as `GET /v1/wallets`.
    - ``tag``: the operation's section in the OpenAPI document, by default the first part of the path after `/v1`.
    - ``errors``: error codes in addition to the codes of every operation.
    - ``changes``: the operation uses the idempotency key of its body, if the body has one.
    - ``session``: document the header Session-Token and its errors.
    - ``version``: document the request header If-Match.
    - ``tagged``: responses have the header ETag.
    - ``secret``: the response is stored sealed under the request's API key, and only this key can replay it.
    - ``pays``: the outcome counts as the outcome of a payment in the metrics.
    - ``weight``: the cost of a request for the rate limit. A list also costs 1 for every 10 rows, or with pages for
      every 10 rows of a full page.
    - ``brakes``: the operation stops something, unless the body's ``brakes`` is False. The rate limit counts such a
      request apart from the key's other requests. Its stored response is replayed only while the brake is in force.
    - ``signable``: the operation accepts the query `sign=offline`, which returns its transaction to sign elsewhere.
    """
    method, path = place.split()

    def decorate(handler: Handler) -> Route:
        model, answer = _models(handler)
        body = model if model is not None and issubclass(model, Body) else None
        repeats = changes and body is not None and issubclass(body, ChangeBody)

        async def endpoint(request: Request) -> Response:
            service: Service = request.app.state.service
            keys = service.part(KeyRing)
            principal = await admit(request, keys)

            async def read() -> Body | Query | None:
                authorise(principal, roles)
                return await _arguments(request, model, signable=signable)

            arguments = await _counted(request, principal, weight, read, reads=model, brakes=brakes)
            offline = signable and signs_offline(request)
            authorise_address(principal, brake=_only_brakes(arguments))
            wallet_id = request.path_params.get("wallet_id") or getattr(arguments, "wallet_id", None)
            request.state.wallet_id = wallet_id or getattr(arguments, "from_wallet", None) or principal.wallet_id
            if wallet_id is not None:
                authorise_wallet(principal, wallet_id)

            async def work(claim: Claim) -> bytes:
                claim.sign_offline = offline
                call = Call(service, principal, request, claim)
                prepare(service, claim, principal, arguments)
                result = await _result(handler, call, arguments)
                if pays:
                    request.app.state.metrics.paid(cast(Any, result).status)
                _count_rows(call, arguments, result)
                return result.model_dump_json().encode()

            seal = keys.seal(presented_key(request) or "") if secret else None
            identity = _fingerprint(request, principal, arguments, seal) if repeats else None
            if identity is not None and offline:
                # With `sign=offline`, the same body is a different request.
                identity = replace(identity, path=f"{identity.path}?{request.url.query}")
            try:
                content, replayed, called_at = await service.part(Idempotency).run(
                    identity, work, seal=seal, brakes=brakes and getattr(arguments, "brakes", False)
                )
            except ConflictError:
                raise  # Not counted: another request makes the payment, or may have made it before lost commits.
            except ApiError as error:
                if pays:
                    request.app.state.metrics.not_paid(error)
                raise
            headers = {} if replayed is None else {"Idempotent-Replayed": str(replayed).lower()}
            if called_at is not None and request.headers.get("prefer") == PREFER_FIRST_CALL:
                headers[FIRST_CALL] = iso_ms(called_at)
            if tagged:
                headers |= tag_header(content)
            return Response(content, media_type="application/json", headers=headers)

        endpoint.__name__ = endpoint.__qualname__ = handler.__name__
        endpoint.__doc__ = handler.__doc__
        endpoint.__module__ = handler.__module__
        codes = {
            *_ALWAYS,
            "insufficient_permissions",
            *(_CHANGES if repeats else ()),
            *(_BODIES if body else ()),
            *(_MONEY if body and issubclass(body, MoneyBody) else ()),
            *(_SESSION if session else ()),
            *(_SIGNED_ELSEWHERE if signable else ()),
            *errors,
        }
        endpoint.__dict__["declared"] = Declared(
            name=handler.__name__,
            tag=tag or path.split("/")[2],
            roles=roles,
            weight=weight,
            meaning=getdoc(handler) or "",
            model=model,
            answer=answer,
            errors=_by_status(codes),
            session=session,
            version=version,
            tagged=tagged,
            repeats=repeats,
            signable=signable,
        )
        return Route(path, endpoint, methods=[method])

    return decorate


def routes_of(*modules: ModuleType) -> list[Route]:
    """Return the routes that modules declare, in the order of their declaration."""
    return [one for module in modules for one in vars(module).values() if isinstance(one, Route)]


def _models(handler: Handler) -> tuple[type[Body] | type[Query] | None, type[BaseModel]]:
    """Return the models of a handler's body or query, if it has one, and of its response."""
    _call, *arguments, answer = get_annotations(handler).values()
    return arguments[0] if arguments else None, answer


def _only_brakes(arguments: Any) -> bool:
    """Return True if the request does nothing but freeze a wallet or pause the organisation."""
    return getattr(arguments, "brakes", False) and arguments.model_fields_set <= {*BRAKING_FIELDS, "idempotency_key"}


async def _result(handler: Handler, call: Call, arguments: Any) -> BaseModel:
    """Run the handler and return its response, or the response for a transaction that waits for a signature."""
    given = () if arguments is None else (arguments,)
    try:
        try:
            return await handler(call, *given)
        except OutdatedError:
            if call.claim.effective:
                raise
            await call.service.catch_up()
            return await handler(call, *given)
    except AwaitingSignatureError as awaiting:
        return await awaiting_signature(call.service, awaiting.attempt)
    except NotFoundError as error:
        if call.claim.effective:
            # The request has already changed the object, so the object exists but cannot be shown now.
            raise UnavailableError("chain_unavailable") from error
        raise


async def _counted(
    request: Request,
    principal: Principal,
    weight: int,
    read: Callable[[], Awaitable[Body | Query | None]],
    *,
    reads: type[Body] | type[Query] | None,
    brakes: bool,
) -> Body | Query | None:
    """Count a request and return its arguments.

    The arguments are read first if they determine the cost or the bucket. A request with invalid arguments also counts.
    """
    first = brakes or (reads is not None and issubclass(reads, Query))
    if not first:
        await count(request, principal, weight)
    arguments = None
    try:
        arguments = await read()
    finally:
        if first:
            brake = brakes and arguments is not None and getattr(arguments, "brakes", True)
            lifts = brakes and not brake and bool(BRAKING_FIELDS & getattr(arguments, "model_fields_set", set()))
            await count(request, principal, weight + getattr(arguments, "limit", 0) // _ROWS, brake=brake, lifts=lifts)
    return arguments


def _count_rows(call: Call, arguments: Any, result: Any) -> None:
    """Count the rows of a list without pages after reading it, because their number was unknown before."""
    if hasattr(result, "data") and not hasattr(arguments, "limit"):
        spend(call.request, call.principal, len(result.data) // _ROWS)


async def _arguments(
    request: Request, model: type[Body] | type[Query] | None, *, signable: bool
) -> Body | Query | None:
    """Return the validated body or query.

    Raises ``invalid_amount`` or ``invalid_recipient`` for a malformed field of that kind, ``invalid_request`` for any
    other fault of the content, and the errors of ``read_json``.
    """
    in_query = model is not None and issubclass(model, Query)
    if not in_query and not signable and request.url.query:
        raise RequestError("invalid_request", "This request takes no query parameters.")
    if model is None:
        return None
    if in_query:
        found = query_items(request)
    else:
        settings = request.app.state.service.settings
        empty = not any(field.is_required() for field in model.model_fields.values())
        found = await read_json(request, empty=empty, limit=settings.max_body_bytes, seconds=settings.request_timeout)
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise validation_error(error, "query" if in_query else "body") from None


_KEY = TypeAdapter(IdempotencyKey)


def _fingerprint(
    request: Request, principal: Principal, arguments: Body | Query | None, seal: ResponseSeal | None
) -> Fingerprint | None:
    sent: str | None = getattr(arguments, "idempotency_key", None)
    header = request.headers.get("idempotency-key")
    if sent is not None and header is not None and sent != header:
        raise RequestError("invalid_request", "The idempotency keys in the body and in the header differ. Send one.")
    key = sent or header
    if key is None:
        return None
    if sent is None:
        try:
            _KEY.validate_python(key)
        except ValidationError as error:
            raise RequestError("invalid_request", f"Idempotency-Key: {error.errors()[0]['msg']}.") from None
    owner = None if seal is None else seal.owner
    return fingerprint(principal, key, request.method, request.url.path, arguments, owner)


def _by_status(codes: Collection[str]) -> Mapping[int, Sequence[str]]:
    found: dict[int, list[str]] = {}
    for code in sorted(codes):
        found.setdefault(CATALOGUE[code].status, []).append(code)
    return found
