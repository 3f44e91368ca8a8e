"""Payments: resolved, judged by the program in a rehearsal, then stored, sent and confirmed."""

from functools import partial
from typing import cast

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.auth import session_key
from app.access.keyring import Principal
from app.core.errors import BusinessError
from app.core.identifiers import new_reference
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.payments.events import append_pending
from app.payments.models import PayFromWallet
from app.payments.spending import Form, Order, landed_refused, order_of, send
from app.payments.token_accounts import count_creation
from app.recipients.service import resolve
from app.store.attempts import Attempt
from app.store.transactions import PAYMENT
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.locks import LockScope
from app.submission.plan import Outcome, Plan, PlanType
from app.submission.refusals import invalid_recipient
from app.transactions.models import Payment, TransactionStatus
from app.wallets import service as wallets

_PAY = PlanType(PAYMENT, projected=True)
PLAN_TYPES = (_PAY,)


async def pay(
    service: Service, principal: Principal, claim: Claim, *, wallet_id: str, body: PayFromWallet, token: str | None
) -> Payment:
    """Make a payment and answer when it is confirmed, or as `pending` when that takes too long.

    Raises ``policy_violation`` when the policy refuses; then nothing was sent and the refusal is on record.
    """
    paying = await wallets.find(service, principal.org, wallet_id)
    session = session_key(principal, token, paying)
    outcome = await service.submitter.resume(claim)
    if outcome is None:
        if paying.archived:
            raise BusinessError("wallet_archived")
        payee = await resolve(service, principal.org, body.to)
        if str(payee.owner) == paying.vault:
            raise invalid_recipient("to", "A wallet does not pay itself.")
        order = order_of(service, principal, paying, session, payee, body.amount, body.memo, row_type=PAYMENT)
        async with service.locks.hold(LockScope.WALLET_SENDING, wallet_id):
            outcome = await send(service, claim, order, partial(_plan, service), opens=True)
        outcome = await service.submitter.wait(outcome, claim)
    if outcome.status == "failed":
        raise await landed_refused(service, paying, outcome)
    return _answer(outcome)


def _plan(service: Service, order: Order, form: Form) -> Plan:
    paying, owner = order.wallet, order.payee.owner
    build = service.instructions(paying.org)
    reference = new_reference()
    payment = build.execute_payment(
        signer=order.signer,
        policy=Pubkey.from_string(paying.policy.address),
        vault=Pubkey.from_string(paying.vault),
        destination=service.addresses.token_account(owner),
        amount=order.amount,
        reference=reference,
        **form.accounts(service, order),
    )
    front = [build.create_token_account(payer=service.signers.fee_payer_address, owner=owner)] if form.creates else []

    def store(conn: Connection, attempt: Attempt) -> None:
        append_pending(conn, attempt)
        if form.creates:
            count_creation(conn, paying.wallet_id)

    return Plan(
        org=paying.org,
        type=_PAY,
        instructions=[*front, payment],
        signers=form.signers(service, order),
        event_instruction=len(front),
        wallet_id=paying.wallet_id,
        recipient=order.payee.name,
        recipient_address=str(order.payee.owner),
        amount=order.amount,
        policy_id=paying.policy.policy_id,
        policy_triggered=form.policy_triggered,
        memo=order.memo,
        reference=reference,
        attested=order.session is not None,
        on_store=store,
    )


def _answer(outcome: Outcome) -> Payment:
    # What the row of the read models shows, too; it is not read again for every payment.
    attempt = outcome.attempt
    return Payment(
        tx_id=attempt.tx_id,
        id=attempt.tx_id,
        wallet_id=attempt.wallet_id or "",
        recipient=attempt.recipient or "",
        amount=format_usdc(attempt.amount),
        currency="USDC",
        status=cast(TransactionStatus, outcome.status),
        tx_signature=attempt.signature,
        on_chain_slot=outcome.slot if outcome.confirmed else None,
        policy_triggered=attempt.policy_triggered,
        memo=attempt.memo,
        timestamp=iso_ms(attempt.created_at),
    )
