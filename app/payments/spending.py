"""Sends money out of a wallet, as a payment or into an escrow, in the form that the wallet's policy asks for."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.approvals import service as approvals
from app.approvals.service import Expense
from app.core.errors import ApiError, AuthenticationError, BusinessError, PolicyViolationError
from app.core.identifiers import EVENT_INNER_INDEX, new_reference, random_id
from app.core.transaction_types import A2A_SEND, Purpose
from app.payments._events import append_blocked
from app.payments.token_accounts import must_open
from app.policies import service as policies
from app.store.approvals import OnChainApproval
from app.store.attempts import Attempt, insert_attempt
from app.store.wallets import WalletRecord
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.plan import Hook, Outcome, Plan, PlanType, RefusedError
from app.submission.refusals import (
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

_CO_SIGN = "require_co_sign"
#: What an operator's request without a session lacks; with one, the service adds the operator's signature by itself.
_NO_SESSION = (
    "Above this amount the wallet's session must sign as well as the operator, and the request has no session token. "
    "Repeat it with the wallet's token in the header Session-Token: the operator then co-signs. "
    "`POST /v1/wallets/{wallet_id}/rotate-token` issues a token."
)
_ASKED = "Above this amount an operator must approve. Once the approval is given, send the same request again."
_NO_SESSION_TO_APPROVE = (
    "Above this amount the wallet's session must sign as well, and an operator must approve the allowance. Repeat the "
    "request with the wallet's token in the header Session-Token: that requests the approval."
)
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


@dataclass(slots=True, kw_only=True)
class Spending(Expense):
    """An expense, the ``kind`` of its transaction, who asks for it, and what refused simulations have shown it to need.

    Without a ``session`` the operator signs. Added on demand: a token account for the payee, the operator's
    co-signature, or its approval. ``sought_account`` is set once the payee's token account has been looked for.
    ``unusable`` are addresses of approvals that the chain has refused. ``gone`` tells whether the client has closed its
    connection.
    """

    kind: PlanType
    service: Service
    principal: Principal
    session: Keypair | None
    gone: Callable[[], Awaitable[bool]]
    #: Whether others send it, and so nothing may stand beside it: no second signature, no new token account.
    handed_out: bool = False
    #: Asked under the wallet's lock before anything is signed; raises what refuses the expense.
    first: Callable[["Spending", Claim], Awaitable[None]] | None = None
    reference: bytes = field(default_factory=new_reference)
    #: The signer's address; to derive it from the key takes long.
    signer: Pubkey = field(init=False)
    opens_account: bool = False
    sought_account: bool = False
    co_signed: bool = False
    approval: OnChainApproval | None = None
    unusable: set[str] = field(default_factory=set)
    refreshed: bool = False

    def __post_init__(self) -> None:
        self.signer = self.service.signers.operator_address
        if self.session is not None and self.wallet.session_authority is not None:
            self.signer = Pubkey.from_string(self.wallet.session_authority)

    @property
    def policy_triggered(self) -> bool:
        """Whether the policy made the service ask the operator."""
        return self.co_signed or self.approval is not None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the instructions for a payment and for an escrow share."""
        policy, approval, addresses = self.wallet.policy, self.approval, self.service.addresses
        org = Pubkey.from_string(self.wallet.org)
        consulted = policy.rules.blocked_categories or policy.rules.restricted
        return {
            "signer": self.signer,
            "policy": Pubkey.from_string(policy.address),
            "vault": Pubkey.from_string(self.wallet.vault),
            "amount": self.amount,
            "reference": self.reference,
            "allowlist": Pubkey.from_string(policy.allowlist) if policy.allowlist else None,
            "budget": Pubkey.from_string(self.wallet.budget) if self.wallet.budget else None,
            "recipient": addresses.recipient(org, self.payee.owner) if consulted else None,
            "co_signer": self.service.signers.operator_address if self.co_signed else None,
            "approval": Pubkey.from_string(approval.address) if approval else None,
            "approval_rent_receiver": Pubkey.from_string(approval.payer) if approval else None,
        }

    def plan(
        self,
        instructions: list[Instruction],
        on_store: Hook,
        *,
        event_instruction: int = 0,
        event_inner: int = EVENT_INNER_INDEX,
        fee_payer: Pubkey | None = None,
    ) -> Plan:
        """Return the plan of the transaction that spends; with a ``fee_payer``, that one sends it."""
        operator = self.service.signers.operator
        first = self.session or operator
        beside = self.session is not None and (self.co_signed or self.purpose == "allowance")
        return Plan(
            org=self.wallet.org,
            type=self.kind,
            instructions=instructions,
            signers=[first, operator] if beside else [first],
            event_instruction=event_instruction,
            event_inner=event_inner,
            wallet_id=self.wallet.wallet_id,
            recipient=self.payee.name,
            recipient_address=str(self.payee.owner),
            amount=self.amount,
            policy_id=self.wallet.policy.policy_id,
            policy_triggered=self.policy_triggered,
            memo=self.memo,
            asked_by=self.principal.actor,
            reference=self.reference,
            attested=self.session is not None,
            on_store=on_store,
            fee_payer=fee_payer,
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
    if refusal.rule != _CO_SIGN or spending.session is None or spending.policy_triggered:
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
        tokens = service.addresses.token_account(spending.payee.owner)
        if await service.chain.token_balance(tokens) is None:
            raise invalid_recipient("payTo", "The recipient has no USDC account, and none can be opened beside this.")
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


async def block(spending: Spending, claim: Claim, found: dict[str, str]) -> ApiError:
    """Record the policy's refusal, a violation, as a `blocked` row with its event, and return the error.

    Raises ``idempotency_in_progress`` if the same request was carried out on another node meanwhile: it may be what the
    policy counts.
    """
    await claim.require_free()
    service, wallet = spending.service, spending.wallet
    approval_id = remedy = None
    if found["rule"] == _CO_SIGN and spending.session is not None:
        approval_id = await approvals.request(service, spending.principal.actor, spending, unusable=spending.unusable)
        remedy = _ASKED
    elif found["rule"] == _CO_SIGN:
        remedy = _NO_SESSION if spending.purpose != "allowance" else _NO_SESSION_TO_APPROVE
    blocked = Attempt(
        tx_id=random_id("tx_"),
        org=wallet.org,
        wallet_id=wallet.wallet_id,
        type=A2A_SEND if spending.purpose == "escrow" else spending.kind.name,
        status="blocked",
        recipient=spending.payee.name,
        recipient_address=str(spending.payee.owner),
        amount=spending.amount,
        policy_id=wallet.policy.policy_id,
        policy_triggered=True,
        memo=spending.memo,
        violation=found,
        created_at=await service.clock.moment_ms(),
    )

    def record(conn: Connection) -> None:
        insert_attempt(conn, blocked)
        append_blocked(conn, blocked, approval_id)

    await service.db.write(record)
    return PolicyViolationError(
        violation=found,
        wallet_id=wallet.wallet_id,
        policy_id=wallet.policy.policy_id,
        tx_id=blocked.tx_id,
        approval_id=approval_id,
        remedy=remedy,
    )
