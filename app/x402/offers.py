"""Read the 402 response of a resource, in either version of x402, and choose one of its offers."""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from solders.pubkey import Pubkey
from x402.schemas import PaymentRequirements
from x402.schemas.v1 import PaymentRequirementsV1

from app.core.errors import BusinessError
from app.core.text import decode_base64
from app.x402.compute_units import MAX_UNITS, units_with

Json = dict[str, Any]
T = TypeVar("T")

SCHEME = "exact"
#: Header with the terms in a 402 response of version 2. Version 1 has the same terms in the body.
REQUIRED_HEADER = "payment-required"
#: Header that reports the settlement of a payment.
RESPONSE_HEADER = "payment-response"
_U64 = 2**64
#: Pattern of an amount, with at most as many digits as the largest one. Python refuses to convert thousands of digits.
_DIGITS = re.compile(r"[0-9]{1,20}")
_MAX_MEMO = 256
#: Maximum number of digits of an integer that Python reads by default.
_MAX_DIGITS = 4_300
#: Maximum size of a header in bytes. Longer ones are not read.
_MAX_HEADER = 32_768
MAX_REASONS = 64
"""Maximum number of unusable entries of `accepts` that a message names."""
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
class Network:
    """The service's chain by its x402 names, and the mint to pay with.

    None of the ``programs`` of a payment can be its fee payer.
    """

    cluster: str
    genesis_hash: str
    mint: str
    programs: Collection[str]

    @property
    def caip2(self) -> str:
        """The name in version 2: CAIP-2, with the first 32 characters of the genesis hash."""
        return f"solana:{self.genesis_hash[:32]}"

    def is_named(self, version: int, name: str) -> bool:
        """Return True if the name stands for this chain in this version of x402. The CAIP-2 name does so in both.

        Version 1 has no name for a local chain. There, any Solana name of version 1 matches, and the mint decides.
        """
        if name == self.caip2:
            return True
        return version == 1 and name in _NAMES_V1.get(self.cluster, frozenset().union(*_NAMES_V1.values()))


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to pay that a resource accepts. ``accepted`` is the payment requirement, unchanged."""

    version: int
    network: str
    pay_to: str
    amount: int
    fee_payer: str
    memo: str | None
    accepted: Json
    resource: Json | None
    extensions: Json


@dataclass(frozen=True, slots=True)
class PaymentRequired:
    """A 402 response: all payments that the resource accepts, in either version. ``error`` is its complaint, if any.

    The entries of ``accepts`` are as received. Each may be for others or malformed.
    """

    version: int
    accepts: Sequence[Any]
    error: str | None
    resource: Json | None
    extensions: Json


def read_payment_required(header: str | None, body: bytes) -> PaymentRequired:
    """Read a 402 response from the header of version 2, or from the body if there is no valid header.

    Raises ``x402_invalid_terms``. The reason is the header's if there is a header.
    """
    from_header = [] if header is None else [partial(_decoded, header)]
    return _first_valid(*from_header, partial(_read, body))


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
    """Return the first valid terms. Raises ``x402_invalid_terms`` with the fault of the first source if none is."""
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
    """Return the places of terms in the result of a paid tool or in an MCP error 402. Others are terms themselves."""
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
    return value if isinstance(value, kind) and _can_be_repeated(value) else None


def _can_be_repeated(content: Any) -> bool:
    """Return True if a part of the terms can be written again, into a payment's header and into the response with it.

    Python reads JSON that it cannot write: lone surrogates, NaN, and objects nested deeper than a response may be.
    """
    try:
        json.dumps(content, allow_nan=False)
        # Nested as deeply as in the response.
        to_json({"payload": {"accepts": [content]}})
    except (ValueError, RecursionError):
        return False
    return True


def refusal_in(headers: Mapping[str, str]) -> str | None:
    """Return the reason for a failed settlement that a response's headers give, or None.

    A resource that charges before it works reports a failed settlement in this way, without its terms.
    """
    try:
        content = json.loads(decode_base64(headers.get(RESPONSE_HEADER, "")))
    except (ValueError, RecursionError):
        return None
    reason = content.get("errorReason") if isinstance(content, dict) else None
    return reason if isinstance(reason, str) else None


def usable_offers(demand: PaymentRequired, network: Network) -> tuple[dict[int, Offer], list[str]]:
    """Return the offers for this chain and mint by their index in `accepts`, and warnings about malformed ones.

    Offers for other chains, mints and schemes are skipped. Malformed offers for this chain and mint are skipped too,
    each with a warning.

    Raises ``x402_no_acceptable_offer`` if no offer is for this chain and mint, and ``x402_invalid_terms`` if all of
    those are malformed. The message names the skipped offers.
    """
    offers, others, malformed = dict[int, Offer](), list[str](), list[str]()
    for number, one in enumerate(demand.accepts):
        if (other := _other(demand.version, one, network)) is not None:
            others.append(f"accepts[{number}] {other}")
            continue
        try:
            offers[number] = _offer(demand, one, network)
        except ValueError as fault:
            malformed.append(f"accepts[{number}] was skipped: {fault}")
    skipped = [*malformed, *others][:MAX_REASONS]
    if not offers and malformed:
        raise invalid_terms("; ".join(skipped))
    if not offers:
        wanted = f"scheme {SCHEME}, network {network.caip2} and asset {network.mint}"
        message = f"The resource accepts no payment with {wanted}: {'; '.join(skipped) or 'accepts is empty'}."
        raise BusinessError("x402_no_acceptable_offer", message)
    return offers, [f"{one}." for one in malformed]


def _other(version: int, one: Any, network: Network) -> str | None:
    """Return how an entry shows that it is for others, or None if it is for this chain and mint."""
    if not isinstance(one, dict):
        return "is not an object"
    if one.get("scheme") != SCHEME:
        return "has another scheme"
    if not isinstance(name := one.get("network"), str) or not network.is_named(version, name):
        return "has another network"
    return None if one.get("asset") == network.mint else "has another asset"


def _offer(demand: PaymentRequired, one: Json, network: Network) -> Offer:
    """Return an entry for this chain and mint as an offer. Raises ValueError if it is malformed."""
    model, name = _MODELS[demand.version]
    if not _can_be_repeated(one):
        raise ValueError("it contains a value that JSON cannot represent")
    try:
        model.model_validate(one)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ValueError(f"{place} is missing or malformed") from None
    extra = one.get("extra") or {}
    amount, fee_payer, memo = one.get(name), extra.get("feePayer"), extra.get("memo")
    if not isinstance(amount, str) or not _DIGITS.fullmatch(amount) or not 0 < int(amount) < _U64:
        raise ValueError(f"{name} must be a positive number of micro-USDC in digits")
    for field, address in (("payTo", one.get("payTo")), ("extra.feePayer", fee_payer)):
        if not _is_address(address):
            raise ValueError(f"{field} must be an address")
    if fee_payer in network.programs:
        raise ValueError("extra.feePayer is a program, and programs cannot sign")
    if memo is not None and (not isinstance(memo, str) or not 0 < len(memo.encode()) <= _MAX_MEMO):
        raise ValueError(f"extra.memo must have 1 to {_MAX_MEMO} bytes")
    if units_with(memo or "") > MAX_UNITS:
        raise ValueError("extra.memo has more characters beyond ASCII than the compute budget of a payment covers")
    return Offer(
        version=demand.version,
        network=one["network"],
        pay_to=one["payTo"],
        amount=int(amount),
        fee_payer=str(fee_payer),
        memo=memo,
        accepted=one,
        resource=demand.resource,
        extensions=demand.extensions,
    )


def _is_address(text: object) -> bool:
    try:
        Pubkey.from_string(text if isinstance(text, str) else "")
    except ValueError:
        return False
    return True


def invalid_terms(reason: str) -> BusinessError:
    """Return the error for terms that violate x402, or that no facilitator can settle."""
    return BusinessError("x402_invalid_terms", f"The resource's payment terms are not valid x402: {reason}.")
