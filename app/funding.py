"""Money between the organisation's reserve and its wallets."""

from solders.pubkey import Pubkey

from app import wallets
from app.chain.instructions import Instructions
from app.idempotency import Ticket
from app.identifiers import new_reference
from app.keys import Principal
from app.models.wallets import Funded, FundWallet, WithdrawFromWallet, Withdrawn
from app.money import format_usdc
from app.plans import Outcome, Plan, RefusedError
from app.refusals import business_error
from app.service import Service
from app.store.organisations import reserve_balance
from app.store.transactions import transaction
from app.store.wallets import Wallet


async def fund(service: Service, principal: Principal, ticket: Ticket, wallet_id: str, body: FundWallet) -> Funded:
    """Move USDC from the reserve into a wallet. Raises ``org_insufficient_balance``."""
    receiving = wallets.find_living(service, principal.org, wallet_id)
    reference = new_reference()
    instruction = _build(service, receiving).fund_wallet(
        operator=service.signers.operator_address,
        vault=Pubkey.from_string(receiving.vault),
        amount=body.amount,
        reference=reference,
    )
    plan = Plan(
        org=principal.org,
        type="funding",
        instructions=[instruction],
        signers=[service.signers.operator],
        wallet_id=wallet_id,
        recipient=receiving.vault,
        amount=body.amount,
        policy_id=receiving.policy.policy_id,
        reference=reference,
    )
    outcome = await _move(service, ticket, plan)
    moved = outcome.attempt
    after = wallets.find(service, principal.org, wallet_id)
    return Funded(
        wallet_id=wallet_id,
        id=wallet_id,
        tx_id=moved.tx_id,
        tx_signature=moved.signature or "",
        status=outcome.status,
        funded_amount=format_usdc(moved.amount),
        usdc_balance=format_usdc(after.balance),
        org_balance_remaining=_reserve(service, principal.org),
    )


async def withdraw(
    service: Service, principal: Principal, ticket: Ticket, wallet_id: str, body: WithdrawFromWallet
) -> Withdrawn:
    """Move USDC from a wallet back into the reserve; works for frozen and archived wallets too.

    Raises ``withdrawal_exceeds_balance``.
    """
    source = wallets.find(service, principal.org, wallet_id)
    reference = new_reference()
    instruction = _build(service, source).withdraw(
        operator=service.signers.operator_address,
        vault=Pubkey.from_string(source.vault),
        amount=body.amount,
        reference=reference,
    )
    plan = Plan(
        org=principal.org,
        type="withdrawal",
        instructions=[instruction],
        signers=[service.signers.operator],
        wallet_id=wallet_id,
        recipient=str(service.instructions(principal.org).reserve_tokens),
        amount=source.balance if body.amount is None else body.amount,
        policy_id=source.policy.policy_id,
        reference=reference,
    )
    outcome = await _move(service, ticket, plan)
    moved = outcome.attempt
    # `all` is what the wallet turned out to hold, which its event tells.
    row = service.db.read(lambda conn: transaction(conn, moved.org, moved.tx_id))
    after = wallets.find(service, principal.org, wallet_id)
    return Withdrawn(
        **wallets.detail(after).model_dump(),
        transaction_status=outcome.status,
        tx_id=moved.tx_id,
        tx_signature=moved.signature or "",
        withdrawn_amount=format_usdc(moved.amount if row is None else row.amount),
        org_balance_remaining=_reserve(service, principal.org),
    )


def _build(service: Service, found: Wallet) -> Instructions:
    return service.instructions(found.org)


async def _move(service: Service, ticket: Ticket, plan: Plan) -> Outcome:
    assert plan.wallet_id is not None
    codes = {
        "wallet_insufficient_balance": "withdrawal_exceeds_balance",
        # Nothing to withdraw: `all` of an empty wallet is refused like any amount above its balance.
        "invalid_amount": "withdrawal_exceeds_balance",
    }
    try:
        outcome = await service.submitter.resume(ticket)
        if outcome is None:
            async with service.submitter.lock(plan.wallet_id):
                outcome = await service.submitter.send(plan, ticket)
            outcome = await service.submitter.wait(outcome, ticket)
    except RefusedError as refused:
        raise _error(service, refused, codes) from None
    if outcome.status == "failed":
        raise _error(service, outcome, codes)
    return outcome


def _error(service: Service, failure: RefusedError | Outcome, codes: dict[str, str]) -> Exception:
    return business_error(service.codec, failure, instead=codes)


def _reserve(service: Service, org: str) -> str:
    return format_usdc(service.db.read(lambda conn: reserve_balance(conn, org)))
