"""Paid requests: their quotes, the payments issued for them, and the resources in return."""

import base64
from typing import Any, Literal

import structlog
from sqlalchemy import Connection

from app.api.operation import Call
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import ApiError, BusinessError, UnavailableError
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
from app.store.x402 import IssuedPayment, issued_payment_of, record_resource
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import Outcome
from app.transactions import service as transactions
from app.x402.choosing import Choice, choose
from app.x402.delegation import allowance_for, conclude, pay_by_allowance
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
from app.x402.offers import payment_required_from_client
from app.x402.paying import PaidResourceTerms, Payer, pay, request_of
from app.x402.payment_header import HEADERS, content_of
from app.x402.settlement_paths import known_settlement_path, payment_required_in, probe_facilitator, require

_log = structlog.get_logger(__name__)


async def quote(call: Call, body: QuotePaidResource) -> Quote:
    """Ask the resource for its price, and the program for its verdict on the payment. Nothing is paid."""
    payer = await Payer.of(call, body)
    asked = await payer.request(body)
    answer = await _ask(call, asked)
    if answer.status != 402:
        await _note(call, body, asked, answer)
        nothing: dict[str, Any] = dict.fromkeys(("price", "recipient", "network", "facilitator", "lane", "retry_at"))
        return Quote(
            wallet_id=body.wallet_id, url=body.url, currency="USDC", allowed=True, rules=[], warnings=[], **nothing
        )
    demand = payment_required_in(answer)
    choice = await choose(payer, asked.url, demand, look=True)
    offer, obstacle = choice.offer, choice.obstacle
    verdict = await _verdict(payer, choice)
    lane: Literal["unknown", "not_supported"] | SettlementPath = (
        await known_settlement_path(payer, asked.url, offer, demand) or "unknown"
    )
    if lane == ALLOWANCE and not payer.wallet.policy.rules.allow_allowances:
        lane = "not_supported"
    await _note(call, body, asked, answer)
    return Quote(
        wallet_id=body.wallet_id,
        url=body.url,
        price=format_usdc(offer.amount),
        currency="USDC",
        recipient=offer.pay_to,
        network=offer.network,
        facilitator=offer.fee_payer,
        lane=lane,
        allowed=verdict.allowed and obstacle is None,
        retry_at=verdict.retry_at if obstacle is None else None,
        rules=verdict.rules,
        # The warning about a payee without a known owner implies the lack of an account.
        warnings=[*(verdict.warnings or filter(None, [obstacle])), *choice.warnings],
    )


async def fetch(call: Call, body: FetchPaidResource) -> FetchedResource:
    """Get a resource. If it answers 402 with an acceptable price, pay for it from the wallet.

    The payment is stored before it is sent. While it can still land, a request repeated under the same idempotency key
    sends the same bytes again. If the payment has failed, the repeated request issues a new one.
    """
    service, claim = call.service, call.claim
    # Look first for a payment issued by an earlier run: once it is under way, the wallet's state cannot refuse it.
    paid, warnings = await _earlier(service, claim), list[str]()
    first = paid is None
    overtaken = paid is not None and await _is_overtaken(service, paid[0])
    if paid is None:
        payer = await Payer.of(call, body)
        asked = await payer.request(body)
        found, warnings = await _paid_for(payer, body, asked, await _ask(call, asked))
        if isinstance(found, Received):
            await _note(call, body, asked, found)
            # Only paid resources are stored. A repeated request asks the resource again.
            claim.open_ended = True
            return FetchedResource(resource=_shown(found), payment=None, warnings=warnings)
        paid = found
    else:
        asked = request_of(service, body)
    issued, outcome = paid
    resource = None
    if not overtaken and await _is_open(service, issued, outcome):
        resource = await _deliver(call, asked, issued)
        await _note(call, body, asked, resource, issued.tx_id, first=first)
        if issued.lane == ENFORCED:
            await service.submitter.wait(outcome, claim)
        elif resource is not None:
            await _conclude(service, issued)
    payment = await transactions.get(service, call.principal, issued.tx_id)
    # A facilitator sends the payment, so it may land long after this response. A replay reports its outcome.
    claim.open_ended = payment.status == "pending"
    done = FetchedResource(resource=None, resource_expired=resource is not None, payment=payment, warnings=warnings)
    if resource is None:
        return done
    claim.reducible = Reducible(issued.wallet_id, done.model_dump_json(), service.settings.x402_kept_bytes)
    return done.model_copy(update={"resource": _shown(resource), "resource_expired": False})


async def _paid_for(
    payer: Payer, body: FetchPaidResource, asked: ResourceRequest, answer: Received
) -> tuple[Received | tuple[IssuedPayment, Outcome], list[str]]:
    """Pay the price in a 402 response, and return the warnings of ``choose``.

    Returns the resource itself if there is nothing to pay.
    """
    if answer.status != 402:
        return answer, []
    demand = payment_required_in(answer)
    choice = await choose(payer, asked.url, demand, most=body.max_amount)
    offer, warnings = choice.offer, choice.warnings
    lane = await known_settlement_path(payer, asked.url, offer, demand) or await probe_facilitator(payer, asked, offer)
    if isinstance(lane, Received):
        return lane, warnings
    bought = PaidResourceTerms(body.url, offer, fetched=True)
    return await _pay(payer, bought, require(payer, lane)), warnings


async def pay_offer(call: Call, body: PayOffer) -> HandedOut:
    """Issue a payment for a request that the client sends itself."""
    service, claim = call.service, call.claim
    paid, warnings = await _earlier(service, claim), list[str]()
    if paid is None:
        payer = await Payer.of(call, body)
        url = await payer.url(body.url)
        demand = payment_required_from_client(body.payment_required)
        choice = await choose(payer, url, demand, most=body.max_amount)
        offer, warnings = choice.offer, choice.warnings
        # The client sends the request, so the service cannot probe the facilitator. If the resource answers the payment
        # with 402, the client's next request passes that response on, and its complaint tells the settlement path.
        lane = await known_settlement_path(payer, url, offer, demand) or ENFORCED
        paid = await _pay(payer, PaidResourceTerms(body.url, offer, fetched=False), require(payer, lane))
    issued, outcome = paid
    until = outcome.attempt.created_at // 1000 + 60
    payment = await transactions.get(service, call.principal, issued.tx_id)
    claim.open_ended = payment.status == "pending"
    return HandedOut(
        header_name=HEADERS[issued.version],
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
    return await (pay if lane == ENFORCED else pay_by_allowance)(payer, bought)


async def _is_overtaken(service: Service, issued: IssuedPayment) -> bool:
    """Return True if a freeze, pause or token rotation came after the payment, even if it was lifted since.

    An allowance is also overtaken by a change of its policy.
    """
    if issued.lane == ENFORCED:
        return await service.db.read(lambda conn: stopped_by(conn, issued.tx_id)) is not None
    await service.catch_up()
    due = await service.db.read(lambda conn: due_allowances(conn, service.clock.now()))
    return any(one.tx_id == issued.tx_id for one in due)


async def _is_open(service: Service, issued: IssuedPayment, outcome: Outcome) -> bool:
    """Return True if an issued payment can still pay, as far as the service knows, and no brake blocks it."""
    kind = service.submitter.type_of(outcome.attempt)
    if await service.brake.blocking_kind(kind, outcome.attempt) is not None:
        return False
    if issued.lane == ENFORCED:
        return outcome.status == "pending"
    allowed = await allowance_for(service, issued)
    return outcome.confirmed and allowed is not None and allowed.status == OUTSTANDING


async def _conclude(service: Service, issued: IssuedPayment) -> None:
    """Settle the allowance that paid a resource, now that the resource has answered. The watch retries a failure."""
    try:
        await conclude(service, issued)
    except (ApiError, ChainUnavailable, RpcError) as error:
        _log.warning("allowance_settled_later", tx_id=issued.tx_id, error=str(error))


async def _verdict(payer: Payer, choice: Choice) -> Simulation:
    offer = choice.offer
    body = {"walletId": payer.wallet.wallet_id, "to": offer.pay_to, "amount": format_usdc(offer.amount)}
    return await simulate(payer.call, SimulatePayment.model_validate(body), balance=choice.balance)


async def _ask(call: Call, asked: ResourceRequest) -> Received:
    return await call.service.part(Fetcher).fetch(asked, owner=call.principal.org, payment={})


async def _deliver(call: Call, asked: ResourceRequest, issued: IssuedPayment) -> Received | None:
    """Send the request with its payment. None means that no response came; the payment may still have been made."""
    payment = {HEADERS[issued.version]: issued.header}
    try:
        answer = await call.service.part(Fetcher).fetch(asked, owner=call.principal.org, payment=payment)
    except (BusinessError, UnavailableError):
        return None
    await call.service.db.write(lambda conn: record_resource(conn, issued.tx_id, answer.status))
    return answer


async def _note(
    call: Call,
    body: QuotePaidResource,
    asked: ResourceRequest,
    answer: Received | None,
    tx_id: str | None = None,
    *,
    first: bool = False,
) -> None:
    """Record the request's host and response status in the audit log.

    A request that was repeated with a payment makes one entry. Except for the ``first`` entry of a payment, a wallet
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
