"""Read the offers in the 402 response of a resource, in either version of x402."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from x402.schemas import PaymentRequirements
from x402.schemas.v1 import PaymentRequirementsV1

from app.core.errors import BusinessError
from app.core.outbound import Received
from app.core.text import decode_base64
from app.core.transaction_types import ALLOWANCE
from app.x402.offers import (
    Json,
    Network,
    Offer,
    Offers,
    amount_of,
    can_be_repeated,
    invalid_terms,
    memo_of,
    quoted,
    require_address,
)
from app.x402.protocols.x402_header import HEADERS, SCHEME, header_of
from app.x402.settlement.compute_units import MAX_UNITS, units_with

T = TypeVar("T")

#: Header with the terms in a 402 response of version 2. Version 1 has the same terms in the body.
REQUIRED_HEADER = "payment-required"
#: Header that reports the settlement of a payment.
RESPONSE_HEADER = "payment-response"
#: Maximum number of digits of an integer that Python reads by default.
_MAX_DIGITS = 4_300
#: Maximum size of a header in bytes. Longer ones are not read.
_MAX_HEADER = 32_768
#: Reasons of facilitators that settle plain transfers only.
_NOT_TAKEN = ("program_not_allowed", "no_transfer_instruction")
#: Names of the public clusters in version 1.
_NAMES_V1: Mapping[str, frozenset[str]] = {
    "mainnet-beta": frozenset({"solana"}),
    "devnet": frozenset({"solana-devnet"}),
    "testnet": frozenset({"solana-testnet"}),
}


#: The model of an entry of `accepts`, and the name of its price, by version.
_MODELS: Mapping[int, tuple[type[BaseModel], str]] = {
    1: (PaymentRequirementsV1, "maxAmountRequired"),
    2: (PaymentRequirements, "amount"),
}


@dataclass(frozen=True, slots=True)
class PaymentRequired:
    """A 402 response: all payments that the resource accepts, in either version.

    ``error`` is the resource's complaint, if any.

    The entries of ``accepts`` are as received. An entry may be malformed, or for another scheme, chain or mint.
    """

    version: int
    accepts: Sequence[Any]
    error: str | None
    resource: Json | None
    extensions: Json


def read_payment_required(header: str | None, body: bytes) -> PaymentRequired:
    """Read a 402 response from the header of version 2, or from the body if there is no valid header.

    Raises ``x402_invalid_terms`` with the fault of the header or, without a header, of the body.
    """
    from_header = [] if header is None else [partial(_decoded, header)]
    return _first_valid(*from_header, partial(_read, body))


def payment_required_in(answer: Received) -> PaymentRequired:
    """Return the terms of a 402 response. Raises ``x402_invalid_terms`` if they violate x402."""
    try:
        return read_payment_required(answer.headers.get(REQUIRED_HEADER), answer.body)
    except BusinessError:
        if answer.coding is None:
            raise
        raise invalid_terms("the service cannot decode the body's content coding, or the body is damaged") from None


def payment_required_from_client(given: str | Json) -> PaymentRequired:
    """Read a 402 response passed on by a client: a header, a body, or an MCP server's response to a call.

    Raises ``x402_invalid_terms``.
    """
    return _first_valid(*([partial(_decoded, given)] if isinstance(given, str) else _unwrapped(given)))


def _decoded(header: str) -> Any:
    if len(header) > _MAX_HEADER:
        raise invalid_terms("the header PAYMENT-REQUIRED is too long")
    return _read(decode_base64(header))


def _read(text: str | bytes) -> Any:
    """Read JSON. An integer with more digits than Python reads becomes NaN, so that it spoils only its own entry."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else math.nan)


def _first_valid(*sources: Callable[[], Any]) -> PaymentRequired:
    """Return the first valid terms. Raises ``x402_invalid_terms`` with the first source's fault if none are valid."""
    faults = []
    for source in sources:
        try:
            return parse_payment_required(source())
        except (ValueError, RecursionError):
            faults.append(invalid_terms("they cannot be read as JSON"))
        except BusinessError as error:
            faults.append(error)
    raise faults[0]


def _unwrapped(answer: Json) -> list[Callable[[], Any]]:
    """Return functions that each read one place where a paid tool's result or an MCP error 402 may hold its terms.

    Any other object is taken as the terms themselves.
    """
    if "accepts" in answer:
        return [lambda: answer]
    if answer.get("code") == 402:
        return [lambda: answer.get("data")]
    structured, content = answer.get("structuredContent"), answer.get("content")
    texts = [one.get("text") for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    return [lambda: structured or answer, *(partial(_read, one) for one in texts if isinstance(one, str))]


def parse_payment_required(content: Any) -> PaymentRequired:
    """Read the content of a 402 response. Raises ``x402_invalid_terms`` if it violates x402.

    The entries of `accepts` are not checked, and a malformed optional member counts as absent.
    """
    if not isinstance(content, dict) or not isinstance(content.get("accepts"), list):
        raise invalid_terms("they list no accepted payments")
    version = content.get("x402Version")
    if isinstance(version, bool) or version not in (1, 2):
        raise invalid_terms("x402Version must be 1 or 2")
    return PaymentRequired(
        int(version),
        content["accepts"],
        error=_optional(content, "error", str),
        resource=_optional(content, "resource", dict),
        extensions=_optional(content, "extensions", dict) or {},
    )


def _optional(content: Json, name: str, kind: type[T]) -> T | None:
    """Return a member of the terms, or None if it is absent or malformed."""
    value = content.get(name)
    return value if isinstance(value, kind) and can_be_repeated(value) else None


def refusal_in(headers: Mapping[str, str]) -> str | None:
    """Return the reason for a failed settlement in a response's headers, or None.

    A resource that charges before it does its work reports a failed settlement in this header, without its terms.
    """
    try:
        content = json.loads(decode_base64(headers.get(RESPONSE_HEADER, "")))
    except (ValueError, RecursionError):
        return None
    reason = content.get("errorReason") if isinstance(content, dict) else None
    return reason if isinstance(reason, str) else None


def is_refusal(said: str) -> bool:
    """Return True if a resource's complaint shows that its facilitator settles plain transfers only."""
    return any(one in said for one in _NOT_TAKEN)


def offers_in(demand: PaymentRequired, network: Network) -> Offers:
    """Return the offers of a 402 response. A malformed offer does not hide the others."""
    offers, others, malformed = dict[str, Offer](), list[str](), list[str]()
    for number, one in enumerate(demand.accepts):
        name = f"accepts[{number}]"
        if (other := _other(demand.version, one, network)) is not None:
            others.append(f"{name} {other}")
            continue
        try:
            offers[name] = _offer(demand, one, network)
        except ValueError as fault:
            malformed.append(f"{name} was skipped: {fault}")
    wanted = f"scheme {SCHEME}, network {network.caip2} and asset {network.mint}"
    return Offers("x402", wanted, offers, malformed, others)


def _is_named(network: Network, version: int, name: str) -> bool:
    """Return True if a name means the service's chain in this version of x402.

    The CAIP-2 name is valid in both versions.

    Version 1 has no name for a local chain. There, any Solana name of version 1 matches, and the mint decides.
    """
    if name == network.caip2:
        return True
    return version == 1 and name in _NAMES_V1.get(network.cluster, frozenset().union(*_NAMES_V1.values()))


def _other(version: int, one: Any, network: Network) -> str | None:
    """Return the reason why the service cannot pay an entry, or None if the entry is for this chain and mint."""
    if not isinstance(one, dict):
        return "is not an object"
    if one.get("scheme") != SCHEME:
        return f'has {quoted("scheme", one.get("scheme"))}; this service pays "{SCHEME}"'
    if not isinstance(name := one.get("network"), str) or not _is_named(network, version, name):
        return "has another network"
    return None if one.get("asset") == network.mint else "has another asset"


def _offer(demand: PaymentRequired, one: Json, network: Network) -> Offer:
    """Return an entry for this chain and mint as an offer. Raises ValueError if it is malformed."""
    model, name = _MODELS[demand.version]
    if not can_be_repeated(one):
        raise ValueError("it contains a value that JSON cannot represent")
    try:
        model.model_validate(one)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ValueError(f"{place} is missing or malformed") from None
    extra = one.get("extra") or {}
    amount = amount_of(one.get(name), name)
    pay_to = require_address(one.get("payTo"), "payTo")
    fee_payer = require_address(extra.get("feePayer"), "extra.feePayer")
    if fee_payer in network.programs:
        raise ValueError("extra.feePayer is a program, and programs cannot sign")
    memo = memo_of(extra.get("memo"), "extra.memo")
    if units_with(memo or "") > MAX_UNITS:
        raise ValueError("extra.memo has more characters beyond ASCII than the compute budget of a payment covers")
    return Offer(
        protocol="x402",
        scheme=SCHEME,
        version=demand.version,
        network=one["network"],
        pay_to=pay_to,
        amount=amount,
        fee_payer=fee_payer,
        sponsored=True,
        memo=memo,
        bare=False,
        # Facilitators of version 1 look for a plain transfer only. A complaint about an earlier payment is as
        # informative as a probe.
        lane=ALLOWANCE if demand.version == 1 or is_refusal(demand.error or "") else None,
        header=HEADERS[demand.version],
        write=partial(
            header_of,
            version=demand.version,
            accepted=one,
            resource=demand.resource,
            extensions=demand.extensions,
        ),
    )
