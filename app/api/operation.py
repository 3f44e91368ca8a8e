"""Turns a handler into an endpoint: authentication, parsing, idempotency, and its entry in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from inspect import get_annotations
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from solders.keypair import Keypair
from spectree import Response as Responses
from spectree import SecurityScheme, SpecTree
from spectree.models import SecureType, SecuritySchemeData
from starlette.requests import Request
from starlette.responses import Response

from app.access.auth import admit, authorise, authorise_address, authorise_wallet, count, presented_key, session_key
from app.access.keyring import KeyRing, Principal, Role
from app.access.sealing import ResponseSeal
from app.api._parsing import query_items, read_json, validation_error
from app.api.error_bodies import ErrorEnvelope, PolicyViolationEnvelope
from app.api.fields import Body, IdempotencyKey, Query
from app.api.money_body import MoneyBody
from app.api.replay import BRAKING_FIELDS, fingerprint, prepare
from app.api.signing import awaiting_signature, signs_offline
from app.api.versions import tag_header
from app.core.errors import (
    CATALOGUE,
    ApiError,
    ConflictError,
    NotFoundError,
    OutdatedError,
    RequestError,
    UnavailableError,
)
from app.core.http_api import FIRST_CALL, PREFER_FIRST_CALL, VERSION
from app.core.timestamps import iso_ms
from app.store.wallets import WalletRecord
from app.submission.claim import Claim, Fingerprint
from app.submission.context import Service
from app.submission.idempotency import Idempotency
from app.submission.plan import AwaitingSignatureError

Endpoint = Callable[[Request], Awaitable[Response]]
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

#: The rows of a page that cost 1 of the rate limit.
_ROWS = 10

#: Collects the operations while their routes are imported. ``app.server.application`` turns them into `/openapi.json`.
api = SpecTree(
    "starlette",
    annotations=False,
    mode="strict",
    title="Agent Vault Payment Service",
    version=VERSION,
    description=(
        "Agents pay USDC from vaults. The on-chain program enforces the policy of each vault. "
        "Request fields are accepted in camelCase and in snake_case; responses are in snake_case. "
        "Amounts are decimal strings. Times are ISO 8601 in UTC."
    ),
    security_schemes=[
        SecurityScheme(
            name="api_key", data=SecuritySchemeData(type=SecureType.HTTP, scheme="bearer", bearer_format="API key")
        )
    ],
    security={"api_key": []},
    naming_strategy=lambda model: model.__name__,
    nested_naming_strategy=lambda _parent, child: child,
)


@dataclass(frozen=True, slots=True)
class Headers:
    """Flags for the optional headers of an operation: Session-Token, If-Match, ETag and Idempotency-Key.

    ``signable`` is True if the operation accepts the query `sign=offline`.
    """

    session: bool
    version: bool
    tag: bool
    repeats: bool
    signable: bool


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
    *,
    tag: str,
    roles: Collection[Role],
    errors: Collection[str] = (),
    changes: bool = False,
    session: bool = False,
    version: bool = False,
    tagged: bool = False,
    secret: bool = False,
    pays: bool = False,
    signable: bool = False,
    weight: int = 1,
    brakes: bool = False,
) -> Callable[[Handler], Endpoint]:
    """Make an endpoint from ``handler(call, body or query)``. The handler's annotations declare the models.

    - ``errors``: error codes in addition to the codes of every operation.
    - ``changes``: the operation accepts idempotency keys.
    - ``session``: document the header Session-Token and its errors.
    - ``version``: document the request header If-Match.
    - ``tagged``: responses have the header ETag.
    - ``secret``: the response is stored sealed under the request's API key, and only this key can replay it.
    - ``pays``: the outcome counts as the outcome of a payment in the metrics.
    - ``weight``: the cost of a request for the rate limit. A list with pages also costs 1 for every 10 rows of a page.
    - ``brakes``: the operation stops something, unless the body's ``brakes`` is False. The rate limit counts such a
      request apart from the key's other requests. Its stored response is replayed only while the brake is in force.
    - ``signable``: the operation accepts the query `sign=offline`, which returns its transaction to sign elsewhere.
    """

    def decorate(handler: Handler) -> Endpoint:
        model, answer = _models(handler)
        body = model if model is not None and issubclass(model, Body) else None

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
                return result.model_dump_json().encode()

            seal = keys.seal(presented_key(request) or "") if secret else None
            identity = _fingerprint(request, principal, arguments, seal) if changes else None
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
            *(_CHANGES if changes else ()),
            *(_BODIES if body else ()),
            *(_MONEY if body and issubclass(body, MoneyBody) else ()),
            *(_SESSION if session else ()),
            *(_SIGNED_ELSEWHERE if signable else ()),
            *errors,
        }
        documented = api.validate(
            query=model if body is None else None,
            json=body,
            resp=_responses(answer, codes),
            tags=(tag,),
            skip_validation=True,
            operation_id=handler.__name__,
            validation_error_status=400,
        )
        documented_endpoint: Endpoint = documented(endpoint)
        headers = Headers(session=session, version=version, tag=tagged, repeats=changes, signable=signable)
        documented_endpoint.__dict__["headers"] = headers
        return documented_endpoint

    return decorate


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
            # The request has changed an existing object, although the object cannot be shown now.
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

    They are read first if they determine the cost or the bucket. A request that is then refused is counted too.
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


def _responses(answer: type[BaseModel], codes: Collection[str]) -> Responses:
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes):
        by_status.setdefault(CATALOGUE[code].status, []).append(code)
    models: dict[str, Any] = {"HTTP_200": (answer, "Success.")}
    for status, names in sorted(by_status.items()):
        envelope = PolicyViolationEnvelope if names == ["policy_violation"] else ErrorEnvelope
        models[f"HTTP_{status}"] = (envelope, ", ".join(names))
    return Responses(**models)
