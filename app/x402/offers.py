"""Read the 402 response of a resource, in either version of x402, and choose one of its offers."""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from solders.pubkey import Pubkey
from x402.schemas import PaymentRequired as PaymentRequiredV2
from x402.schemas.v1 import PaymentRequiredV1

from app.core.errors import BusinessError
from app.core.money import format_usdc

Json = dict[str, Any]

SCHEME = "exact"
#: Header with the terms in a 402 response of version 2. Version 1 has the same terms in the body.
REQUIRED_HEADER = "payment-required"
#: Header that reports the settlement of a payment.
RESPONSE_HEADER = "payment-response"
_U64 = 2**64
#: Pattern of an amount, with at most as many digits as the largest one. Python refuses to convert thousands of digits.
_DIGITS = re.compile(r"[0-9]{1,20}")
_MAX_MEMO = 256
#: Maximum size of a header in bytes. Longer ones are not read.
_MAX_HEADER = 32_768
#: Names of the public clusters in version 1.
_NAMES_V1: Mapping[str, frozenset[str]] = {
    "mainnet-beta": frozenset({"solana"}),
    "devnet": frozenset({"solana-devnet"}),
    "testnet": frozenset({"solana-testnet"}),
}


@dataclass(frozen=True, slots=True)
class Network:
    """The service's chain by its x402 names, and the mint to pay with."""

    cluster: str
    genesis_hash: str
    mint: str

    @property
    def caip2(self) -> str:
        """The name in version 2: CAIP-2, with the first 32 characters of the genesis hash."""
        return f"solana:{self.genesis_hash[:32]}"

    def is_named(self, version: int, name: str) -> bool:
        """Return True if this version of x402 uses the name for this chain.

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
    """A 402 response: all payments that the resource accepts, in either version. ``error`` is its complaint, if any."""

    version: int
    accepts: Sequence[Json]
    error: str | None
    resource: Json | None
    extensions: Json


def read_payment_required(header: str | None, body: bytes) -> PaymentRequired:
    """Read a 402 response from the header of version 2, or else from the body of version 1.

    Raises ``x402_invalid_terms``.
    """
    content: Any
    try:
        if header is not None:
            if len(header) > _MAX_HEADER:
                raise invalid_terms("the header PAYMENT-REQUIRED is too long")
            content = json.loads(base64.b64decode(header, validate=True))
        else:
            content = json.loads(body)
    except (binascii.Error, ValueError, RecursionError):
        raise invalid_terms("they are not JSON") from None
    return parse_payment_required(content)


def payment_required_from_client(given: str | Json) -> PaymentRequired:
    """Read a 402 response passed on by a client: a header, a body, or an MCP server's response to a call.

    Raises ``x402_invalid_terms``.
    """
    return read_payment_required(given, b"") if isinstance(given, str) else parse_payment_required(_unwrapped(given))


def _unwrapped(answer: Json) -> Any:
    """Return the terms in the result of a paid tool or in an MCP error 402. Returns any other response unchanged."""
    if "accepts" in answer:
        return answer
    if answer.get("code") == 402:
        return answer.get("data")
    structured, content = answer.get("structuredContent"), answer.get("content")
    if isinstance(structured, dict) and "accepts" in structured:
        return structured
    if isinstance(content, list) and content and isinstance(content[0], dict):
        try:
            return json.loads(str(content[0].get("text")))
        except (ValueError, RecursionError):
            raise invalid_terms("they are not JSON") from None
    return answer


def parse_payment_required(content: Any) -> PaymentRequired:
    """Read the content of a 402 response. Raises ``x402_invalid_terms`` if it violates x402."""
    if not _can_be_repeated(content):
        raise invalid_terms("they contain a value that JSON cannot represent")
    if not isinstance(content, dict) or not isinstance(content.get("accepts"), list):
        raise invalid_terms("they list no accepted payments")
    try:
        if content.get("x402Version") == 1:
            old = PaymentRequiredV1.model_validate(content)
            return PaymentRequired(1, content["accepts"], old.error, None, {})
        if content.get("x402Version") == 2:
            new = PaymentRequiredV2.model_validate(content)
            return PaymentRequired(
                2, content["accepts"], new.error, content.get("resource"), content.get("extensions") or {}
            )
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise invalid_terms(f"{place} is missing or malformed") from None
    raise invalid_terms("x402Version must be 1 or 2")


def _can_be_repeated(content: Any) -> bool:
    """Return True if the terms can be written again, into a payment's header and into the response that hands it out.

    Python reads JSON that it cannot write: lone surrogates, NaN, and objects nested deeper than a response may be.
    """
    try:
        json.dumps(content, allow_nan=False)
        # Nested as deeply as in the response.
        to_json({"payload": content})
    except (ValueError, RecursionError):
        return False
    return True


def refusal_in(headers: Mapping[str, str]) -> str | None:
    """Return the reason for a failed settlement that a response's headers give, or None.

    A resource that charges before it works reports a failed settlement in this way, without its terms.
    """
    try:
        content = json.loads(base64.b64decode(headers.get(RESPONSE_HEADER, ""), validate=True))
    except (binascii.Error, ValueError, RecursionError):
        return None
    reason = content.get("errorReason") if isinstance(content, dict) else None
    return reason if isinstance(reason, str) else None


def choose(demand: PaymentRequired, network: Network, most: int) -> Offer:
    """Return the cheapest offer for this chain and mint that costs at most ``most`` micro-USDC.

    Raises ``x402_no_acceptable_offer`` if no offer is for this chain and mint, ``x402_price_too_high`` if all cost
    more, and ``x402_invalid_terms`` if an offer is malformed.
    """
    ours = [one for one in demand.accepts if _is_ours(demand.version, one, network)]
    if not ours:
        raise BusinessError(
            "x402_no_acceptable_offer",
            f"The resource accepts no payment with scheme {SCHEME}, network {network.caip2} and asset {network.mint}.",
        )
    offers = sorted((_offer(demand, one) for one in ours), key=lambda offer: offer.amount)
    cheapest = offers[0]
    if cheapest.amount > most:
        raise BusinessError(
            "x402_price_too_high",
            f"The resource costs {format_usdc(cheapest.amount)} USDC, more than maxAmount {format_usdc(most)}.",
            fields={"price": format_usdc(cheapest.amount)},
        )
    return cheapest


def _is_ours(version: int, one: Json, network: Network) -> bool:
    return (
        one.get("scheme") == SCHEME
        and one.get("asset") == network.mint
        and network.is_named(version, str(one.get("network")))
    )


def _offer(demand: PaymentRequired, one: Json) -> Offer:
    extra = one.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    name = "maxAmountRequired" if demand.version == 1 else "amount"
    amount, fee_payer, memo = one.get(name), extra.get("feePayer"), extra.get("memo")
    if not isinstance(amount, str) or not _DIGITS.fullmatch(amount) or not 0 < int(amount) < _U64:
        raise invalid_terms(f"{name} must be a positive number of micro-USDC in digits")
    for field, address in (("payTo", one.get("payTo")), ("extra.feePayer", fee_payer)):
        if not _is_address(address):
            raise invalid_terms(f"{field} must be an address")
    if memo is not None and (not isinstance(memo, str) or not 0 < len(memo.encode()) <= _MAX_MEMO):
        raise invalid_terms(f"extra.memo must have 1 to {_MAX_MEMO} bytes")
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
