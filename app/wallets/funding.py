"""Moves money between the organisation's reserve and its wallets."""

from collections.abc import Awaitable, Callable

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import ApiError, AuthenticationError
from app.core.identifiers import EVENT_INNER_INDEX, new_reference, transaction_id
from app.core.money import format_usdc
from app.core.timestamps import DAY
from app.core.transaction_types import FUNDING, WITHDRAWAL
from app.store.attempts import Attempt
from app.store.organisations import reserve_balance
from app.store.transactions import funded_since, transaction
from app.store.wallets import WalletRecord
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.plan import Outcome, Plan, PlanType, SimulationFailedError
from app.submission.program_errors import business_error
from app.wallets import service as wallets
from app.wallets.models import (
    MAX_ALLOCATIONS,
    Funded,
    FundedBatch,
    FundWallet,
    FundWallets,
    WithdrawFromWallet,
    Withdrawn,
)
from idl.transactions import message_hash

_FUND = PlanType(FUNDING, projected=True)
FUND_BATCH = PlanType("fund_batch")
_WITHDRAW = PlanType(WITHDRAWAL, projected=True)
PLAN_TYPES = (_FUND, FUND_BATCH, _WITHDRAW)
#: More precise codes for errors of a transfer from a wallet to the reserve.
_INSTEAD = {
    "wallet_insufficient_balance": "withdrawal_exceeds_balance",
    # The program's error for a withdrawal of `all` from an empty wallet.
    "invalid_amount": "withdrawal_exceeds_balance",
}


async def fund(
    service: Service,
    principal: Principal,
    claim: Claim,
    wallet_id: str,
    body: FundWallet,
    *,
    daily_sum: int | None = None,
) -> Funded:
    """Move USDC from the reserve into a wallet. Raises ``org_insufficient_balance`` if the reserve holds less.

    Raises ``step_up_required`` if the wallet would receive more than ``daily_sum`` micro-USDC within 24 hours.
    """

    def check(conn: Connection, attempt: Attempt) -> None:
        # The attempt's own row is already stored, and concurrent fundings are stored one at a time.
        if daily_sum is not None and funded_since(conn, wallet_id, attempt.created_at - DAY) > daily_sum:
            raise AuthenticationError("step_up_required")

    async def plan() -> Plan:
        receiving = await wallets.find_living(service, principal.org, wallet_id)
        reference = new_reference()
        return Plan(
            org=principal.org,
            type=_FUND,
            instructions=[_funding(service, receiving, body.amount, reference)],
            signers=[service.signers.operator],
            wallet_id=wallet_id,
            recipient=receiving.vault,
            amount=body.amount,
            policy_id=receiving.policy.policy_id,
            entry=principal.entry("wallet.fund", wallet_id, amount=format_usdc(body.amount)),
            reference=reference,
            on_store=check,
        )

    outcome = await _move(service, claim, plan, wallet_id)
    return await _funded(service, outcome, wallet_id, outcome.attempt.tx_id, outcome.attempt.amount)


async def fund_batch(service: Service, principal: Principal, claim: Claim, body: FundWallets) -> FundedBatch:
    """Fund several wallets from the reserve in one transaction: all of them or none.

    The transaction has a single attempt. The wallets' rows follow from the transaction's events. Raises
    ``org_insufficient_balance`` if the reserve holds less than the sum of the allocations.
    """

    async def plan() -> Plan:
        receiving = [await _living(service, principal.org, one.wallet_id) for one in body.allocations]
        references = [new_reference() for _ in receiving]
        return Plan(
            org=principal.org,
            type=FUND_BATCH,
            instructions=[
                _funding(service, wallet, one.amount, reference)
                for wallet, one, reference in zip(receiving, body.allocations, references, strict=True)
            ],
            signers=[service.signers.operator],
            amount=sum(one.amount for one in body.allocations),
            entry=principal.entry("wallet.fund", principal.org, allocations=_listed(body)),
            reference=references[0],
        )

    outcome = await _move(service, claim, plan, *(one.wallet_id for one in body.allocations))
    assert outcome.attempt.raw is not None
    message = message_hash(outcome.attempt.raw)
    funded = []
    for index, one in enumerate(body.allocations):
        tx_id = transaction_id(message, index, EVENT_INNER_INDEX, FUNDING)
        funded.append(await _funded(service, outcome, one.wallet_id, tx_id, one.amount))
    return FundedBatch(
        funded=funded,
        org_balance_remaining=await _reserve(service, principal.org),
        tx_signature=outcome.attempt.signature or "",
        status=outcome.status,
    )


async def withdraw(
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: WithdrawFromWallet
) -> Withdrawn:
    """Move USDC from a wallet back into the reserve. Also works for a frozen or archived wallet.

    Raises ``withdrawal_exceeds_balance`` if the wallet holds less or nothing.
    """

    async def plan() -> Plan:
        source = await wallets.find(service, principal.org, wallet_id)
        build, reference = service.instructions(principal.org), new_reference()
        instruction = build.withdraw(
            operator=service.signers.operator_address,
            vault=Pubkey.from_string(source.vault),
            amount=body.amount,
            reference=reference,
        )
        return Plan(
            org=principal.org,
            type=_WITHDRAW,
            instructions=[instruction],
            signers=[service.signers.operator],
            wallet_id=wallet_id,
            recipient=str(build.reserve_tokens),
            amount=source.balance if body.amount is None else body.amount,
            policy_id=source.policy.policy_id,
            entry=principal.entry("wallet.withdraw", wallet_id, amount=_named(body.amount)),
            reference=reference,
        )

    outcome = await _move(service, claim, plan, wallet_id)
    moved = outcome.attempt
    # For `all`, the event states the wallet's actual balance.
    row = await service.db.read(lambda conn: transaction(conn, moved.org, moved.tx_id))
    after = await wallets.find(service, principal.org, wallet_id)
    return Withdrawn.of(
        after,
        warnings=wallets.warnings(after),
        transaction_status=outcome.status,
        tx_id=moved.tx_id,
        tx_signature=moved.signature or "",
        withdrawn_amount=moved.amount if row is None else row.amount,
        org_balance_remaining=await _reserve(service, principal.org),
    )


def _named(amount: int | None) -> str:
    return "all" if amount is None else format_usdc(amount)


def _listed(body: FundWallets) -> list[dict[str, str]]:
    """Return a batch's allocations in the form in which the audit log lists them."""
    return [{"wallet_id": one.wallet_id, "amount": format_usdc(one.amount)} for one in body.allocations]


def row_ids(attempt: Attempt) -> set[str]:
    """Return all row ids that a funding of several wallets can produce."""
    assert attempt.raw is not None
    message = message_hash(attempt.raw)
    return {transaction_id(message, index, EVENT_INNER_INDEX, FUNDING) for index in range(MAX_ALLOCATIONS)}


async def _living(service: Service, org: str, wallet_id: str) -> WalletRecord:
    """Return an unarchived wallet of a batch. An error has the wallet's id in its fields."""
    try:
        return await wallets.find_living(service, org, wallet_id)
    except ApiError as error:
        error.fields["wallet_id"] = wallet_id
        raise


def _funding(service: Service, receiving: WalletRecord, amount: int, reference: bytes) -> Instruction:
    return service.instructions(receiving.org).fund_wallet(
        operator=service.signers.operator_address,
        vault=Pubkey.from_string(receiving.vault),
        amount=amount,
        reference=reference,
    )


async def _move(service: Service, claim: Claim, plan_of: Callable[[], Awaitable[Plan]], *wallet_ids: str) -> Outcome:
    """Send the plan, unless an earlier run of the request has sent one, and return the outcome: confirmed or pending.

    The plan is made only if no earlier run's transaction has landed or can still land, because making the plan may
    refuse the request.
    """
    try:
        outcome = await service.submitter.resume(claim)
        if outcome is None:
            plan = await plan_of()
            async with service.locks.hold(LockScope.WALLET_SENDING, *wallet_ids):
                outcome = await service.submitter.send(plan, claim)
            outcome = await service.submitter.wait(outcome, claim)
    except SimulationFailedError as refused:
        raise business_error(service.codec, refused, instead=_INSTEAD) from None
    if outcome.status == "failed":
        raise business_error(service.codec, outcome, instead=_INSTEAD)
    # A replay reports the final outcome.
    claim.open_ended = outcome.status == "pending"
    return outcome


async def _funded(service: Service, outcome: Outcome, wallet_id: str, tx_id: str, amount: int) -> Funded:
    after = await wallets.find(service, outcome.attempt.org, wallet_id)
    return Funded.of(
        after,
        tx_id=tx_id,
        tx_signature=outcome.attempt.signature or "",
        status=outcome.status,
        funded_amount=amount,
        org_balance_remaining=await _reserve(service, outcome.attempt.org),
    )


async def _reserve(service: Service, org: str) -> str:
    return format_usdc(await service.db.read(lambda conn: reserve_balance(conn, org)))
