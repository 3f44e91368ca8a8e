"""Sets a wallet's money aside for a delegate.

A process makes one grant of a wallet at a time. The number of a wallet's grants in 24 hours is limited.
"""

from dataclasses import replace

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.api.operation import Call
from app.chain.fees import ALLOWANCE_RENT
from app.core.errors import BusinessError
from app.core.identifiers import ALLOWANCE_EVENT_INNER_INDEX, allowance_id
from app.core.money import format_usdc
from app.core.timestamps import DAY
from app.core.transaction_types import GRANT as GRANT_NAME
from app.payments.expenses import ExpenseRequest
from app.payments.sending import admit
from app.store.allowances import (
    PENDING,
    AllowanceRecord,
    count_granted,
    delete_pending_allowance,
    insert_pending_allowance,
)
from app.store.attempts import Attempt
from app.store.wallets import WalletRecord
from app.submission.context import Service
from app.submission.locks import Held, LockScope
from app.submission.plan import Hook, Plan, PlanType, nothing

GRANT = PlanType(
    GRANT_NAME,
    projected=True,
    braked=True,
    # While a grant is pending, the wallet's next allowance would get the same address.
    waits_for=frozenset({GRANT_NAME}),
    held=ALLOWANCE_RENT,
    on_failed=lambda conn, attempt: delete_pending_allowance(conn, attempt.tx_id),
)


def granting(service: Service, wallet_id: str) -> Held:
    """Return the lock for a wallet's grants.

    Only one grant runs at a time in a process, because an allowance's address is derived from the wallet's counter.
    """
    most = service.settings.max_waiting_payments
    return service.locks.hold(LockScope.WALLET_ALLOWANCES, wallet_id, most_waiting=most)


async def admit_grant(call: Call, wallet_id: str) -> tuple[WalletRecord, Keypair | None]:
    """Return the wallet, and the session's key if it signs, once a grant may be made. Call this within ``granting``.

    Raises ``too_many_allowances`` above the daily number, ``chain_unavailable`` while another grant is pending, and the
    errors of a payment from the wallet.
    """
    admitted = await admit(call, GRANT, wallet_id)
    await _require_room(call.service, wallet_id)
    return admitted


async def _require_room(service: Service, wallet_id: str) -> None:
    """Raise ``too_many_allowances`` if the wallet has reached its daily number of grants."""
    most, since = service.settings.allowances_per_day, await service.clock.moment_ms() - DAY
    if await service.db.read(lambda conn: count_granted(conn, wallet_id, since)) >= most:
        raise BusinessError(
            "too_many_allowances", f"The wallet has reached its limit of {most} allowances in 24 hours. Retry later."
        )


def grant_plan(
    expense: ExpenseRequest, destination: Pubkey, delegate: Pubkey, expires_at: int, also: Hook = nothing
) -> Plan:
    """Return the plan of a grant. The allowance ends no later than the policy and the session.

    ``also`` is a hook that joins the database transaction of the plan's attempt.
    """
    service, paying, signers = expense.service, expense.wallet, expense.service.signers
    vault, payer = Pubkey.from_string(paying.vault), signers.fee_payer_address
    address = service.addresses.allowance(vault, paying.allowance_counter)
    ends_at = min(expires_at, paying.policy.rules.expiry or expires_at)
    if expense.session is not None:
        ends_at = min(ends_at, paying.session_expires_at)
    arguments = expense.arguments()
    # The operator signs every grant in its own role, which is not a co-signature.
    del arguments["co_signer"]
    build = service.instructions(paying.org)
    front = [build.create_token_account(payer=payer, owner=expense.payee.owner)] if expense.opens_account else []
    instruction = build.grant_allowance(
        payer=payer,
        operator=signers.operator_address,
        destination=destination,
        delegate=delegate,
        counter=paying.allowance_counter,
        expires_at=ends_at,
        **arguments,
    )

    def store(conn: Connection, attempt: Attempt) -> None:
        pending = AllowanceRecord(
            allowance_id=allowance_id(address),
            org=paying.org,
            address=str(address),
            wallet_id=paying.wallet_id,
            vault=paying.vault,
            policy=paying.policy.address,
            recipient=str(expense.payee.owner),
            destination=str(destination),
            delegate=str(delegate),
            tokens=str(service.addresses.allowance_tokens(address)),
            payer=str(payer),
            reference=expense.reference.hex(),
            amount=expense.amount,
            counter=paying.allowance_counter,
            status=PENDING,
            expires_at=ends_at,
            created_at=attempt.created_at,
            tx_id=attempt.tx_id,
            signature=attempt.signature,
        )
        insert_pending_allowance(conn, pending)
        also(conn, attempt)

    entry = expense.principal.entry(
        "allowance.grant", allowance_id(address), amount=format_usdc(expense.amount), delegate=str(delegate)
    )
    plan = expense.plan(
        [*front, instruction], store, event_instruction=len(front), event_inner=ALLOWANCE_EVENT_INNER_INDEX
    )
    return replace(plan, entry=entry)
