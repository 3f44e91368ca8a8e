"""Sends money out of a wallet, as a payment or into an escrow, in the form that the wallet's policy asks for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.approvals import service as approvals
from app.core.errors import ApiError, AuthenticationError, BusinessError
from app.core.transaction_types import Purpose
from app.payments.expenses import Spending
from app.payments.refusing import CO_SIGN, NO_ACCOUNT, block, doubt, require_account
from app.payments.token_accounts import must_open
from app.policies import service as policies
from app.store.wallets import WalletRecord
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.plan import Outcome, Plan, RefusedError
from app.submission.program_errors import (
    EXPIRED,
    business_error,
    error_name,
    invalid_recipient,
    is_known,
    is_unpaid,
    rule_of,
    violation,
)
from app.wallets import service as wallets
from app.wallets.freezing import BY_EXPIRY

#: The program's errors for a destination that cannot be paid.
_UNUSABLE_DESTINATIONS = frozenset({"WrongMint", "NotATokenAccount", "UnusableTokenAccount"})
#: The field of a request that names who is paid.
_RECIPIENT_FIELDS: Mapping[Purpose, str] = {"payment": "to", "escrow": "toWallet", "allowance": "destination"}
#: Errors that mean the read models lag behind the chain; `InvalidSeeds`: the next escrow has another address.
_STALE = frozenset(
    {
        "WrongPolicy",
        "WrongAllowlist",
        "AllowlistRequired",
        "WrongBudget",
        "BudgetRequired",
        "UninitializedAccount",
        "RecipientAccountRequired",
        "InvalidSeeds",
    }
)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A refused simulation: the name of the program's or the runtime's error, and the rule if one was broken."""

    error: RefusedError
    name: str | None
    rule: str | None

    @classmethod
    def of(cls, service: Service, error: RefusedError) -> "_Refusal":
        name = error_name(service.codec, error)
        match error.simulation.err:
            case {"InstructionError": [_, str() as runtime]} if name is None:
                name = runtime
        return cls(error, name, rule_of(service.codec, error))

    def rejects_session(self, spending: Spending) -> bool:
        """Whether the chain does not know the session, or no longer."""
        return self.name == "Unauthorized" and spending.session is not None


async def _refresh(spending: Spending, refusal: _Refusal) -> bool:
    """Read the wallet again, once, if it was changed past this service or a moment ago."""
    if spending.refreshed or refusal.name not in _STALE:
        return False
    spending.wallet = await _caught_up(spending.service, spending.wallet)
    spending.refreshed = True
    return True


async def _drop_approval(spending: Spending, refusal: _Refusal) -> bool:
    """Leave out an approval that turns out to be unusable."""
    if spending.approval is None or not approvals.is_unusable(spending.service, refusal.error):
        return False
    spending.unusable.add(spending.approval.address)
    spending.approval = None
    return True


async def _ask_operator(spending: Spending, refusal: _Refusal) -> bool:
    """Add the operator's co-signature or, for an agent, the operator's approval if there is one."""
    if refusal.rule != CO_SIGN or spending.session is None or spending.policy_triggered:
        return False
    # The operator signs every allowance, so that is no consent to one above the threshold.
    if spending.principal.role == "agent" or spending.handed_out or spending.purpose == "allowance":
        spending.approval = await approvals.find_usable(spending.service, spending, unusable=spending.unusable)
    else:
        spending.co_signed = True
    return spending.policy_triggered


async def _open_account(spending: Spending, refusal: _Refusal) -> bool:
    """Open a token account for the payee of a payment if it has none and nothing else explains the refusal.

    One that exists may have been opened since the simulation, by another payment to the same payee.
    """
    explained = refusal.rule is not None or is_known(refusal.name) or refusal.rejects_session(spending)
    if spending.purpose != "payment" or spending.handed_out or spending.sought_account or explained:
        return False
    spending.sought_account = True
    spending.opens_account = await must_open(spending.service, spending.wallet.wallet_id, spending.payee.owner)
    spending.refusal = await doubt(spending) if spending.opens_account else None
    return True


#: What may change a refusal: each is tried in this order until one applies, before the refusal counts.
_REPAIRS = (_refresh, _drop_approval, _ask_operator, _open_account)


async def spend(spending: Spending, claim: Claim, plan_of: Callable[[Spending], Plan]) -> Outcome:
    """Simulate, send and wait for the outcome.

    The plain form comes first; what a refused simulation shows to be missing is added. Raises ``policy_violation`` when
    the policy refuses: nothing was sent, and the refusal is on record. Raises ``rate_limited`` when too many already
    wait.
    """
    return await spending.service.submitter.wait(await hand_out(spending, claim, plan_of), claim)


async def hand_out(spending: Spending, claim: Claim, plan_of: Callable[[Spending], Plan]) -> Outcome:
    """Do as ``spend`` without waiting for the outcome: if others send it, it may take them a while."""
    service, most = spending.service, spending.service.settings.max_waiting_payments
    async with service.locks.hold(LockScope.WALLET_SENDING, spending.wallet.wallet_id, most_waiting=most):
        if spending.first is not None:
            await spending.first(spending, claim)
        return await _send(spending, claim, plan_of)


async def _send(spending: Spending, claim: Claim, plan_of: Callable[[Spending], Plan]) -> Outcome:
    while True:
        if await spending.gone():
            # Nobody reads this, and whoever gave up does not expect the payment.
            raise BusinessError("transaction_failed", "The client closed the connection. Nothing was sent.")
        try:
            return await spending.service.submitter.send(plan_of(spending), claim)
        except RefusedError as error:
            refusal = _Refusal.of(spending.service, error)
            for repair in _REPAIRS:
                if await repair(spending, refusal):
                    break
            else:
                raise await _error(spending, claim, refusal) from None


async def _error(spending: Spending, claim: Claim, refusal: _Refusal) -> ApiError:
    """Return the error for a refusal that cannot be repaired."""
    service = spending.service
    if refusal.rule is not None:
        policy = await policies.find(service, spending.wallet.org, spending.wallet.policy.policy_id)
        found = violation(service.codec, refusal.error.simulation.logs, policy)
        return business_error(service.codec, refusal.error) if found is None else await block(spending, claim, found)
    if refusal.rejects_session(spending):
        return AuthenticationError("session_token_invalid")
    if refusal.name == "WalletFrozen" and await _has_expired(service, spending.wallet):
        return BusinessError("wallet_frozen", EXPIRED)
    if spending.purpose == "allowance" and refusal.name in _UNUSABLE_DESTINATIONS:
        raise invalid_recipient("destination", "The token account is frozen, or not one for USDC.")
    if spending.handed_out and is_unpaid(refusal.error):
        return BusinessError("x402_resource_unavailable", "The resource's facilitator has no SOL to settle a payment.")
    if spending.handed_out and not is_known(refusal.name):
        await require_account(spending, claim, "payTo", NO_ACCOUNT)
    return business_error(service.codec, refusal.error, recipient=_RECIPIENT_FIELDS[spending.purpose])


async def _caught_up(service: Service, wallet: WalletRecord) -> WalletRecord:
    """Return a wallet as the chain has it now."""
    await service.catch_up()
    return await wallets.find(service, wallet.org, wallet.wallet_id)


async def _has_expired(service: Service, frozen: WalletRecord) -> bool:
    """Whether a frozen wallet's policy has expired; such a freeze is lifted in another way."""
    found = await wallets.find(service, frozen.org, frozen.wallet_id)
    if not found.frozen:
        found = await _caught_up(service, frozen)
    return found.frozen == BY_EXPIRY
