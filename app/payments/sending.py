"""Sends money out of a wallet, as a payment, escrow or allowance, in the form that the wallet's policy requires."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.api.operation import Call
from app.approvals import service as approvals
from app.core.errors import ApiError, AuthenticationError, BusinessError, UnavailableError
from app.core.transaction_types import Purpose
from app.payments.expenses import ExpenseRequest
from app.payments.late_refusal import late_refusal
from app.payments.refusals import (
    CO_SIGN,
    FACILITATOR_CANNOT_PAY,
    NEW_RECIPIENT,
    NO_ACCOUNT,
    record_refusal,
    require_account,
    unverified_refusal,
)
from app.payments.token_accounts import lacks_token_account
from app.policies import service as policies
from app.store.wallets import WalletRecord
from app.submission.chain_state import stale_node_error
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Outcome, Plan, PlanType, SimulationFailedError
from app.submission.program_errors import (
    EXPIRED,
    NO_LISTS,
    business_error,
    error_name,
    fee_payer_cannot_pay,
    invalid_recipient,
    is_known,
    require_confirmed,
    rule_of,
    violation,
)
from app.wallets import service as wallets
from app.wallets.freezing import BY_EXPIRY

Made = TypeVar("Made")

ADD_LISTS = PlanType("migrate")

#: Program errors for a destination that cannot be paid.
_UNUSABLE_DESTINATIONS = frozenset({"WrongMint", "NotATokenAccount", "UnusableTokenAccount"})
#: The runtime's errors for a transaction that exceeds its compute unit limit.
_OUT_OF_UNITS = frozenset({"ComputationalBudgetExceeded", "ProgramFailedToComplete"})
#: Field of a request that names the payee.
_RECIPIENT_FIELDS: Mapping[Purpose, str] = {"payment": "to", "escrow": "toWallet", "allowance": "destination"}
#: Errors that show that the read models lag behind the chain. `InvalidSeeds` comes from a wrong address of the escrow.
_STALE = frozenset(
    {
        "WrongPolicy",
        "WrongAllowlist",
        "AllowlistRequired",
        "WrongBudget",
        "BudgetRequired",
        "BudgetParentRequired",
        "UninitializedAccount",
        "RecipientAccountRequired",
        "InvalidSeeds",
    }
)


@dataclass(frozen=True, slots=True)
class _SimulationRefusal:
    """A refused simulation: the name of the program's or the runtime's error, and the broken rule, if any."""

    error: SimulationFailedError
    name: str | None
    rule: str | None

    @classmethod
    def of(cls, service: Service, error: SimulationFailedError) -> "_SimulationRefusal":
        name = error_name(service.codec, error)
        match error.simulation.err:
            case {"InstructionError": [_, str() as runtime]} if name is None:
                name = runtime
        return cls(error, name, rule_of(service.codec, error))

    def rejects_session(self, expense: ExpenseRequest) -> bool:
        """Return True if the chain does not know the session that signed, or no longer knows it."""
        return self.name == "Unauthorized" and expense.session is not None


async def _refresh(expense: ExpenseRequest, refusal: _SimulationRefusal) -> bool:
    """Read the wallet again, at most once, if the error shows that the read models lag behind the chain."""
    if expense.refreshed or refusal.name not in _STALE:
        return False
    expense.wallet = await _caught_up(expense.service, expense.wallet)
    expense.refreshed = True
    return True


async def _drop_approval(expense: ExpenseRequest, refusal: _SimulationRefusal) -> bool:
    """Drop an approval that turned out to be unusable."""
    if expense.approval is None or not approvals.is_unusable(expense.service, refusal.error):
        return False
    expense.unusable.add(expense.approval.address)
    expense.approval = None
    return True


async def _ask_operator(expense: ExpenseRequest, refusal: _SimulationRefusal) -> bool:
    """Add the operator's co-signature if a rule that it satisfies refused an expense that a session signs.

    If an agent makes the request, if the expense is an issued payment or an allowance, or if people must approve it,
    add the approval instead, if there is one.
    """
    if refusal.rule not in {CO_SIGN, NEW_RECIPIENT} or expense.session is None or expense.policy_triggered:
        return False
    # The operator signs every allowance, so the signature alone does not approve an allowance above the threshold.
    alone = expense.principal.role != "agent" and not expense.issued and expense.purpose != "allowance"
    if not alone or await approvals.required_for(expense.service, expense.wallet, expense.amount):
        expense.approval = await approvals.find_usable(expense.service, expense, unusable=expense.unusable)
    else:
        expense.co_signed = True
    return expense.policy_triggered


async def _open_account(expense: ExpenseRequest, refusal: _SimulationRefusal) -> bool:
    """Open a token account for the payee of a payment if it has none and nothing else explains the refusal.

    An account may exist by now, because another payment to the same payee has opened it since the simulation.
    """
    explained = refusal.rule is not None or is_known(refusal.name) or refusal.rejects_session(expense)
    if expense.purpose != "payment" or expense.issued or expense.sought_account or explained:
        return False
    expense.sought_account = True
    expense.opens_account = await lacks_token_account(expense.service, expense.wallet.wallet_id, expense.payee.owner)
    expense.refusal = await unverified_refusal(expense) if expense.opens_account else None
    return True


async def _add_lists(expense: ExpenseRequest, refusal: _SimulationRefusal) -> bool:
    """Give the vault the lists of payees that a policy with `newRecipientCap` needs, in a transaction of its own."""
    if refusal.name != NO_LISTS or expense.lists_added:
        return False
    service, payer = expense.service, expense.service.signers.fee_payer
    add = service.instructions(expense.wallet.org).migrate(
        payer=payer.pubkey(), account=Pubkey.from_string(expense.wallet.vault)
    )
    plan = Plan(org=expense.wallet.org, type=ADD_LISTS, instructions=[add], signers=[payer])
    require_confirmed(service.codec, await service.submitter.submit(plan, Claim(service.db)))
    expense.lists_added = True
    return True


#: Repairs after a refused simulation, tried in this order until one applies. If none applies, the refusal counts.
_REPAIRS = (_refresh, _add_lists, _drop_approval, _ask_operator, _open_account)


async def submit_expense(expense: ExpenseRequest, plan_of: Callable[[ExpenseRequest], Plan]) -> Outcome:
    """Simulate, send and wait for the outcome.

    The plain form comes first, and refused simulations show which parts to add. Raises ``policy_violation`` if the
    policy refuses in simulation. In that case nothing was sent, and the refusal is recorded. Raises ``rate_limited`` if
    too many expenses of the wallet are waiting.
    """
    return await expense.service.submitter.wait(await send_expense(expense, plan_of), expense.call.claim)


async def send_expense(expense: ExpenseRequest, plan_of: Callable[[ExpenseRequest], Plan]) -> Outcome:
    """Simulate and send like ``submit_expense``, but do not wait for the outcome.

    If a third party sends the transaction, the outcome may come much later.
    """
    service, most = expense.service, expense.service.settings.max_waiting_payments
    async with service.locks.hold(LockScope.WALLET_SENDING, expense.wallet.wallet_id, most_waiting=most):
        if expense.first is not None:
            await expense.first(expense)
        return await _send(expense, plan_of)


async def admit(call: Call, kind: PlanType, wallet_id: str) -> tuple[WalletRecord, Keypair | None]:
    """Return the wallet, and the session's key if the session signs.

    Raises ``chain_unavailable`` while the wallet has a pending transaction that ``kind`` waits for, such as another
    escrow. Also raises the errors of a payment from the wallet.
    """
    service, org = call.service, call.principal.org
    session = call.session(await wallets.find(service, org, wallet_id))
    service.brake.check(kind, org, wallet_id, attested=session is not None)
    await require_no_pending_change(service, org, kind.waits_for, wallet_id=wallet_id)
    paying = await wallets.find_living(service, org, wallet_id)
    # Check again: the session may have been rotated since, and then the old key cannot sign for the wallet.
    return paying, call.session(paying)


async def set_aside(
    call: Call,
    wallet_id: str,
    send: Callable[[], Awaitable[Outcome]],
    made_by: Callable[[Connection, str, str], Made | None],
) -> Made:
    """Return the escrow or allowance that the request makes, or that an earlier run of the request has made.

    ``send`` sends the transaction. ``made_by`` reads the escrow or allowance by its organisation and transaction id.
    Raises the error of a late refusal.
    """
    service, org = call.service, call.principal.org
    # Look first for a transaction sent by an earlier run: once it is under way, neither the wallet's state nor the
    # queue can refuse it.
    outcome = await service.submitter.resume(call.claim)
    if outcome is None:
        outcome = await send()
    if outcome.status == "failed":
        raise await late_refusal(service, call.principal, await wallets.find(service, org, wallet_id), outcome)
    tx_id = outcome.attempt.tx_id
    made = await service.db.read(lambda conn: made_by(conn, org, tx_id))
    if made is None:
        raise UnavailableError("chain_unavailable", fields={"tx_id": tx_id})
    # A replay reports the final outcome.
    call.claim.open_ended = outcome.status == "pending"
    return made


async def _send(expense: ExpenseRequest, plan_of: Callable[[ExpenseRequest], Plan]) -> Outcome:
    while True:
        if await expense.call.request.is_disconnected():
            # The client has closed the connection. It does not see this error, and expects no payment.
            raise BusinessError("transaction_failed", "The client closed the connection. Nothing was sent.")
        if expense.prepare is not None:
            await expense.prepare(expense)
        try:
            return await expense.service.submitter.send(plan_of(expense), expense.call.claim)
        except SimulationFailedError as error:
            refusal = _SimulationRefusal.of(expense.service, error)
            for repair in _REPAIRS:
                if await repair(expense, refusal):
                    break
            else:
                raise await _error(expense, refusal) from None


async def _error(expense: ExpenseRequest, refusal: _SimulationRefusal) -> ApiError:
    """Return the error for a refusal that no entry of `_REPAIRS` can fix."""
    service = expense.service
    if refusal.rule is not None:
        policy = await policies.find(service, expense.wallet.org, expense.wallet.policy.policy_id)
        found = violation(service.codec, refusal.error.simulation.logs, policy, expense.wallet.levels)
        return business_error(service.codec, refusal.error) if found is None else await record_refusal(expense, found)
    if refusal.rejects_session(expense):
        return AuthenticationError("session_token_invalid")
    if refusal.name == "WalletFrozen" and await _has_expired(service, expense.wallet):
        return BusinessError("wallet_frozen", EXPIRED)
    if expense.purpose == "allowance" and refusal.name in _UNUSABLE_DESTINATIONS:
        raise invalid_recipient("destination", "The token account is frozen, requires a memo or is not a USDC account.")
    if expense.issued and fee_payer_cannot_pay(refusal.error):
        return BusinessError("x402_resource_unavailable", FACILITATOR_CANNOT_PAY)
    if expense.issued and refusal.name in _OUT_OF_UNITS:
        message = "The payment with the memo that the resource requires exceeds its compute budget. Nothing was paid."
        return BusinessError("x402_invalid_terms", message)
    if expense.issued and not is_known(refusal.name):
        await require_account(expense, "payTo", NO_ACCOUNT)
    if expense.sought_account and refusal.name == "NotATokenAccount":
        # The earlier look-up found the account that the simulation lacks, so the simulating node is stale.
        return stale_node_error()
    return business_error(service.codec, refusal.error, recipient=_RECIPIENT_FIELDS[expense.purpose])


async def _caught_up(service: Service, wallet: WalletRecord) -> WalletRecord:
    """Return a wallet in its current on-chain state."""
    await service.catch_up()
    return await wallets.find(service, wallet.org, wallet.wallet_id)


async def _has_expired(service: Service, frozen: WalletRecord) -> bool:
    """Return True if a wallet is frozen because its policy expired. Unfreezing it first needs a policy in force."""
    found = await wallets.find(service, frozen.org, frozen.wallet_id)
    if not found.frozen:
        found = await _caught_up(service, frozen)
    return found.frozen == BY_EXPIRY
