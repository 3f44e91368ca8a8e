"""Paid requests: what they cost, the payments handed out for them, and the resources that they get."""

import base64

from app.access.keyring import Principal
from app.core.errors import BusinessError
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.payments._simulation import simulate
from app.payments.models import SimulatePayment, Simulation
from app.payments.service import PAY
from app.store.audit import append
from app.store.x402 import Payload, record_resource
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.transactions import service as transactions
from app.x402.fetching import Fetcher, Resource, ResourceRequest
from app.x402.lanes import UNSUPPORTED, demand_in, known, try_out
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
from app.x402.paying import Gone, Payer, earlier, pay, request_of
from app.x402.payload import HEADERS, content_of


async def quote(service: Service, principal: Principal, body: QuotePaidResource, token: str | None) -> Quote:
    """Ask the resource what it costs, and the program whether it may be paid. Nothing is paid."""
    payer = await Payer.of(service, principal, body.wallet_id, token)
    asked = await payer.request(body)
    answer = await _ask(service, principal, asked)
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
        )
    offer = choose(demand_in(answer), payer.network(), 2**64 - 1)
    await payer.check_domain(asked.url, offer)
    verdict = await _verdict(payer, offer, token)
    accepts = await known(payer, asked.url, offer)
    return Quote(
        wallet_id=body.wallet_id,
        url=body.url,
        price=format_usdc(offer.amount),
        currency="USDC",
        recipient=offer.pay_to,
        network=offer.network,
        facilitator=offer.fee_payer,
        lane="unknown" if accepts is None else "enforced" if accepts else "not_supported",
        allowed=verdict.allowed,
        retry_at=verdict.retry_at,
        rules=verdict.rules,
    )


async def fetch(
    service: Service, principal: Principal, claim: Claim, body: FetchPaidResource, *, token: str | None, gone: Gone
) -> FetchedResource:
    """Get a resource, and pay for it from the wallet if it answers 402 with an acceptable price.

    The payment is stored before its first byte leaves, and under one idempotency key the same bytes are sent again.
    """
    # First what an earlier run handed out: nothing about the wallet can refuse a payment that is under way.
    paid = await earlier(service, claim)
    if paid is None:
        payer = await Payer.of(service, principal, body.wallet_id, token)
        asked = await payer.request(body)
        answer = await _ask(service, principal, asked)
        if answer.status != 402:
            await _note(service, principal, asked, answer)
            return FetchedResource(resource=_shown(answer), payment=None)
        offer = choose(demand_in(answer), payer.network(), body.max_amount)
        await payer.check_domain(asked.url, offer)
        free = await try_out(payer, asked, offer)
        if free is not None:
            return FetchedResource(resource=_shown(free), payment=None)
        paid = await pay(payer, claim, offer, body.url, gone, fetched=True)
    else:
        asked = request_of(service, body)
    payload, outcome = paid
    resource = None
    stopped = await service.brake.overtook(PAY, outcome.attempt)
    if outcome.status == "pending" and stopped is None:
        resource = await _deliver(service, principal, asked, payload)
        await _note(service, principal, asked, resource, payload.tx_id)
        await service.submitter.wait(outcome, claim)
    payment = await transactions.get(service, principal, payload.tx_id)
    # Others send it, so it may land long after this answer; a repetition is told what became of it.
    claim.open_ended = payment.status == "pending"
    return FetchedResource(resource=None if resource is None else _shown(resource), payment=payment)


async def pay_offer(
    service: Service, principal: Principal, claim: Claim, body: PayOffer, *, token: str | None, gone: Gone
) -> HandedOut:
    """Hand out a payment for a request that the client makes itself."""
    paid = await earlier(service, claim)
    if paid is None:
        payer = await Payer.of(service, principal, body.wallet_id, token)
        url = await payer.url(body.url)
        offer = choose(demand_given(body.payment_required), payer.network(), body.max_amount)
        await payer.check_domain(url, offer)
        if await known(payer, url, offer) is False:
            raise BusinessError("x402_wallet_not_supported", UNSUPPORTED)
        paid = await pay(payer, claim, offer, body.url, gone, fetched=False)
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


async def _verdict(payer: Payer, offer: Offer, token: str | None) -> Simulation:
    body = {"walletId": payer.wallet.wallet_id, "to": offer.pay_to, "amount": format_usdc(offer.amount)}
    return await simulate(payer.service, payer.principal, SimulatePayment.model_validate(body), token)


async def _ask(service: Service, principal: Principal, asked: ResourceRequest) -> Resource:
    return await service.part(Fetcher).fetch(asked, owner=principal.org, payment={})


async def _deliver(service: Service, principal: Principal, asked: ResourceRequest, payload: Payload) -> Resource | None:
    """Send the request with its payment; None if there is no answer, which says nothing about the payment."""
    payment = {HEADERS[payload.version]: payload.header}
    try:
        answer = await service.part(Fetcher).fetch(asked, owner=principal.org, payment=payment)
    except BusinessError:
        return None
    await service.db.write(lambda conn: record_resource(conn, payload.tx_id, answer.status))
    return answer


async def _note(
    service: Service, principal: Principal, asked: ResourceRequest, answer: Resource | None, tx_id: str | None = None
) -> None:
    """Record in the audit log where a request went and what it got."""
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
