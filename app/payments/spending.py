"""Money that leaves a wallet by payment or into an escrow: judged by its policy, co-signed or approved where needed."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.approvals import service as approvals
from app.core.errors import ApiError, AuthenticationError, BusinessError, PolicyViolationError
from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.payments.events import append_blocked
from app.payments.token_accounts import may_create
from app.policies import service as policies
from app.recipients.service import Payee
from app.store.approvals import OnChainApproval
from app.store.attempts import Attempt, insert_attempt
from app.store.transactions import A2A_SEND
from app.store.wallets import WalletRecord
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.plan import Outcome, Plan, RefusedError
from app.submission.refusals import EXPIRED, business_error, error_name, is_known, rule_of, violation
from app.wallets import service as wallets
from app.wallets.service import BY_EXPIRY
from idl.transactions import OPTIONS

_CO_SIGN = "require_co_sign"
#: Errors that say that the read models lag behind the chain; by `InvalidSeeds` the next escrow has another address.
_STALE = frozenset(
    {"WrongPolicy", "WrongAllowlist", "UninitializedAccount", "RecipientAccountRequired", "InvalidSeeds"}
)


@dataclass(frozen=True, slots=True)
class Order:
    """Money that is to leave a wallet: to whom, and who signs.

    ``signer`` is the address of the session's key or the operator's; to compute it from the key takes long. ``type``
    is that of the row which shows a refusal.
    """

    wallet: WalletRecord
    payee: Payee
    amount: int
    memo: str | None
    session: Keypair | None
    signer: Pubkey
    may_co_sign: bool
    type: str

    @property
    def for_escrow(self) -> bool:
        """Whether it is locked, not paid."""
        return self.type == A2A_SEND

    @property
    def recipient_field(self) -> str:
        """The field of the request that names the payee."""
        return "toWallet" if self.for_escrow else "to"


@dataclass(frozen=True, slots=True)
class Form:
    """What a rehearsal found missing: the payee's token account, the operator's co-signature or its approval."""

    creates: bool = False
    co_signed: bool = False
    approval: OnChainApproval | None = None

    def accounts(self, service: Service, order: Order) -> dict[str, Pubkey | None]:
        """Return the optional accounts of the instruction that spends."""
        wallet, owner = order.wallet, order.payee.owner
        rules, allowlist = wallet.policy.rules, wallet.policy.allowlist
        org, consulted = Pubkey.from_string(wallet.org), rules.blocked_categories or rules.restricted
        return {
            "allowlist": Pubkey.from_string(allowlist) if allowlist else None,
            "recipient": service.addresses.recipient(org, owner) if consulted else None,
            "co_signer": service.signers.operator_address if self.co_signed else None,
            "approval": Pubkey.from_string(self.approval.address) if self.approval else None,
            "approval_rent_receiver": Pubkey.from_string(self.approval.payer) if self.approval else None,
        }

    def signers(self, service: Service, order: Order) -> list[Keypair]:
        """Return the keys that sign beside the fee payer's."""
        operator = service.signers.operator
        first = order.session or operator
        return [first, operator] if self.co_signed else [first]

    @property
    def policy_triggered(self) -> bool:
        """Whether the policy had the operator asked."""
        return self.co_signed or self.approval is not None


def order_of(  # noqa: PLR0917
    service: Service,
    principal: Principal,
    wallet: WalletRecord,
    session: Keypair | None,
    payee: Payee,
    amount: int,
    memo: str | None,
    *,
    row_type: str,
) -> Order:
    """Return what was asked for, signed by the session's key, else by the operator's."""
    signer = service.signers.operator_address
    if session is not None and wallet.session_authority is not None:
        signer = Pubkey.from_string(wallet.session_authority)
    return Order(wallet, payee, amount, memo, session, signer, principal.role != "agent", row_type)


@dataclass(slots=True)
class _Sending:
    """Money on its way: its order, its form so far, and what was tried already."""

    service: Service
    order: Order
    opens: bool
    form: Form = Form()
    refreshed: bool = False
    unusable: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a simulation refused: the program's or the runtime's name of the error, and the rule if it was one."""

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


def _is_stale(sending: _Sending, refusal: _Refusal) -> bool:
    """Whether the wallet was changed past this service, or a moment ago."""
    return not sending.refreshed and refusal.name in _STALE


async def _refresh(sending: _Sending) -> bool:
    sending.order = replace(sending.order, wallet=await _caught_up(sending.service, sending.order.wallet))
    sending.refreshed = True
    return True


def _blames_approval(sending: _Sending, refusal: _Refusal) -> bool:
    return sending.form.approval is not None and approvals.is_unusable(sending.service, refusal.error)


async def _drop_approval(sending: _Sending) -> bool:
    assert sending.form.approval is not None
    sending.unusable.add(sending.form.approval.address)
    sending.form = replace(sending.form, approval=None)
    return True


def _lacks_co_signature(sending: _Sending, refusal: _Refusal) -> bool:
    return refusal.rule == _CO_SIGN and sending.order.session is not None and not sending.form.policy_triggered


async def _ask_operator(sending: _Sending) -> bool:
    """Add the operator's co-signature or approval; false where there is none."""
    order = sending.order
    if order.may_co_sign:
        sending.form = replace(sending.form, co_signed=True)
        return True
    given = await approvals.given(
        sending.service,
        order.wallet,
        order.payee.owner,
        order.amount,
        for_escrow=order.for_escrow,
        unusable=sending.unusable,
    )
    sending.form = replace(sending.form, approval=given)
    return given is not None


def _may_lack_account(sending: _Sending, refusal: _Refusal) -> bool:
    explained = refusal.rule is not None or is_known(refusal.name) or _rejects_session(sending.order, refusal)
    return sending.opens and not sending.form.creates and not explained


async def _open_account(sending: _Sending) -> bool:
    order = sending.order
    creates = await may_create(sending.service, order.wallet.wallet_id, order.payee.owner)
    sending.form = replace(sending.form, creates=creates)
    return creates


#: What a simulation may have refused, and the repair that is tried before the refusal counts, in this order.
_REPAIRS: Sequence[tuple[Callable[[_Sending, _Refusal], bool], Callable[[_Sending], Awaitable[bool]]]] = (
    (_is_stale, _refresh),
    (_blames_approval, _drop_approval),
    (_lacks_co_signature, _ask_operator),
    (_may_lack_account, _open_account),
)


async def send(
    service: Service, claim: Claim, order: Order, plan_of: Callable[[Order, Form], Plan], *, opens: bool
) -> Outcome:
    """Simulate and send, in the form that is needed; call it under the wallet's lock.

    The plain form comes first. Only when the simulation refuses it, what is missing is added and simulated again;
    ``opens`` says that the payee's token account may be. Raises ``policy_violation`` when the policy refuses; then
    nothing was sent and the refusal is on record.
    """
    sending = _Sending(service, order, opens)
    while True:
        try:
            return await service.submitter.send(plan_of(sending.order, sending.form), claim)
        except RefusedError as error:
            refusal = _Refusal.of(service, error)
            repairs = [repair for applies, repair in _REPAIRS if applies(sending, refusal)]
            for repair in repairs:
                if await repair(sending):
                    break
            else:
                raise await _error(sending, refusal) from None


def _rejects_session(order: Order, refusal: _Refusal) -> bool:
    return refusal.name == "Unauthorized" and order.session is not None


async def _error(sending: _Sending, refusal: _Refusal) -> ApiError:
    """Return the error of a refusal that no repair helps."""
    service, order = sending.service, sending.order
    if refusal.rule is not None:
        return await _blocked(service, order, refusal.error, sending.unusable)
    if _rejects_session(order, refusal):
        return AuthenticationError("session_token_invalid")
    if refusal.name == "WalletFrozen" and await _expired(service, order.wallet):
        return BusinessError("wallet_frozen", EXPIRED)
    return business_error(service.codec, refusal.error, recipient=order.recipient_field)


async def _caught_up(service: Service, wallet: WalletRecord) -> WalletRecord:
    """Return a wallet as the chain has it now."""
    await service.catch_up()
    return await wallets.find(service, wallet.org, wallet.wallet_id)


async def _expired(service: Service, frozen: WalletRecord) -> bool:
    """Whether a wallet that the chain has frozen is so by its policy's expiry, which is lifted in another way."""
    found = await wallets.find(service, frozen.org, frozen.wallet_id)
    if not found.frozen:
        found = await _caught_up(service, frozen)
    return found.frozen == BY_EXPIRY


async def _blocked(service: Service, order: Order, refused: RefusedError, unusable: Collection[str]) -> ApiError:
    """Put a refusal on record, as a `blocked` row and its event, and return the error to raise."""
    paying = order.wallet
    policy = await policies.find(service, paying.org, paying.policy.policy_id)
    found = violation(service.codec, refused.simulation.logs, policy)
    if found is None:
        return business_error(service.codec, refused)
    approval_id = None
    if found["rule"] == _CO_SIGN and order.session is not None:
        owner, name = order.payee.owner, order.payee.name
        approval_id = await approvals.request(
            service, paying, owner, name, order.amount, for_escrow=order.for_escrow, unusable=unusable
        )
    blocked = Attempt(
        tx_id=random_id("tx_"),
        org=paying.org,
        wallet_id=paying.wallet_id,
        type=order.type,
        status="blocked",
        recipient=order.payee.name,
        recipient_address=str(order.payee.owner),
        amount=order.amount,
        policy_id=policy.policy_id,
        policy_triggered=True,
        memo=order.memo,
        violation=found,
        created_at=now_ms(),
    )

    def record(conn: Connection) -> None:
        insert_attempt(conn, blocked)
        append_blocked(conn, blocked, approval_id)

    await service.db.write(record)
    return PolicyViolationError(
        violation=found, wallet_id=paying.wallet_id, policy_id=policy.policy_id, approval_id=approval_id
    )


async def landed_refused(service: Service, paying: WalletRecord, outcome: Outcome) -> ApiError:
    """Return the error for what passed the rehearsal and was refused when it landed."""
    if rule_of(service.codec, outcome) is None:
        return business_error(service.codec, outcome)
    landed = await service.chain.call(
        "getTransaction",
        [outcome.attempt.signature, OPTIONS],
    )
    policy = await policies.find(service, paying.org, paying.policy.policy_id)
    found = violation(service.codec, landed["meta"]["logMessages"], policy) if landed else None
    if found is None:
        return business_error(service.codec, outcome)
    return PolicyViolationError(
        violation=found, wallet_id=paying.wallet_id, policy_id=outcome.attempt.policy_id or policy.policy_id
    )
