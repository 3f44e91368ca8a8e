"""Creates, finds and shows escrows between agents. ``app.escrows.settlement`` completes, disputes and resolves them."""

import hashlib
from functools import partial

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.auth import authorise_wallet
from app.access.keyring import Principal
from app.api.fields import optional
from app.api.operation import Call
from app.approvals.models import EscrowTerms
from app.chain.addresses import parse_address
from app.chain.escrow_instructions import PROOF_KINDS, output_commitment, terms_hash
from app.chain.fees import ESCROW_RENT
from app.core.errors import NotFoundError, UnavailableError
from app.core.identifiers import ESCROW_EVENT_INNER_INDEX, escrow_id, is_id
from app.core.transaction_types import ESCROW_LOCK
from app.escrows.models import (
    MAX_TIMEOUT,
    CreateEscrow,
    Dispute,
    Escrow,
    EscrowPage,
    ListEscrows,
)
from app.payments.expenses import ExpenseRequest
from app.payments.refusals import unverified_refusal
from app.payments.sending import admit, set_aside, submit_expense
from app.payments.token_accounts import lacks_token_account
from app.recipients.service import Payee, payee_of
from app.store.attempts import Attempt
from app.store.escrows import (
    PENDING,
    EscrowFilter,
    EscrowRecord,
    delete_pending_escrow,
    disputes,
    escrow,
    escrow_of_transaction,
    escrows,
    insert_pending_escrow,
    remember_task,
)
from app.store.organisations import reserve
from app.store.wallets import WalletRecord, wallet, wallet_by_vault
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.plan import Outcome, Plan, PlanType
from app.submission.program_errors import invalid_recipient
from app.wallets import service as wallets

LOCK = PlanType(
    ESCROW_LOCK,
    projected=True,
    braked=True,
    # While a creation is pending, the wallet's next escrow would get the same address.
    waits_for=frozenset({ESCROW_LOCK}),
    held=ESCROW_RENT,
    on_failed=lambda conn, attempt: delete_pending_escrow(conn, attempt.tx_id),
)


async def create(call: Call, body: CreateEscrow) -> Escrow:
    """Lock money for a task. Returns once the money is locked, or with status `pending` if that takes too long.

    Raises ``policy_violation`` if the policy refuses. After a refusal in simulation, nothing was sent, and the refusal
    is recorded. After a late refusal, the attempt is recorded as failed.
    """
    authorise_wallet(call.principal, body.from_wallet)
    made = await set_aside(call, body.from_wallet, lambda: _lock(call, body), escrow_of_transaction)
    return shown(made, call.principal)


async def _lock(call: Call, body: CreateEscrow) -> Outcome:
    service, most = call.service, call.service.settings.max_waiting_payments
    # One at a time, because an escrow's address is derived from the wallet's escrow counter.
    async with service.locks.hold(LockScope.WALLET_ESCROWS, body.from_wallet, most_waiting=most):
        paying, session = await admit(call, LOCK, body.from_wallet)
        payee, opens = await _payee(service, paying, body.to_wallet)
        expense = ExpenseRequest(
            paying,
            payee,
            body.amount,
            purpose="escrow",
            kind=LOCK,
            call=call,
            memo=body.memo,
            session=session,
            allows_unverified=body.allow_unverified_recipient,
            terms=await _terms(service, paying.org, body),
        )
        expense.refusal = await unverified_refusal(expense) if opens else None
        return await submit_expense(expense, partial(_plan, body))


async def _payee(service: Service, paying: WalletRecord, to: str) -> tuple[Payee, bool]:
    """Return the receiver, and True if it has no token account yet.

    Raises ``invalid_recipient`` if the receiver is unknown, cannot receive USDC or is the paying wallet, and
    ``wallet_archived`` if the receiver is an archived wallet.
    """
    org, address = paying.org, parse_address(to)
    if address is None and not is_id("wal_", to):
        raise invalid_recipient("toWallet", "The receiver must be a wallet id or a chain address, not a domain.")
    find = wallet if address is None else wallet_by_vault
    found = await service.db.read(lambda conn: find(conn, org, to, service.clock.seen_ms()))
    if found is None and address is not None:
        # The receiver's token account is opened, and counted towards the wallet's limit, at the release. If it could
        # not be opened, the request is refused now, while the requester can still choose another receiver.
        return Payee(address, to), await lacks_token_account(service, paying.wallet_id, address)
    payee = payee_of(found, "toWallet")
    if payee.wallet_id == paying.wallet_id:
        raise invalid_recipient("toWallet", "A wallet cannot create an escrow for itself.")
    return payee, False


async def _terms(service: Service, org: str, body: CreateEscrow) -> EscrowTerms:
    """Return the terms that an approval of the escrow covers. The verifier and arbiter are the organisation's."""
    roles = await service.db.read(lambda conn: reserve(conn, org))
    if roles is None:
        raise UnavailableError("chain_unavailable")
    task, expected = _task_hash(body), optional(parse_hash, body.expected_output_hash)
    commitment = optional(output_commitment, expected)
    named = [Pubkey.from_string(one) for one in (roles.verifier, roles.arbiter)]
    return EscrowTerms(
        hash=terms_hash(task, commitment, _kinds(body), _timeout(body), *named).hex(),
        task_description=body.task_description,
        task_hash=task.hex(),
        output_commitment=optional(bytes.hex, commitment),
        proof_types=sorted(set(body.proof_types)),
        timeout_seconds=body.timeout_seconds,
        verifier=roles.verifier,
        arbiter=roles.arbiter,
    )


def _task_hash(body: CreateEscrow) -> bytes:
    return hashlib.sha256(body.task_description.encode()).digest()


def _kinds(body: CreateEscrow) -> int:
    return sum(1 << PROOF_KINDS.index(name) for name in set(body.proof_types))


def _timeout(body: CreateEscrow) -> int:
    # The chain's clock counts whole seconds. Add the second that has already begun, if the program permits it.
    return min(body.timeout_seconds + 1, MAX_TIMEOUT)


def _plan(body: CreateEscrow, expense: ExpenseRequest) -> Plan:
    service, paying, payee = expense.service, expense.wallet, expense.payee
    vault, payer = Pubkey.from_string(paying.vault), service.signers.fee_payer_address
    address = service.addresses.escrow(vault, paying.escrow_counter)
    expected = optional(parse_hash, body.expected_output_hash)
    task_hash, kinds, timeout = _task_hash(body), _kinds(body), _timeout(body)
    instruction = service.instructions(paying.org).create_escrow(
        payer=payer,
        receiver=payee.owner,
        counter=paying.escrow_counter,
        task_hash=task_hash,
        proof_kinds=kinds,
        timeout=timeout,
        expected_output=expected,
        **expense.arguments(),
    )

    def store(conn: Connection, attempt: Attempt) -> None:
        pending = EscrowRecord(
            escrow_id=escrow_id(address),
            org=paying.org,
            address=str(address),
            wallet_id=paying.wallet_id,
            vault=paying.vault,
            receiver=str(payee.owner),
            to_wallet=payee.wallet_id,
            payer=str(payer),
            policy=paying.policy.address,
            amount=expense.amount,
            task_hash=task_hash.hex(),
            output_commitment=None if expected is None else output_commitment(expected).hex(),
            proof_kinds=kinds,
            counter=paying.escrow_counter,
            status=PENDING,
            deadline=service.clock.now() + timeout,
            created_at=attempt.created_at,
            tx_id=attempt.tx_id,
            signature=attempt.signature,
        )
        remember_task(conn, pending.escrow_id, body.task_description, optional(bytes.hex, expected))
        insert_pending_escrow(conn, pending)

    return expense.plan([instruction], store, event_inner=ESCROW_EVENT_INNER_INDEX)


async def find(service: Service, principal: Principal, identifier: str) -> EscrowRecord:
    """Return an escrow. Raises ``escrow_not_found``, also for an agent if its wallet is on neither side."""
    found = await service.db.read(lambda conn: escrow(conn, principal.org, identifier))
    if found is None or principal.wallet_id not in (None, found.wallet_id, found.to_wallet):
        raise NotFoundError("escrow_not_found")
    return found


async def get(service: Service, principal: Principal, identifier: str) -> Escrow:
    """Return an escrow in the API's form. Raises the errors of ``find``."""
    return shown(await find(service, principal, identifier), principal)


async def page(service: Service, principal: Principal, query: ListEscrows) -> EscrowPage:
    """Return one page of escrows, newest first. Raises ``wallet_not_found``.

    An agent sees only the escrows that its wallet pays or receives.
    """
    if query.wallet_id is not None:
        await wallets.require(service, principal.org, query.wallet_id)
    chosen = EscrowFilter(wallet_id=query.wallet_id or principal.wallet_id, status=query.status)
    found = await service.db.read(
        lambda conn: escrows(conn, principal.org, chosen, limit=query.limit, cursor=query.cursor)
    )
    return EscrowPage.showing(found, lambda one: shown(one, principal))


async def queue(service: Service, principal: Principal, *, limit: int) -> list[Escrow]:
    """Return the disputes that wait for the arbiter. The longest-waiting dispute comes first."""
    found = await service.db.read(lambda conn: disputes(conn, principal.org, limit=limit))
    return [shown(one, principal) for one in found]


def shown(found: EscrowRecord, reader: Principal) -> Escrow:
    """Return an escrow in the API's form.

    Until the escrow is settled, the receiving agent does not see the expected output hash, because that hash alone
    would let it claim the money.
    """
    hidden = reader.wallet_id not in {None, found.wallet_id} and found.settled_at is None
    values = {"expected_output_hash": None} if hidden else {}
    return Escrow.of(
        found,
        to_wallet=found.to,
        dispute=_dispute(found),
        settled_at=_moment(found, found.settled_at),
        **values,
    )


def parse_hash(text: str) -> bytes:
    """Return the 32 bytes of a hash in the form ``sha256:<hex>``."""
    return bytes.fromhex(text.removeprefix("sha256:"))


def _moment(found: EscrowRecord, seconds: int | None) -> int | None:
    # The chain's clock counts whole seconds, so an event may seem older than the escrow. Show the creation time then.
    return None if seconds is None else max(seconds * 1000, found.created_at)


def _dispute(found: EscrowRecord) -> Dispute | None:
    if found.disputed_at is None:
        return None
    moment = _moment(found, found.disputed_at)
    return Dispute.of(found, raised_by=found.disputed_for or found.disputed_by, raised_at=moment)
