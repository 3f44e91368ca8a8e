"""Allowances: operators grant them, clients settle them, and the keeper settles the rest."""

from collections.abc import Sequence

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.auth import authorise_wallet
from app.access.keyring import Principal
from app.allowances._events import append_overdue
from app.allowances.granting import GRANT, admit_grant, grant_plan, granting
from app.allowances.models import Allowance, AllowancePage, GrantAllowance, ListAllowances
from app.api.operation import Call
from app.chain.addresses import parse_address
from app.chain.allowance_instructions import OpenAllowance
from app.core.errors import NotFoundError, RequestError, UnavailableError
from app.core.identifiers import new_reference
from app.payments.expenses import ExpenseRequest
from app.payments.refusals import require_account
from app.payments.sending import set_aside, submit_expense
from app.recipients.service import Payee
from app.store.allowances import (
    OUTSTANDING,
    PENDING,
    AllowanceRecord,
    allowance,
    allowance_of_transaction,
    allowances,
)
from app.store.wallets import WalletRecord
from app.submission.chain_state import with_budget
from app.submission.changes import earlier_outcome, submit
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import Outcome, Plan, PlanType, SimulationFailedError
from app.submission.program_errors import business_error, invalid_recipient
from app.wallets import service as wallets

SETTLE = PlanType("settle_allowance", prepaid=True)
PLAN_TYPES = (GRANT, SETTLE)
OVERDUE_AFTER = 60
"""Seconds after its end until an unsettled allowance counts as overdue."""

#: Size of a token account, and the byte ranges of its mint and owner.
_TOKEN_ACCOUNT_SIZE, _MINT, _OWNER = 165, slice(0, 32), slice(32, 64)


async def grant(call: Call, wallet_id: str, body: GrantAllowance) -> Allowance:
    """Set money aside for a delegate. Returns once that is done, or with the status `pending` if it takes too long.

    Raises ``policy_violation`` if the policy refuses the grant. A refusal in simulation is recorded, and nothing is
    sent. After a late refusal, the attempt is recorded as failed.
    """
    return shown(await set_aside(call, wallet_id, lambda: _grant(call, wallet_id, body), allowance_of_transaction))


async def _grant(call: Call, wallet_id: str, body: GrantAllowance) -> Outcome:
    service = call.service
    async with granting(service, wallet_id):
        payer, session = await admit_grant(call, wallet_id)
        delegate = _delegate(service, payer, body.delegate)
        destination, owner, exists = await _destination(service, body.destination)
        if str(destination) == payer.tokens:
            raise invalid_recipient("destination", "A wallet cannot pay itself.")
        expires_at = (await service.chain.clock()).unix_timestamp + body.expires_in
        expense = ExpenseRequest(
            payer,
            Payee(owner, str(owner)),
            body.amount,
            purpose="allowance",
            kind=GRANT,
            call=call,
            memo=None,
            session=session,
            reference=new_reference() if body.reference is None else bytes.fromhex(body.reference),
            allows_unverified=body.allow_unverified_recipient,
        )
        if not exists:
            await require_account(
                expense, "destination", "The address is not a USDC account and has no associated one."
            )
        return await submit_expense(expense, lambda one: grant_plan(one, destination, delegate, expires_at))


def _delegate(service: Service, payer: WalletRecord, text: str) -> Pubkey:
    """Return the delegate's address.

    Raises ``invalid_request`` for text that is not an address, and for accounts that have another role in the grant.
    The program refuses some other addresses.
    """
    delegate = parse_address(text)
    if delegate is None:
        raise RequestError("invalid_request", "delegate: must be a chain address.")
    # The grant's transaction already contains these accounts in other roles, and it must not contain an account twice.
    named = (payer.vault, payer.tokens, payer.policy.address, payer.budget, str(service.signers.fee_payer_address))
    if text in named:
        raise RequestError(
            "invalid_request",
            "delegate: must not be the fee payer, or the wallet's vault, token account, policy or budget.",
        )
    return delegate


async def _destination(service: Service, text: str) -> tuple[Pubkey, Pubkey, bool]:
    """Return the token account to pay, its owner, and True if it exists.

    Raises ``invalid_recipient`` for text that is not an address.
    """
    given = parse_address(text)
    if given is None:
        raise invalid_recipient("destination", "The destination must be the address of a USDC account or of its owner.")
    addresses = service.addresses
    for tokens, account in zip(
        (given, addresses.token_account(given)),
        await service.chain.accounts([given, addresses.token_account(given)]),
        strict=True,
    ):
        data = b"" if account is None or account.owner != addresses.token_program else account.data
        if len(data) >= _TOKEN_ACCOUNT_SIZE and data[_MINT] == bytes(addresses.mint):
            return tokens, Pubkey.from_bytes(data[_OWNER]), True
    return addresses.token_account(given), given, False


async def settle(call: Call, wallet_id: str, identifier: str) -> Allowance:
    """Settle an allowance with the operator's key, unless it is settled already. An agent needs its session token.

    Raises ``chain_unavailable`` while the grant is not confirmed or the outcome is unknown.
    """
    service, principal, claim = call.service, call.principal, call.claim
    authorise_wallet(principal, wallet_id)
    call.session(await wallets.find(service, principal.org, wallet_id))
    if await earlier_outcome(service, claim) is None:
        found = await find(service, principal, wallet_id, identifier)
        if found.status == PENDING:
            await service.catch_up()
            found = await find(service, principal, wallet_id, identifier)
        if found.status == PENDING:
            message = "The allowance is not confirmed yet. Retry."
            raise UnavailableError("chain_unavailable", message, headers={"Retry-After": "1"})
        if found.status == OUTSTANDING:
            await end(service, claim, found)
    return shown(await find(service, principal, wallet_id, identifier))


async def end(service: Service, claim: Claim, found: AllowanceRecord) -> None:
    """Settle an outstanding allowance with the operator's key, unless it has been settled already."""
    operator = service.signers.operator
    accounts = await with_budget(service, accounts_of(found))
    settlement = service.instructions(found.org).settle_allowance(accounts, signer=service.signers.operator_address)
    plan = Plan(
        org=found.org,
        type=SETTLE,
        instructions=[settlement],
        signers=[operator],
        wallet_id=found.wallet_id,
        recipient=found.allowance_id,
        amount=found.amount,
    )
    try:
        await submit(service, plan, claim)
    except SimulationFailedError as refused:
        # A settlement closes the allowance's account. The program cannot tell a closed account from one that never
        # existed.
        await service.catch_up()
        now = await service.db.read(lambda conn: allowance(conn, found.org, found.allowance_id))
        if now is not None and now.status == OUTSTANDING:
            raise business_error(service.codec, refused) from None


def accounts_of(found: AllowanceRecord) -> OpenAllowance:
    """Return the accounts needed to settle an allowance, except those of its budgets."""
    return OpenAllowance(*(Pubkey.from_string(one) for one in (found.address, found.vault, found.payer)))


async def find(service: Service, principal: Principal, wallet_id: str, identifier: str) -> AllowanceRecord:
    """Return a wallet's allowance. Raises ``allowance_not_found``, and refuses an agent of another wallet."""
    authorise_wallet(principal, wallet_id)
    found = await service.db.read(lambda conn: allowance(conn, principal.org, identifier))
    if found is None or found.wallet_id != wallet_id:
        raise NotFoundError("allowance_not_found")
    return found


async def page(service: Service, principal: Principal, wallet_id: str, query: ListAllowances) -> AllowancePage:
    """Return one page of a wallet's allowances, newest first. Raises ``wallet_not_found``."""
    authorise_wallet(principal, wallet_id)
    await wallets.require(service, principal.org, wallet_id)
    found = await service.db.read(
        lambda conn: allowances(
            conn, principal.org, wallet_id, status=query.status, limit=query.limit, cursor=query.cursor
        )
    )
    return AllowancePage.showing(found, shown)


async def report_overdue(service: Service, found: Sequence[AllowanceRecord]) -> None:
    """Report allowances that are still unsettled a minute after their end, each only once."""
    now = service.clock.seen_ms()

    def record(conn: Connection) -> None:
        for one in found:
            append_overdue(conn, one, now)

    await service.db.write(record)


def shown(found: AllowanceRecord) -> Allowance:
    """Return an allowance as clients see it."""
    # The chain's clock counts whole seconds, so the settlement could appear to precede the request. Never show that.
    settled_at = None if found.settled_at is None else max(found.settled_at * 1000, found.created_at)
    return Allowance.of(found, settled_at=settled_at)
