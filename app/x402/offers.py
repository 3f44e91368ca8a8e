"""Offers to pay for a resource, in a form that does not depend on the protocol."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from solders.pubkey import Pubkey

from app.chain.identity import Cluster
from app.core.errors import BusinessError
from app.core.transaction_types import ProtocolName, SettlementPath

Json = dict[str, Any]

MAX_REASONS = 64
"""Maximum number of unusable offers that a message names."""
_U64 = 2**64
#: Pattern of an amount, with at most as many digits as the largest one. Python refuses to convert thousands of digits.
_DIGITS = re.compile(r"[0-9]{1,20}")
_MAX_MEMO = 256
#: Pattern of names that a message may quote. Other text could be mistaken for a statement of this service.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class Network:
    """The service's chain, the mint to pay with, and the service's fee payer.

    None of the ``programs`` of a payment can be its fee payer.
    """

    cluster: Cluster
    genesis_hash: str
    mint: str
    fee_payer: str
    programs: Collection[str]

    @property
    def caip2(self) -> str:
        """The chain's CAIP-2 name, which contains the first 32 characters of the genesis hash."""
        return f"solana:{self.genesis_hash[:32]}"


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to pay that a resource accepts.

    ``fee_payer`` pays the fee. It is a third party if the payment is ``sponsored``, else the service. ``memo`` is the
    memo that the resource requires. Without one, the payment's reference becomes the memo, unless the payment must be
    ``bare``. ``lane`` is the settlement path, or None if only a probe can tell. ``write`` returns the value of the
    ``header`` that pays with a transaction; its second argument identifies the payment to the resource.
    """

    protocol: ProtocolName
    scheme: str
    version: int
    network: str
    pay_to: str
    amount: int
    fee_payer: str
    sponsored: bool
    memo: str | None
    bare: bool
    lane: SettlementPath | None
    header: str
    write: Callable[[bytes, str], str]


@dataclass(frozen=True, slots=True)
class Offers:
    """The offers of a resource in one protocol by name.

    ``malformed`` describes the malformed offers, and ``others`` the offers for another scheme, chain or mint.
    ``wanted`` describes a usable offer, for messages.
    """

    protocol: ProtocolName
    wanted: str
    usable: Mapping[str, Offer]
    malformed: Sequence[str]
    others: Sequence[str]


def usable_offers(found: Sequence[Offers]) -> tuple[dict[str, Offer], list[str]]:
    """Return the offers for this chain and mint by name, and warnings about malformed ones.

    Raises ``x402_no_acceptable_offer`` if no offer is for this chain and mint, and ``x402_invalid_terms`` if all offers
    for this chain and mint are malformed. The message names the skipped offers.
    """
    offers = {name: offer for one in found for name, offer in one.usable.items()}
    malformed = [fault for one in found for fault in one.malformed]
    skipped = [*malformed, *(other for one in found for other in one.others)][:MAX_REASONS]
    if not offers and malformed:
        raise invalid_terms("; ".join(skipped), next(one.protocol for one in found if one.malformed))
    if not offers:
        wanted = " or ".join(one.wanted for one in found)
        message = f"The resource accepts no payment with {wanted}: {'; '.join(skipped) or 'accepts is empty'}."
        raise BusinessError("x402_no_acceptable_offer", message)
    return offers, [f"{one}." for one in malformed]


def quoted(kind: str, name: object) -> str:
    """Return a name in a resource's terms with its kind, such as `scheme "upto"`."""
    return f'{kind} "{name}"' if isinstance(name, str) and _NAME.fullmatch(name) else f"another {kind}"


def amount_of(text: object, name: str) -> int:
    """Return an amount in micro-USDC. Raises ValueError unless it is a positive number in digits below 2^64."""
    if not isinstance(text, str) or not _DIGITS.fullmatch(text) or not 0 < int(text) < _U64:
        raise ValueError(f"{name} must be a positive number of micro-USDC in digits")
    return int(text)


def require_address(text: object, name: str) -> str:
    """Return an address of the chain. Raises ValueError for anything else."""
    try:
        Pubkey.from_string(text if isinstance(text, str) else "")
    except ValueError:
        raise ValueError(f"{name} must be an address") from None
    return str(text)


def memo_of(text: object, name: str) -> str | None:
    """Return a required memo, or None if there is none. Raises ValueError for a malformed one."""
    if text is None:
        return None
    if not isinstance(text, str) or not can_be_repeated(text) or not 0 < len(text.encode()) <= _MAX_MEMO:
        raise ValueError(f"{name} must have 1 to {_MAX_MEMO} bytes of UTF-8")
    return text


def can_be_repeated(content: Any) -> bool:
    """Return True if a part of the terms can be written again as JSON, into a payment's header and the response.

    Python reads JSON that it cannot write: lone surrogates, NaN, and objects nested deeper than a response may be.
    """
    try:
        json.dumps(content, allow_nan=False)
        # Nested as deeply as in the response.
        to_json({"payload": {"accepts": [content]}})
    except (ValueError, RecursionError):
        return False
    return True


def invalid_terms(reason: str, protocol: ProtocolName = "x402") -> BusinessError:
    """Return the error for terms that violate their protocol, or that no facilitator can settle."""
    name = {"x402": "x402", "mpp": "MPP"}[protocol]
    return BusinessError("x402_invalid_terms", f"The resource's payment terms are not valid {name}: {reason}.")
