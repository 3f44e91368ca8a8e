"""Paid requests: their quotes, the payments issued for them, and the resources in return."""

import base64
from typing import Any

import structlog
from sqlalchemy import Connection

from app.api.operation import Call
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import ApiError, BusinessError
from app.core.money import format_usdc
from app.core.outbound import Received
from app.core.timestamps import iso
from app.core.transaction_types import ALLOWANCE, ENFORCED, SettlementPath
from app.payments._simulation import simulate
from app.payments.models import SimulatePayment, Simulation
from app.store.allowances import OUTSTANDING, SETTLED, due_allowances
from app.store.attempts import stopped_by
from app.store.audit import append
from app.store.daily_counts import count_record
from app.store.idempotency import Reducible
from app.store.x402 import IssuedPayment, is_success, issued_payment_of, record_resource
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import Outcome
from app.transactions import service as transactions
from app.x402.choosing import Choice, choose
from app.x402.credential import content_of, header_name
from app.x402.demands import offers_from_client, offers_of
from app.x402.fetching import Fetcher, ResourceRequest
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
from app.x402.payer import PaidResourceTerms, Payer, request_of
from app.x402.probing import not_supported, probe_facilitator, require
from app.x402.settlement.allowance import allowance_for, conclude, pay_by_allowance
from app.x402.settlement.program import pay_by_program

_log = structlog.get_logger(__name__)


async def quote(call: Call, body: QuotePaidResource) -> Quote:
    """Ask the resource for its price, and the program for its verdict on the payment. Nothing is paid."""
    payer = await Payer.of(call, body)
    asked = await payer.request(body)
    answer = await _ask(call, asked)
    if answer.status != 402:
        await _note(call, body, asked, answer)
        nothing: dict[str, Any] = dict.fromkeys(
            ("price", "protocol", "recipient", "network", "facilitator", "lane", "error", "retry_at")
        )
        return Quote(
            wallet_id=body.wallet_id, url=body.url, currency="USDC", allowed=True, rules=[], warnings=[], **nothing
        )
    choice = await choose(payer, asked.url, offers_of(answer, payer.network(), asked.content), look=True)
    offer, lane, verdict = choice.offer, choice.lane, await _verdict(payer, choice)
    unsupported = not_supported(payer, offer, lane)
    obstacle = choice.obstacle or unsupported
    if obstacle is not None and obstacle.code == "invalid_recipient" and verdict.warnings:
        # A payee without a known owner has no token account either.
        obstacle = BusinessError("recipient_unverified", verdict.warnings.pop())
    await _note(call, body, asked, answer)
    return Quote(
        wallet_id=body.wallet_id,
        url=body.url,
        price=format_usdc(offer.amount),
        currency="USDC",
        protocol=offer.protocol,
        recipient=offer.pay_to,
        network=offer.network,
        facilitator=offer.fee_payer,
        lane="not_supported" if unsupported else lane or "unknown",
        allowed=verdict.allowed and obstacle is None,
        retry_at=verdict.retry_at if obstacle is None else None,
        error=verdict.error if obstacle is None or obstacle.code == "policy_violation" else obstacle.code,
        rules=verdict.rules,
        warnings=[*verdict.warnings, *([] if obstacle is None else [obstacle.message]), *choice.warnings],
    )


async def fetch(call: Call, body: FetchPaidResource) -> FetchedResource:
    """Get a resource. If it answers 402 with an acceptable price, pay for it from the wallet.

    The payment is stored before it is sent. While it can still land, a request repeated under the same idempotency key
    sends the same bytes again. If the payment has failed, the repeated request issues a new one.
    """
    service, claim = call.service, call.claim
    # First look for a payment issued by an earlier run. Once a payment is under way, the wallet's state can no longer
    # refuse it.
    paid, warnings = await _earlier(service, claim), list[str]()
    first = paid is None
    overtaken = paid is not None and await _is_overtaken(service, paid[0])
    if paid is None:
        payer = await Payer.of(call, body)
        asked = await payer.request(body)
        found, warnings = await _paid_for(payer, body, asked, await _ask(call, asked))
        if isinstance(found, Received):
            await _note(call, body, asked, found)
            # Only paid resources are stored. A repeated request for an unpaid resource asks the resource again.
            claim.open_ended = True
            return FetchedResource(resource=_shown(found), payment=None, warnings=warnings)
        paid = found
    else:
        asked = request_of(service, body)
    issued, outcome = paid
    resource = PaidResource.model_validate_json(claim.partial) if issued.received and claim.partial else None
    if not overtaken and await _is_open(service, issued, outcome):
        if not issued.received:
            resource = await _deliver(call, asked, issued)
            await _note(call, body, asked, resource, issued.tx_id, first=first)
        if issued.lane == ENFORCED:
            await service.submitter.wait(outcome, claim)
        elif issued.received or resource is not None:
            await _conclude(service, issued)
    payment = await transactions.get(service, call.principal, issued.tx_id)
    # A facilitator sends the payment, so it may land long after this response. A replay reports its outcome.
    claim.open_ended = payment.status == "pending"
    expires = issued.received or resource is not None
    done = FetchedResource(resource=None, resource_expired=expires, payment=payment, warnings=warnings)
    if resource is None:
        return done
    claim.reducible = Reducible(issued.wallet_id, done.model_dump_json(), service.settings.x402_kept_bytes)
    return done.model_copy(update={"resource": resource, "resource_expired": False})


async def _paid_for(
    payer: Payer, body: FetchPaidResource, asked: ResourceRequest, answer: Received
) -> tuple[Received | tuple[IssuedPayment, Outcome], list[str]]:
    """Pay the price in a 402 response. Return the issued payment and the warnings of ``choose``.

    If there is nothing to pay, returns the resource's response in place of the payment.
    """
    if answer.status != 402:
        return answer, []
    choice = await choose(payer, asked.url, offers_of(answer, payer.network(), asked.content), most=body.max_amount)
    offer, warnings = choice.offer, choice.warnings
    lane = choice.lane or await probe_facilitator(payer, asked, offer)
    if isinstance(lane, Received):
        return lane, warnings
    bought = PaidResourceTerms(body.url, offer, fetched=True)
    return await _pay(payer, bought, require(payer, offer, lane)), warnings


async def pay_offer(call: Call, body: PayOffer) -> HandedOut:
    """Issue a payment for a request that the client sends itself."""
    service, claim = call.service, call.claim
    paid, warnings = await _earlier(service, claim), list[str]()
    if paid is None:
        payer = await Payer.of(call, body)
        url = await payer.url(body.url)
        offered = offers_from_client(body.payment_required, payer.network())
        choice = await choose(payer, url, offered, most=body.max_amount)
        offer, warnings = choice.offer, choice.warnings
        # The client sends the request, so the service cannot probe the facilitator. If the resource answers the payment
        # with 402, the client's next request passes that response on, and its complaint tells the settlement path.
        lane = choice.lane or ENFORCED
        paid = await _pay(payer, PaidResourceTerms(body.url, offer, fetched=False), require(payer, offer, lane))
    issued, outcome = paid
    until = outcome.attempt.created_at // 1000 + 60
    payment = await transactions.get(service, call.principal, issued.tx_id)
    claim.open_ended = payment.status == "pending"
    return HandedOut(
        header_name=header_name(issued),
        header_value=issued.header,
        payload=content_of(issued.header),
        expires_at=iso(until),
        payment=payment,
        warnings=warnings,
    )


async def _earlier(service: Service, claim: Claim) -> tuple[IssuedPayment, Outcome] | None:
    """Return the payment issued by an earlier run of the request, unless it has failed permanently."""
    attempt = claim.attempt
    if attempt is None:
        return None
    # An issued payment is only looked up, because a facilitator sends it. A grant is resent.
    outcome = await service.submitter.resume(claim) if attempt.signature else await service.submitter.look(attempt)
    claim.resolve(lasts=outcome is not None and outcome.status != "failed")
    if outcome is None or outcome.status == "failed":
        return None
    found = await service.db.read(lambda conn: issued_payment_of(conn, attempt.tx_id))
    assert found is not None
    if found.lane == ALLOWANCE:
        allowed = await allowance_for(service, found)
        if allowed is not None and allowed.status == SETTLED and not allowed.spent:
            claim.resolve(lasts=False)
            return None
    return found, outcome


async def _pay(payer: Payer, bought: PaidResourceTerms, lane: SettlementPath) -> tuple[IssuedPayment, Outcome]:
    return await (pay_by_program if lane == ENFORCED else pay_by_allowance)(payer, bought)


async def _is_overtaken(service: Service, issued: IssuedPayment) -> bool:
    """Return True if a freeze, pause or token rotation came after the payment, even if it was lifted since.

    An allowance is also overtaken by a change to its policy.
    """
    if issued.lane == ENFORCED:
        return await service.db.read(lambda conn: stopped_by(conn, issued.tx_id)) is not None
    await service.catch_up()
    due = await service.db.read(lambda conn: due_allowances(conn, service.clock.now()))
    return any(one.tx_id == issued.tx_id for one in due)


async def _is_open(service: Service, issued: IssuedPayment, outcome: Outcome) -> bool:
    """Return True if no brake blocks an issued payment and, as far as the service knows, the payment can still land."""
    kind = service.submitter.type_of(outcome.attempt)
    if await service.brake.blocking_kind(kind, outcome.attempt) is not None:
        return False
    if issued.lane == ENFORCED:
        return outcome.status == "pending"
    allowed = await allowance_for(service, issued)
    return outcome.confirmed and allowed is not None and allowed.status == OUTSTANDING


async def _conclude(service: Service, issued: IssuedPayment) -> None:
    """Settle the allowance that paid a resource, once the resource has answered. If this fails, the watch retries."""
    try:
        await conclude(service, issued)
    except (ApiError, ChainUnavailable, RpcError) as error:
        _log.warning("allowance_settled_later", tx_id=issued.tx_id, error=str(error))


async def _verdict(payer: Payer, choice: Choice) -> Simulation:
    offer = choice.offer
    body = {"walletId": payer.wallet.wallet_id, "to": offer.pay_to, "amount": format_usdc(offer.amount)}
    return await simulate(payer.call, SimulatePayment.model_validate(body))


async def _ask(call: Call, asked: ResourceRequest) -> Received:
    return await call.service.part(Fetcher).fetch(asked, call.principal.owner)


async def _deliver(call: Call, asked: ResourceRequest, issued: IssuedPayment) -> PaidResource | None:
    """Send the request with its payment, and store a successful response for repetitions together with its status.

    Returns None if no response came. The payment may still have been made.
    """
    payment = {header_name(issued): issued.header}
    try:
        answer = await call.service.part(Fetcher).fetch(asked, call.principal.owner, payment)
    except ApiError:
        return None
    resource = _shown(answer)

    def store(conn: Connection) -> None:
        record_resource(conn, issued.tx_id, resource.status)
        if is_success(resource.status):
            quota = call.service.settings.x402_kept_bytes
            call.claim.keep(conn, resource.model_dump_json(), issued.wallet_id, quota)

    await call.service.db.write(store)
    return resource


async def _note(
    call: Call,
    body: QuotePaidResource,
    asked: ResourceRequest,
    answer: Received | PaidResource | None,
    tx_id: str | None = None,
    *,
    first: bool = False,
) -> None:
    """Record the request's host and response status in the audit log.

    A request and its repetition with a payment make one entry. Except for the ``first`` entry of a payment, a wallet
    adds a limited number of these entries in a day.
    """
    host, status = asked.url.raw_host.decode("ascii"), None if answer is None else answer.status
    entry, now = call.principal.entry("x402.fetch", tx_id, host=host, status=status), call.service.clock.seen_ms()

    def record(conn: Connection) -> None:
        if first or count_record(conn, body.wallet_id, "request", now):
            append(conn, entry)

    await call.service.db.write(record)


def _shown(answer: Received) -> PaidResource:
    encoding: Encoding = "text"
    try:
        text = answer.body.decode()
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(answer.body).decode(), "base64"
    return PaidResource(
        status=answer.status,
        headers=dict(answer.headers),
        body=text,
        body_encoding=encoding,
        content_coding=answer.coding,
        truncated=answer.truncated,
    )
