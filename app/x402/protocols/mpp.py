"""Offers and credentials of MPP, the HTTP authentication scheme Payment (draft-httpauth-payment-01).

The service supports the method `solana` with the intent `charge`, as a transaction that the server sends.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import rfc8785

from app.chain.addresses import TOKEN_PROGRAM
from app.chain.identity import USDC_MINTS
from app.core.money import DECIMALS
from app.core.text import decode_base64
from app.core.timestamps import parse_iso_ms
from app.core.transaction_types import ALLOWANCE, MPP_SCHEME
from app.x402.guard import may_carry_credential
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
from app.x402.protocols.challenges import Challenge, challenges_in
from app.x402.settlement.compute_units import units_with

CHALLENGE_HEADER = "www-authenticate"
ACCEPTED = {"accept-payment": "solana/charge"}
"""Header of every request to a resource, which narrows the offers of MPP servers."""
CREDENTIAL_HEADER = "Authorization"
"""Header that carries a credential unless the challenge names another one."""
SCHEME = "charge"
_METHOD = "solana"
#: Code of the JSON-RPC error by which a paid tool of MCP demands a payment.
_TOOL_ERROR = -32042
_MAX_HEADER = 32_768
#: Highest compute unit limit that servers accept.
_MAX_UNITS = 200_000
_REQUIRED = ("id", "realm", "method", "intent")
#: The network names of the clusters. Servers use both names of the main network.
_NETWORKS: Mapping[str, frozenset[str]] = {"mainnet-beta": frozenset({"mainnet", "mainnet-beta"})}


def read_challenges(header: str) -> tuple[list[Challenge | str], list[str]]:
    """Return the MPP challenges in a header WWW-Authenticate, and the names of the other schemes in it.

    Raises ``x402_invalid_terms`` if the header is too long.
    """
    if len(header) > _MAX_HEADER:
        raise invalid_terms("the header WWW-Authenticate is too long", "mpp")
    found = challenges_in(header)
    ours = [one for scheme, one in found if scheme.lower() == MPP_SCHEME.lower()]
    # A name without readable parameters may be other text, such as x402's terms, instead of a scheme.
    others = [scheme for scheme, one in found if one and not isinstance(one, str)]
    return ours, [scheme for scheme in others if scheme.lower() != MPP_SCHEME.lower()]


def challenges_from_tool(error: Json) -> list[Challenge | str]:
    """Return the challenges in an MCP server's error response to a call to a paid tool."""
    data = error.get("data") if error.get("code") == _TOOL_ERROR else None
    found = data.get("challenges") if isinstance(data, dict) else None
    if not isinstance(found, list):
        return []
    return [one if isinstance(one, dict) and can_be_repeated(one) else "it is not a JSON object" for one in found]


def offers_in(challenges: Sequence[Challenge | str], network: Network, body: bytes | None, now: int) -> Offers:
    """Return the offers of challenges.

    ``body`` is the body of the request, or None if it is unknown. ``now`` is in Unix milliseconds.
    """
    offers, others, malformed = dict[str, Offer](), list[str](), list[str]()
    for number, one in enumerate(challenges):
        name = f"challenge[{number}]"
        try:
            if isinstance(one, str):
                raise ValueError(one)  # noqa: TRY301, TRY004 - joins the faults below
            request = _request(one)
            if (other := _other(one, request, network)) is not None:
                others.append(other)
            else:
                offers[name] = _offer(one, request, network, body, now)
        except (ValueError, RecursionError) as fault:
            reason = "its request cannot be read as JSON" if isinstance(fault, RecursionError) else fault
            malformed.append(f"{name} was skipped: {reason}")
    return Offers("mpp", f"MPP's method {_METHOD} and intent {SCHEME} in USDC", offers, malformed, others)


def _request(one: Challenge) -> Json | None:
    """Return the payment request in a challenge, or None if the challenge is for another method or intent.

    Raises ValueError if it is malformed.
    """
    for name in _REQUIRED:
        if not isinstance(one.get(name), str):
            raise ValueError(f"{name} is missing or not text")  # noqa: TRY004 - a fault of the terms
    if (one["method"], one["intent"]) != (_METHOD, SCHEME):
        return None
    given = one.get("request")
    if isinstance(given, str):
        try:
            given = json.loads(decode_base64(given), object_pairs_hook=_without_duplicates)
        except ValueError:
            raise ValueError("its request cannot be read as JSON, or has a name twice") from None
    if isinstance(given, dict) and isinstance(given.get("methodDetails", {}), dict):
        return given
    raise ValueError("its request is missing, or it or its methodDetails is not a JSON object")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate name")
    return found


def _other(one: Challenge, request: Json | None, network: Network) -> str | None:
    """Return the reason why the service cannot pay a challenge, or None if the challenge is for this chain and mint."""
    if request is None:
        name, ours = ("method", _METHOD) if one["method"] != _METHOD else ("intent", SCHEME)
        return f'the 402 response offers MPP with {quoted(name, one[name])}; this service pays "{ours}"'
    details = request.get("methodDetails", {})
    currency, cluster = request.get("currency"), network.cluster
    if not isinstance(name := details.get("network", "mainnet"), str):
        raise ValueError("methodDetails.network must be text")  # noqa: TRY004 - a fault of the terms
    if name not in _NETWORKS.get(cluster, {cluster}):
        return "the 402 response offers MPP on another network"
    if currency != network.mint and (currency != "USDC" or USDC_MINTS.get(cluster, network.mint) != network.mint):
        return "the 402 response offers MPP in another currency; this service pays USDC"
    if details.get("splits"):
        return "the 402 response offers MPP with splits; this service pays one recipient"
    if details.get("confidential"):
        return "the 402 response offers MPP with confidential transfers; this service pays by plain transfers"
    return None


def _offer(one: Challenge, request: Json | None, network: Network, body: bytes | None, now: int) -> Offer:
    """Return a challenge for this chain and mint as an offer. Raises ValueError if it is malformed or has expired."""
    assert request is not None
    details = request.get("methodDetails", {})
    sponsored = details.get("feePayer", False)
    if not isinstance(sponsored, bool):
        raise ValueError("methodDetails.feePayer must be true or false")  # noqa: TRY004 - a fault of the terms
    if details.get("tokenProgram", str(TOKEN_PROGRAM)) != str(TOKEN_PROGRAM):
        raise ValueError("methodDetails.tokenProgram must be the program of USDC")
    if details.get("decimals", DECIMALS) != DECIMALS:
        raise ValueError(f"methodDetails.decimals must be {DECIMALS}")
    fee_payer = network.fee_payer
    if sponsored:
        fee_payer = require_address(details.get("feePayerKey"), "methodDetails.feePayerKey")
    if fee_payer in network.programs:
        raise ValueError("methodDetails.feePayerKey is a program, and programs cannot sign")
    memo = memo_of(request.get("externalId"), "externalId")
    if units_with(memo or "") > _MAX_UNITS:
        raise ValueError("externalId has more characters beyond ASCII than the compute budget of a payment covers")
    if "expires" in one and parse_iso_ms(str(one["expires"])) <= now:
        raise ValueError("it has expired")
    if body is not None and "digest" in one and _digest(str(one["digest"])) != hashlib.sha256(body).digest():
        raise ValueError("its digest does not match the request's body")
    header = one.get("header", CREDENTIAL_HEADER)
    if not isinstance(header, str) or not may_carry_credential(header):
        raise ValueError("its header cannot carry a credential")
    try:
        rfc8785.dumps(cast("Any", one))
    except rfc8785.CanonicalizationError:
        raise ValueError("it has a number or text that canonical JSON cannot represent") from None
    return Offer(
        protocol="mpp",
        scheme=SCHEME,
        version=1,
        network=f"solana:{details.get('network', 'mainnet')}",
        pay_to=require_address(request.get("recipient"), "recipient"),
        amount=amount_of(request.get("amount"), "amount"),
        fee_payer=fee_payer,
        sponsored=sponsored,
        memo=memo,
        bare=True,
        lane=ALLOWANCE,
        header=header,
        write=partial(_credential, one),
    )


def _digest(text: str) -> bytes:
    """Decode a SHA-256 digest, with or without the colons of RFC 9530. Raises ValueError."""
    algorithm, _, value = text.partition("=")
    return decode_base64(value.strip(":")) if algorithm.lower() == "sha-256" else b""


def _credential(challenge: Challenge, transaction: bytes, _key: str) -> str:
    """Return the value of the header that pays with a transaction. The challenge is echoed unchanged."""
    payload = {"type": "transaction", "transaction": base64.b64encode(transaction).decode()}
    content = rfc8785.dumps({"challenge": cast("Any", challenge), "payload": payload})
    return f"{MPP_SCHEME} {base64.urlsafe_b64encode(content).rstrip(b'=').decode()}"
