"""Paid requests: what they cost, the payments handed out for them, and the resources that they get."""

import base64
from typing import Literal

import structlog

from app.access.keyring import Principal
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import ApiError, BusinessError, UnavailableError
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.core.transaction_types import ALLOWANCE, ENFORCED, Lane
from app.payments._simulation import simulate
from app.payments.models import SimulatePayment, Simulation
from app.store.allowances import OUTSTANDING, SETTLED
from app.store.audit import append
from app.store.x402 import Payload, payload_of, record_resource
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import Outcome
from app.transactions import service as transactions
from app.x402.delegation import allowance_for, conclude, pay_by_allowance
from app.x402.fetching import Fetcher, Resource, ResourceRequest
from app.x402.models import (
    Encoding,
    FetchedResource,
    FetchPaidResource,
    HandedOut,
    PaidResource,
    PayOffer,
    Quote,
    QuotePaidResource,
)
from app.x402.offers import Offer, choose, demand_given
from app.x402.paying import Gone, Payer, Purchase, pay, request_of
from app.x402.payload import HEADERS, content_of
from app.x402.settlement_paths import demand_in, lane_of, require, try_out

_log = structlog.get_logger(__name__)


async def quote(service: Service, principal: Principal, body: QuotePaidResource, token: str | None) -> Quote:
    """Ask the resource what it costs, and the program whether it may be paid. Nothing is paid."""
    payer = await Payer.of(service, principal, body, token)
    asked = await payer.request(body)
    answer = await _ask(service, principal, asked)
    await _note(service, principal, asked, answer)
    if answer.status != 402:
        return Quote(
            wallet_id=body.wallet_id,
            url=body.url,
            price=None,
            currency="USDC",
            recipient=None,
            network=None,
            facilitator=None,
            lane=None,
            allowed=True,
            retry_at=None,
            rules=[],
            warnings=[],
        )
    demand = demand_in(answer)
    offer = choose(demand, payer.network(), 2**64 - 1)
    await payer.check_domain(asked.url, offer)
    verdict = await _verdict(payer, offer, token)
    lane: Literal["unknown", "not_supported"] | Lane = await lane_of(payer, asked.url, offer, demand) or "unknown"
    if lane == ALLOWANCE and not payer.wallet.policy.rules.allow_allowances:
        lane = "not_supported"
    return Quote(
        wallet_id=body.wallet_id,
        url=body.url,
        price=format_usdc(offer.amount),
        currency="USDC",
        recipient=offer.pay_to,
        network=offer.network,
        facilitator=offer.fee_payer,
        lane=lane,
        allowed=verdict.allowed,
        retry_at=verdict.retry_at,
        rules=verdict.rules,
        warnings=verdict.warnings,
    )


async def fetch(
    service: Service, principal: Principal, claim: Claim, body: FetchPaidResource, *, token: str | None, gone: Gone
) -> FetchedResource:
    """Get a resource, and pay for it from the wallet if it answers 402 with an acceptable price.

    The payment is stored before its first byte leaves, and under one idempotency key the same bytes are sent again.
    """
    # First what an earlier run handed out: nothing about the wallet can refuse a payment that is under way.
    paid = await _earlier(service, claim)
    if paid is None:
        payer = await Payer.of(service, principal, body, token)
        asked = await payer.request(body)
        answer = await _ask(service, principal, asked)
        try:
            found = await _paid_for(payer, token, claim, body, gone, asked, answer)
        except ApiError:
            await _note(service, principal, asked, answer)
            raise
        if isinstance(found, Resource):
            await _note(service, principal, asked, found)
            return FetchedResource(resource=_shown(found), payment=None)
        paid = found
    else:
        asked = request_of(service, body)
    payload, outcome = paid
    resource = None
    if await _is_open(service, payload, outcome):
        resource = await _deliver(service, principal, asked, payload)
        await _note(service, principal, asked, resource, payload.tx_id)
        if payload.lane == ENFORCED:
            await service.submitter.wait(outcome, claim)
        elif resource is not None:
            await _conclude(service, payload)
    payment = await transactions.get(service, principal, payload.tx_id)
    # Others send it, so it may land long after this answer; a repetition is told what became of it.
    claim.open_ended = payment.status == "pending"
    return FetchedResource(resource=None if resource is None else _shown(resource), payment=payment)


async def _paid_for(  # noqa: PLR0917
    payer: Payer,
    token: str | None,
    claim: Claim,
    body: FetchPaidResource,
    gone: Gone,
    asked: ResourceRequest,
    answer: Resource,
) -> Resource | tuple[Payload, Outcome]:
    """Pay for what an answer demands; return the resource itself if nothing is to be paid for it."""
    if answer.status != 402:
        return answer
    demand = demand_in(answer)
    offer = choose(demand, payer.network(), body.max_amount)
    await payer.check_domain(asked.url, offer)
    lane = await lane_of(payer, asked.url, offer, demand) or await try_out(payer, asked, offer)
    if isinstance(lane, Resource):
        return lane
    return await _pay(payer, token, claim, Purchase(body.url, offer, fetched=True), gone, require(payer, lane))


async def pay_offer(
    service: Service, principal: Principal, claim: Claim, body: PayOffer, *, token: str | None, gone: Gone
) -> HandedOut:
    """Hand out a payment for a request that the client makes itself."""
    paid = await _earlier(service, claim)
    if paid is None:
        payer = await Payer.of(service, principal, body, token)
        url = await payer.url(body.url)
        demand = demand_given(body.payment_required)
        offer = choose(demand, payer.network(), body.max_amount)
        await payer.check_domain(url, offer)
        # Nothing can be tried out, as the client makes the request; the answer 402 to its payment tells the next one.
        lane = await lane_of(payer, url, offer, demand) or ENFORCED
        paid = await _pay(payer, token, claim, Purchase(body.url, offer, fetched=False), gone, require(payer, lane))
    payload, outcome = paid
    until = outcome.attempt.created_at // 1000 + 60
    payment = await transactions.get(service, principal, payload.tx_id)
    claim.open_ended = payment.status == "pending"
    return HandedOut(
        header_name=HEADERS[payload.version],
        header_value=payload.header,
        payload=content_of(payload.header),
        expires_at=iso(until),
        payment=payment,
    )


async def _earlier(service: Service, claim: Claim) -> tuple[Payload, Outcome] | None:
    """Return the payment that an earlier run of the request handed out, unless it failed for good."""
    attempt = claim.attempt
    if attempt is None:
        return None
    # What others have to send is only looked at; a grant is sent again.
    outcome = await service.submitter.resume(claim) if attempt.signature else await service.submitter.look(attempt)
    claim.resolve(lasts=outcome is not None and outcome.status != "failed")
    if outcome is None or outcome.status == "failed":
        return None
    found = await service.db.read(lambda conn: payload_of(conn, attempt.tx_id))
    assert found is not None
    if found.lane == ALLOWANCE:
        allowed = await allowance_for(service, found)
        if allowed is not None and allowed.status == SETTLED and not allowed.spent:
            claim.resolve(lasts=False)
            return None
    return found, outcome


async def _pay(  # noqa: PLR0917
    payer: Payer, token: str | None, claim: Claim, bought: Purchase, gone: Gone, lane: Lane
) -> tuple[Payload, Outcome]:
    if lane == ENFORCED:
        return await pay(payer, claim, bought, gone)
    return await pay_by_allowance(payer, token, claim, bought, gone)


async def _is_open(service: Service, payload: Payload, outcome: Outcome) -> bool:
    """Whether a payload can still pay, as far as is known, and nothing has stopped it."""
    kind = service.submitter.type_of(outcome.attempt)
    if await service.brake.overtook(kind, outcome.attempt) is not None:
        return False
    if payload.lane == ENFORCED:
        return outcome.status == "pending"
    allowed = await allowance_for(service, payload)
    return outcome.confirmed and allowed is not None and allowed.status == OUTSTANDING


async def _conclude(service: Service, payload: Payload) -> None:
    """Settle what a resource was paid from, now that it has answered; what fails here is done later."""
    try:
        await conclude(service, payload)
    except (ApiError, ChainUnavailable, RpcError) as error:
        _log.warning("allowance_settled_later", tx_id=payload.tx_id, error=str(error))


async def _verdict(payer: Payer, offer: Offer, token: str | None) -> Simulation:
    body = {"walletId": payer.wallet.wallet_id, "to": offer.pay_to, "amount": format_usdc(offer.amount)}
    return await simulate(payer.service, payer.principal, SimulatePayment.model_validate(body), token)


async def _ask(service: Service, principal: Principal, asked: ResourceRequest) -> Resource:
    try:
        return await service.part(Fetcher).fetch(asked, owner=principal.org, payment={})
    except ApiError:
        await _note(service, principal, asked, None)
        raise


async def _deliver(service: Service, principal: Principal, asked: ResourceRequest, payload: Payload) -> Resource | None:
    """Send the request with its payment; None if there is no answer, which says nothing about the payment."""
    payment = {HEADERS[payload.version]: payload.header}
    try:
        answer = await service.part(Fetcher).fetch(asked, owner=principal.org, payment=payment)
    except (BusinessError, UnavailableError):
        return None
    await service.db.write(lambda conn: record_resource(conn, payload.tx_id, answer.status))
    return answer


async def _note(
    service: Service, principal: Principal, asked: ResourceRequest, answer: Resource | None, tx_id: str | None = None
) -> None:
    """Record in the audit log where a request went and what it got; one that was repeated with a payment is one."""
    host, status = asked.url.raw_host.decode("ascii"), None if answer is None else answer.status
    entry = principal.entry("x402.fetch", tx_id, host=host, status=status)
    await service.db.write(lambda conn: append(conn, entry))


def _shown(answer: Resource) -> PaidResource:
    encoding: Encoding = "text"
    try:
        text = answer.body.decode()
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(answer.body).decode(), "base64"
    return PaidResource(
        status=answer.status,
        headers=answer.headers,
        body=text,
        body_encoding=encoding,
        truncated=answer.truncated,
    )
