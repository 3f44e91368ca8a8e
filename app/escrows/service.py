"""Escrows between agents: made, looked up and shown. How they end is in ``app.escrows.outcomes``."""

import hashlib
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.auth import authorise_wallet, session_key
from app.access.keyring import Principal
from app.chain.escrow_instructions import PROOF_KINDS, output_commitment
from app.core.errors import BusinessError, NotFoundError, UnavailableError
from app.core.identifiers import ESCROW_EVENT_INNER_INDEX, escrow_id, is_id, new_reference
from app.core.money import format_usdc
from app.core.timestamps import iso, iso_ms, now_ms
from app.escrows.models import (
    MAX_TIMEOUT,
    CreateEscrow,
    Dispute,
    Escrow,
    EscrowPage,
    EscrowStatus,
    ListEscrows,
    ProofType,
)
from app.payments.spending import Form, Order, landed_refused, order_of, send
from app.payments.token_accounts import may_create
from app.recipients.service import Payee, parse_address, receiving_wallet
from app.store.attempts import Attempt
from app.store.escrows import (
    PENDING,
    EscrowFilter,
    EscrowRecord,
    delete_pending_escrow,
    escrow,
    escrow_of_transaction,
    escrows,
    insert_pending_escrow,
    remember_task,
)
from app.store.transactions import A2A_SEND, ESCROW_LOCK
from app.store.wallets import WalletRecord, wallet_by_vault
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.locks import LockScope
from app.submission.ordering import wait_for_earlier
from app.submission.plan import Outcome, Plan, PlanType
from app.submission.refusals import invalid_recipient
from app.wallets import service as wallets

LOCK = PlanType(
    ESCROW_LOCK,
    projected=True,
    # The next escrow would be made at the same address.
    waits_for=frozenset({ESCROW_LOCK}),
    on_failed=lambda conn, attempt: delete_pending_escrow(conn, attempt.tx_id),
)


@dataclass(frozen=True, slots=True)
class _Terms:
    """What was asked for, and who receives."""

    body: CreateEscrow
    receiver: Pubkey
    to_wallet: str | None


async def create(service: Service, principal: Principal, claim: Claim, body: CreateEscrow, token: str | None) -> Escrow:
    """Lock money for a task and answer when it is locked, or as `pending` when that takes too long.

    Raises ``policy_violation`` when the policy refuses; then nothing was sent and the refusal is on record.
    """
    authorise_wallet(principal, body.from_wallet)
    paying = await wallets.find(service, principal.org, body.from_wallet)
    session = session_key(principal, token, paying)
    # One after the other, for an escrow's address follows from how many the wallet has made.
    async with service.locks.hold(LockScope.WALLET_ESCROWS, paying.wallet_id):
        outcome = await service.submitter.resume(claim)
        if outcome is None:
            outcome = await _lock(service, principal, claim, session, body)
    if outcome.status == "failed":
        raise await landed_refused(service, paying, outcome)
    tx_id = outcome.attempt.tx_id
    made = await service.db.read(lambda conn: escrow_of_transaction(conn, principal.org, tx_id))
    if made is None:
        raise UnavailableError("chain_unavailable", fields={"tx_id": tx_id})
    return shown(made, principal)


async def _lock(
    service: Service, principal: Principal, claim: Claim, session: Keypair | None, body: CreateEscrow
) -> Outcome:
    await wait_for_earlier(service, principal.org, LOCK.waits_for, wallet_id=body.from_wallet)
    paying = await wallets.find(service, principal.org, body.from_wallet)
    if paying.archived:
        raise BusinessError("wallet_archived")
    terms = await _terms(service, paying, body)
    payee = Payee(terms.receiver, str(terms.receiver))
    order = order_of(service, principal, paying, session, payee, body.amount, body.memo, row_type=A2A_SEND)
    async with service.locks.hold(LockScope.WALLET_SENDING, paying.wallet_id):
        outcome = await send(service, claim, order, partial(_plan, service, terms), opens=False)
    return await service.submitter.wait(outcome, claim)


async def _terms(service: Service, paying: WalletRecord, body: CreateEscrow) -> _Terms:
    """Find out who receives. Raises ``invalid_recipient`` and ``wallet_archived``."""
    receiving = await _receiving(service, paying.org, body.to_wallet)
    if receiving is not None:
        if receiving.vault == paying.vault:
            raise invalid_recipient("toWallet", "A wallet makes no escrow for itself.")
        return _Terms(body, Pubkey.from_string(receiving.vault), receiving.wallet_id)
    address = parse_address(body.to_wallet)
    if address is None:
        raise invalid_recipient("toWallet", "It must be a wallet id or a chain address, and no domain.")
    # Opened and counted at the release, but refused now, while the requester can still choose.
    await may_create(service, paying.wallet_id, address)
    return _Terms(body, address, None)


async def _receiving(service: Service, org: str, to: str) -> WalletRecord | None:
    """Return the organisation's wallet that is named by its id or its address; None for another address."""
    if parse_address(to) is not None:
        return await service.db.read(lambda conn: wallet_by_vault(conn, org, to, now_ms()))
    return await receiving_wallet(service, org, to, "toWallet") if is_id("wal_", to) else None


def _plan(service: Service, terms: _Terms, order: Order, form: Form) -> Plan:
    paying, body = order.wallet, terms.body
    vault, counter = Pubkey.from_string(paying.vault), paying.escrow_counter
    address = service.addresses.escrow(vault, counter)
    payer = service.signers.fee_payer_address
    task_hash = hashlib.sha256(body.task_description.encode()).digest()
    expected = None if body.expected_output_hash is None else hash_of(body.expected_output_hash)
    kinds = sum(1 << PROOF_KINDS.index(name) for name in set(body.proof_types))
    # The chain's clock counts whole seconds: the one that has begun is given on top, where the program takes it.
    timeout = min(body.timeout_seconds + 1, MAX_TIMEOUT)
    reference = new_reference()
    instruction = service.instructions(paying.org).create_escrow(
        payer=payer,
        signer=order.signer,
        policy=Pubkey.from_string(paying.policy.address),
        vault=vault,
        receiver=terms.receiver,
        counter=counter,
        amount=order.amount,
        reference=reference,
        task_hash=task_hash,
        proof_kinds=kinds,
        timeout=timeout,
        expected_output=expected,
        **form.accounts(service, order),
    )
    pending = EscrowRecord(
        escrow_id=escrow_id(address),
        org=paying.org,
        address=str(address),
        wallet_id=paying.wallet_id,
        vault=paying.vault,
        receiver=str(terms.receiver),
        to_wallet=terms.to_wallet,
        payer=str(payer),
        policy=paying.policy.address,
        amount=order.amount,
        task_hash=task_hash.hex(),
        output_commitment=None if expected is None else output_commitment(expected).hex(),
        proof_kinds=kinds,
        counter=counter,
        status=PENDING,
        deadline=int(time.time()) + timeout,
        created_at=now_ms(),
    )

    def store(conn: Connection, attempt: Attempt) -> None:
        remember_task(conn, pending.escrow_id, body.task_description, None if expected is None else expected.hex())
        made = replace(pending, tx_id=attempt.tx_id, signature=attempt.signature, created_at=attempt.created_at)
        insert_pending_escrow(conn, made)

    return Plan(
        org=paying.org,
        type=LOCK,
        instructions=[instruction],
        signers=form.signers(service, order),
        event_inner=ESCROW_EVENT_INNER_INDEX,
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


async def find(service: Service, principal: Principal, identifier: str) -> EscrowRecord:
    """Return an escrow. Raises ``escrow_not_found``, for an agent also when neither side is its wallet."""
    found = await service.db.read(lambda conn: escrow(conn, principal.org, identifier))
    if found is None or principal.wallet_id not in (None, found.wallet_id, found.to_wallet):
        raise NotFoundError("escrow_not_found")
    return found


async def get(service: Service, principal: Principal, identifier: str) -> Escrow:
    """Return an escrow as it is shown; see ``find``."""
    return shown(await find(service, principal, identifier), principal)


async def page(service: Service, principal: Principal, query: ListEscrows) -> EscrowPage:
    """One page of escrows, newest first; an agent sees those that its wallet pays or receives.

    Raises ``wallet_not_found`` when a wallet is named that the organisation does not have.
    """
    if query.wallet_id is not None:
        await wallets.require(service, principal.org, query.wallet_id)
    chosen = EscrowFilter(wallet_id=query.wallet_id or principal.wallet_id, status=query.status)
    found = await service.db.read(
        lambda conn: escrows(conn, principal.org, chosen, limit=query.limit, cursor=query.cursor)
    )
    return EscrowPage(
        data=[shown(one, principal) for one in found.data], has_more=found.has_more, next_cursor=found.next_cursor
    )


def shown(found: EscrowRecord, reader: Principal) -> Escrow:
    """Return an escrow as it is shown.

    The receiving agent does not see, before it is settled, the hash that the output must have: with that alone it
    could claim the money.
    """
    works = reader.wallet_id not in {None, found.wallet_id} and found.settled_at is None
    return Escrow(
        escrow_id=found.escrow_id,
        id=found.escrow_id,
        from_wallet=found.wallet_id,
        to_wallet=found.to,
        amount=format_usdc(found.amount),
        currency="USDC",
        status=cast(EscrowStatus, found.status),
        chain_address=found.address,
        expires_at=iso(found.deadline),
        created_at=iso_ms(found.created_at),
        tx_id=found.tx_id,
        tx_signature=found.signature,
        task_hash=f"sha256:{found.task_hash}",
        task_description=found.task_description,
        expected_output_hash=None if works else _hash(found.expected_output),
        proof_types=[_proof_type(kind) for kind in range(len(PROOF_KINDS)) if found.proof_kinds >> kind & 1],
        released_amount=None if found.released is None else format_usdc(found.released),
        refunded_amount=None if found.refunded is None else format_usdc(found.refunded),
        proof_type=None if found.proof_kind is None else _proof_type(found.proof_kind),
        output_hash=_hash(found.output_hash),
        output_url=found.output_url,
        dispute=_dispute(found),
        settled_at=_moment(found, found.settled_at),
        settlement_signature=found.settlement_signature,
    )


def hash_of(text: str) -> bytes:
    """Return the 32 bytes of a hash of the form ``sha256:<hex>``."""
    return bytes.fromhex(text.removeprefix("sha256:"))


def _dispute(found: EscrowRecord) -> Dispute | None:
    moment = _moment(found, found.disputed_at)
    if moment is None:
        return None
    return Dispute(
        reason=found.dispute_reason,
        evidence=_hash(found.evidence_hash),
        raised_by=found.disputed_for or found.disputed_by,
        raised_at=moment,
        tx_signature=found.dispute_signature or "",
    )


def _proof_type(kind: int) -> ProofType:
    return cast(ProofType, PROOF_KINDS[kind])


def _hash(digest: str | None) -> str | None:
    return None if digest is None else f"sha256:{digest}"


def _moment(found: EscrowRecord, seconds: int | None) -> str | None:
    # The chain's clock knows only seconds; nothing happens before the escrow was asked for.
    return None if seconds is None else iso_ms(max(seconds * 1000, found.created_at))
