"""Payments: resolved, judged by the program in a rehearsal, then stored, sent and confirmed."""

import time
from dataclasses import dataclass, replace
from typing import cast

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app import policies
from app.auth import session_key
from app.errors import ApiError, AuthenticationError, BusinessError, PolicyViolationError, RequestError
from app.idempotency import Ticket
from app.identifiers import derived_id, new_reference, random_id
from app.keys import Principal
from app.models.payments import PayFromWallet, Payment, TransactionStatus
from app.money import format_usdc
from app.plans import Outcome, Plan, RefusedError, nothing
from app.recipients import Payee, resolve
from app.refusals import business_error, error_name, is_known, rule_of, violation
from app.service import Service
from app.store.approvals import Approval, open_approval
from app.store.attempts import Attempt, insert_attempt
from app.store.feed import append_event
from app.store.transactions import Transaction
from app.store.wallets import Wallet
from app.timestamps import iso_ms, now_ms
from app.token_accounts import count_creation, may_create

_CO_SIGN = "require_co_sign"
#: Errors that say that the read models lag behind the chain.
_STALE = frozenset({"WrongPolicy", "WrongAllowlist", "RecipientAccountRequired"})


@dataclass(frozen=True, slots=True)
class _Order:
    """A payment that was asked for: from which wallet to whom, and who signs.

    ``signer`` is the address of the session's key or the operator's; to compute it from the key takes long.
    """

    wallet: Wallet
    payee: Payee
    amount: int
    memo: str | None
    session: Keypair | None
    signer: Pubkey
    may_co_sign: bool


async def pay(
    service: Service, principal: Principal, ticket: Ticket, *, wallet_id: str, body: PayFromWallet, token: str | None
) -> Payment:
    """Make a payment and answer when it is confirmed, or as `pending` when that takes too long.

    Raises ``policy_violation`` when the policy refuses; then nothing was sent and the refusal is on record.
    """
    paying, session = _signer(service, principal, wallet_id, token)
    outcome = await service.submitter.resume(ticket)
    if outcome is None:
        if paying.archived:
            raise BusinessError("wallet_archived")
        payee = await resolve(service, principal.org, body.to)
        if str(payee.owner) == paying.vault:
            raise RequestError("invalid_recipient", "A wallet does not pay itself.")
        signer = service.signers.operator_address
        if session is not None and paying.session_authority is not None:
            signer = Pubkey.from_string(paying.session_authority)
        order = _Order(paying, payee, body.amount, body.memo, session, signer, principal.role != "agent")
        async with service.submitter.lock(wallet_id):
            outcome = await _send(service, ticket, order)
        outcome = await service.submitter.wait(outcome, ticket)
    if outcome.status == "failed":
        raise await _landed_refused(service, paying, outcome)
    return _answer(outcome)


def _signer(service: Service, principal: Principal, wallet_id: str, token: str | None) -> tuple[Wallet, Keypair | None]:
    try:
        paying = service.wallet_cache.get(principal.org, wallet_id)
        return paying, session_key(principal, token, paying)
    except AuthenticationError:
        # The session may be newer than what is remembered.
        paying = service.wallet_cache.fresh(principal.org, wallet_id)
        return paying, session_key(principal, token, paying)


async def _send(service: Service, ticket: Ticket, order: _Order) -> Outcome:
    """Rehearse and send, in the form that the payment needs.

    The plain form comes first. Only when the rehearsal names what is missing, the payee's token account or the
    operator's co-signature, it is added and the payment rehearsed again.
    """
    creates, co_signed, refreshed, approval = False, False, False, None
    while True:
        plan = _plan(service, order, creates=creates, co_signed=co_signed, approval=approval)
        try:
            return await service.submitter.send(plan, ticket)
        except RefusedError as refused:
            rule = rule_of(service.codec, refused)
            if rule == _CO_SIGN and order.session is not None and not co_signed and approval is None:
                co_signed = order.may_co_sign
                approval = None if co_signed else _approval(service, order)
                if co_signed or approval is not None:
                    continue
            if rule is not None:
                raise await _blocked(service, order, refused) from None
            name = error_name(service.codec, refused)
            if name == "Unauthorized" and order.session is not None:
                raise AuthenticationError("session_token_invalid") from None
            if not refreshed and name in _STALE:
                # The wallet's policy was changed past this service, or a moment ago.
                await service.indexer.catch_up()
                await service.projector.catch_up()
                order = replace(order, wallet=service.wallet_cache.fresh(order.wallet.org, order.wallet.wallet_id))
                refreshed = True
                continue
            if (
                not creates
                and not is_known(name)
                and await may_create(service, order.wallet.wallet_id, order.payee.owner)
            ):
                creates = True
                continue
            raise business_error(service.codec, refused) from None


def _plan(service: Service, order: _Order, *, creates: bool, co_signed: bool, approval: Approval | None) -> Plan:
    paying, owner = order.wallet, order.payee.owner
    rules, allowlist = paying.policy.rules, paying.policy.allowlist
    org = Pubkey.from_string(paying.org)
    build, operator = service.instructions(paying.org), service.signers.operator
    signer = order.session or operator
    reference = new_reference()
    payment = build.execute_payment(
        signer=order.signer,
        policy=Pubkey.from_string(paying.policy.address),
        vault=Pubkey.from_string(paying.vault),
        destination=service.addresses.token_account(owner),
        amount=order.amount,
        reference=reference,
        allowlist=Pubkey.from_string(allowlist) if allowlist else None,
        recipient=service.addresses.recipient(org, owner) if rules.blocked_categories or rules.restricted else None,
        co_signer=service.signers.operator_address if co_signed else None,
        approval=Pubkey.from_string(approval.address) if approval else None,
        approval_rent_receiver=Pubkey.from_string(approval.payer) if approval else None,
    )
    front = [build.create_token_account(payer=service.signers.fee_payer_address, owner=owner)] if creates else []
    return Plan(
        org=paying.org,
        type="payment",
        instructions=[*front, payment],
        signers=[signer, operator] if co_signed else [signer],
        event_instruction=len(front),
        wallet_id=paying.wallet_id,
        recipient=order.payee.name,
        recipient_address=str(order.payee.owner),
        amount=order.amount,
        policy_id=paying.policy.policy_id,
        policy_triggered=co_signed or approval is not None,
        memo=order.memo,
        reference=reference,
        attested=order.session is not None,
        also=(lambda conn: count_creation(conn, paying.wallet_id)) if creates else nothing,
    )


def _approval(service: Service, order: _Order) -> Approval | None:
    now = int(time.time())
    paying = order.wallet
    return service.db.read(
        lambda conn: open_approval(conn, paying.org, paying.vault, str(order.payee.owner), order.amount, now)
    )


async def _blocked(service: Service, order: _Order, refused: RefusedError) -> ApiError:
    """Put a refusal on record: a `blocked` row and its event; answers the error to raise."""
    paying = order.wallet
    policy = policies.find(service, paying.org, paying.policy.policy_id)
    found = violation(service.codec, refused.simulation.logs, policy)
    if found is None:
        return business_error(service.codec, refused)
    now = now_ms()
    blocked = Attempt(
        tx_id=random_id("tx_"),
        org=paying.org,
        wallet_id=paying.wallet_id,
        type="payment",
        status="blocked",
        recipient=order.payee.name,
        recipient_address=str(order.payee.owner),
        amount=order.amount,
        policy_id=policy.policy_id,
        policy_triggered=True,
        memo=order.memo,
        violation=found,
        created_at=now,
    )

    def record(conn: Connection) -> None:
        insert_attempt(conn, blocked)
        append_event(
            conn,
            event_id=derived_id("evt_", blocked.tx_id, "transaction.blocked"),
            org=blocked.org,
            type="transaction.blocked",
            timestamp=now,
            wallet_id=blocked.wallet_id,
            summary=f"{format_usdc(blocked.amount)} USDC to {blocked.recipient} refused by {found['rule']}",
            payload={
                "wallet_id": blocked.wallet_id,
                "tx_id": blocked.tx_id,
                "attempted_amount": format_usdc(blocked.amount),
                "recipient": blocked.recipient,
                "violation": found,
                "timestamp": iso_ms(now),
            },
        )

    await service.db.write(record)
    return PolicyViolationError(violation=found, wallet_id=paying.wallet_id, policy_id=policy.policy_id)


async def _landed_refused(service: Service, paying: Wallet, outcome: Outcome) -> ApiError:
    """Return the error for a payment that passed the rehearsal and was refused when it landed."""
    if rule_of(service.codec, outcome) is None:
        return business_error(service.codec, outcome)
    landed = await service.chain.call(
        "getTransaction",
        [
            outcome.attempt.signature,
            {"commitment": "confirmed", "encoding": "base64", "maxSupportedTransactionVersion": 0},
        ],
    )
    policy = policies.find(service, paying.org, paying.policy.policy_id)
    found = violation(service.codec, landed["meta"]["logMessages"], policy) if landed else None
    if found is None:
        return business_error(service.codec, outcome)
    return PolicyViolationError(
        violation=found, wallet_id=paying.wallet_id, policy_id=outcome.attempt.policy_id or policy.policy_id
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


def payment_of(row: Transaction) -> Payment:
    """Return a transaction as the payment requests answer it."""
    return Payment(
        tx_id=row.tx_id,
        id=row.tx_id,
        wallet_id=row.wallet_id,
        recipient=row.recipient or row.recipient_address or "",
        amount=format_usdc(row.amount),
        currency="USDC",
        status=cast(TransactionStatus, row.status),
        tx_signature=row.tx_signature,
        on_chain_slot=row.on_chain_slot,
        policy_triggered=row.policy_triggered,
        memo=row.memo,
        timestamp=iso_ms(row.timestamp),
    )
