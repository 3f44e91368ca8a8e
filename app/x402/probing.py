"""Find a resource's settlement path. Probe, without paying, whether its facilitator supports the program."""

import re

import httpx
from solders.hash import Hash
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.transactions import sign_for
from app.core.errors import BusinessError
from app.core.outbound import Received
from app.core.transaction_types import ALLOWANCE, ENFORCED, SettlementPath
from app.store.daily_counts import count_record
from app.store.x402 import known_facilitator, put_facilitator
from app.x402.fetching import Fetcher, ResourceRequest
from app.x402.guard import origin_of
from app.x402.offers import Offer
from app.x402.payer import Payer
from app.x402.protocols.x402 import is_refusal, payment_required_in, refusal_in
from app.x402.settlement.instructions import issued_payment

#: Milliseconds for which a facilitator's acceptance of the program remains valid, and for which a refusal does.
_ACCEPTED_MS, _REFUSED_MS = 86_400_000, 3_600_000
_TAKEN = "BlockhashNotFound"
#: Maximum number of characters to read of a facilitator's reason.
_MAX_REASON = 200
#: Pattern of x402 error codes.
_CODE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+(?![^:\s])", re.ASCII)
_NEEDS_ALLOWANCES = (
    "MPP resources are paid out of an allowance, but the wallet's policy permits no allowances. An admin can set "
    "`allowAllowances` on the policy."
)
_UNSUPPORTED = (
    "The resource's facilitator settles plain transfers only, not payments by a vault. An admin can set "
    "`allowAllowances` on the wallet's policy, so that the vault pays such resources out of an allowance. "
    "Alternatively, ask the facilitator's operator to allow the program."
)


async def known_settlement_path(payer: Payer, url: httpx.URL, offer: Offer) -> SettlementPath | None:
    """Return the settlement path of an offer, or None if only a probe can tell."""
    if offer.lane is not None:
        return offer.lane
    accepts = await _known(payer, url, offer)
    return None if accepts is None else ENFORCED if accepts else ALLOWANCE


def not_supported(payer: Payer, offer: Offer, lane: SettlementPath | None) -> BusinessError | None:
    """Return the error if the wallet's policy does not permit the settlement path, or None."""
    if lane != ALLOWANCE or payer.wallet.policy.rules.allow_allowances:
        return None
    return BusinessError("x402_wallet_not_supported", _NEEDS_ALLOWANCES if offer.bare else _UNSUPPORTED)


def require(payer: Payer, offer: Offer, lane: SettlementPath) -> SettlementPath:
    """Return the settlement path if the wallet's policy permits it. Raises ``x402_wallet_not_supported``."""
    if (error := not_supported(payer, offer, lane)) is not None:
        raise error
    return lane


async def probe_facilitator(payer: Payer, asked: ResourceRequest, offer: Offer) -> SettlementPath | Received:
    """Probe the offer's facilitator, and return the settlement path that it supports.

    The facilitator gets a payment with a blockhash that never existed, so the payment can never land. A complaint about
    the blockhash shows that the facilitator accepts the program. Returns the resource's response if it is not a 402.
    Raises ``x402_resource_unavailable`` if no response comes or the facilitator complains about anything else, and
    ``x402_invalid_terms`` for malformed terms.
    """
    service = payer.service
    trial = await payer.expense(offer)
    raw = await sign_for(
        issued_payment(trial, offer.memo),
        payer=Pubkey.from_string(offer.fee_payer),
        signers=[payer.session or service.signers.operator],
        blockhash=Hash.default(),
    )
    header = {offer.header: offer.write(raw, "")}
    answer = await service.part(Fetcher).fetch(asked, payer.call.principal.owner, header)
    if answer.status != 402:
        return answer
    said = refusal_in(answer.headers) or payment_required_in(answer).error or ""
    accepts = _TAKEN in said
    if not accepts and not is_refusal(said):
        raise BusinessError("x402_resource_unavailable", f"The resource refused the payment{_reason(said)}.")
    await _remember(payer, asked.url, offer, accepts=accepts)
    return ENFORCED if accepts else ALLOWANCE


def _reason(said: str) -> str:
    """Return the error code in a facilitator's reason as `: code`, or an empty text if the reason begins with no code.

    The rest is omitted, because it could be mistaken for a statement of this service.
    """
    code = _CODE.match(said[:_MAX_REASON])
    return f": {code[0]}" if code else ""


async def _known(payer: Payer, url: httpx.URL, offer: Offer) -> bool | None:
    """Return True if a facilitator settles payments by the program, False if not, or None without a recent probe."""
    service = payer.service
    key = (payer.wallet.org, origin_of(url), offer.fee_payer)
    found = await service.db.read(lambda conn: known_facilitator(conn, *key))
    if found is None:
        return None
    accepts, checked_at = found
    lasts = _ACCEPTED_MS if accepts else _REFUSED_MS
    return accepts if service.clock.seen_ms() - checked_at < lasts else None


async def _remember(payer: Payer, url: httpx.URL, offer: Offer, *, accepts: bool) -> None:
    service = payer.service
    key = (payer.wallet.org, origin_of(url), offer.fee_payer)
    now = service.clock.seen_ms()

    def store(conn: Connection) -> None:
        # A resource can name any number of facilitators, so a wallet adds only a limited number of rows in a day.
        # Beyond this number, each request probes again.
        if known_facilitator(conn, *key) is not None or count_record(conn, payer.wallet.wallet_id, "facilitator", now):
            put_facilitator(conn, *key, accepts=accepts, now=now)

    await service.db.write(store)
