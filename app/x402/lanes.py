"""Which facilitators settle payments by the program, found out without paying."""

import httpx
from solders.hash import Hash
from solders.pubkey import Pubkey

from app.chain.transactions import sign_for
from app.core.errors import BusinessError
from app.store.x402 import known_facilitator, put_facilitator
from app.x402.fetching import Fetcher, Resource, ResourceRequest
from app.x402.guard import origin_of
from app.x402.instructions import settled_by_others
from app.x402.offers import REQUIRED_HEADER, Demand, Offer, read_demand, refusal_in
from app.x402.paying import Payer
from app.x402.payload import HEADERS, header_of

#: For how long a facilitator's acceptance of the program is believed, and its refusal, in milliseconds.
_ACCEPTED_MS, _REFUSED_MS = 86_400_000, 3_600_000
_TAKEN = "BlockhashNotFound"
_NOT_TAKEN = ("program_not_allowed", "no_transfer_instruction")
UNSUPPORTED = (
    "The resource's facilitator settles plain transfers only, not payments by a vault. Its operator can allow the "
    "program."
)


def demand_in(answer: Resource) -> Demand:
    """Return what an answer 402 asks for. Raises ``x402_invalid_terms``."""
    return read_demand(answer.headers.get(REQUIRED_HEADER), answer.body)


async def try_out(payer: Payer, asked: ResourceRequest, offer: Offer) -> Resource | None:
    """Find out whether the offer's facilitator settles payments by the program, unless that is known.

    It is shown a payment over a blockhash that never was, so that it can never land; how it refuses that tells. Returns
    the resource if it was given away for this. Raises ``x402_wallet_not_supported`` and ``x402_resource_unavailable``.
    """
    accepts = await known(payer, asked.url, offer)
    if accepts is None:
        service = payer.service
        trial = await payer.spending(offer, _never)
        raw = await sign_for(
            settled_by_others(trial, offer.memo),
            payer=Pubkey.from_string(offer.fee_payer),
            signers=[payer.session or service.signers.operator],
            blockhash=Hash.default(),
        )
        header = {HEADERS[offer.version]: header_of(offer, raw, "")}
        answer = await service.part(Fetcher).fetch(asked, owner=payer.principal.org, payment=header)
        if answer.status != 402:
            return answer
        said = refusal_in(answer.headers) or demand_in(answer).error or ""
        accepts = True if _TAKEN in said else False if any(one in said for one in _NOT_TAKEN) else None
        if accepts is None:
            message = f"The resource's facilitator refuses the payment: {said[:200]}"
            raise BusinessError("x402_resource_unavailable", message)
        await _remember(payer, asked.url, offer, accepts=accepts)
    if not accepts:
        raise BusinessError("x402_wallet_not_supported", UNSUPPORTED)
    return None


async def _never() -> bool:
    return False


async def known(payer: Payer, url: httpx.URL, offer: Offer) -> bool | None:
    """Whether a facilitator settles payments by the program, as far as that was found out lately."""
    service = payer.service
    key = (payer.principal.org, origin_of(url), offer.fee_payer)
    found = await service.db.read(lambda conn: known_facilitator(conn, *key))
    if found is None:
        return None
    accepts, checked_at = found
    lasts = _ACCEPTED_MS if accepts else _REFUSED_MS
    return accepts if service.clock.seen_ms() - checked_at < lasts else None


async def _remember(payer: Payer, url: httpx.URL, offer: Offer, *, accepts: bool) -> None:
    service = payer.service
    key = (payer.principal.org, origin_of(url), offer.fee_payer)
    now = service.clock.seen_ms()
    await service.db.write(lambda conn: put_facilitator(conn, *key, accepts=accepts, now=now))
