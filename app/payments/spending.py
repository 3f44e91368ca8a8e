"""Money that leaves a wallet by payment or into an escrow: judged by its policy, co-signed or approved where needed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.approvals import service as approvals
from app.core.errors import ApiError, AuthenticationError, BusinessError, PolicyViolationError
from app.core.identifiers import derived_id, random_id
from app.core.money import format_usdc
from app.core.timestamps import iso_ms, now_ms
from app.payments.token_accounts import may_create
from app.policies import service as policies
from app.recipients.service import Payee
from app.store.approvals import OnChainApproval
from app.store.attempts import Attempt, insert_attempt
from app.store.feed import append_event
from app.store.transactions import A2A_SEND
from app.store.wallets import WalletRecord
from app.submission.context import Service
from app.submission.idempotency import Ticket
from app.submission.plan import Outcome, Plan, RefusedError
from app.submission.refusals import EXPIRED, business_error, error_name, is_known, rule_of, violation
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


async def send(
    service: Service, ticket: Ticket, order: Order, plan_of: Callable[[Order, Form], Plan], *, opens: bool
) -> Outcome:
    """Rehearse and send, in the form that is needed; to be called under the wallet's lock.

    The plain form comes first. Only when the rehearsal names what is missing, it is added and rehearsed again;
    ``opens`` says that the payee's token account may be. Raises ``policy_violation`` when the policy refuses; then
    nothing was sent and the refusal is on record.
    """
    form, refreshed = Form(), False
    worthless: set[str] = set()
    while True:
        try:
            return await service.submitter.send(plan_of(order, form), ticket)
        except RefusedError as refused:
            name = error_name(service.codec, refused)
            if not refreshed and (name or _runtime_error(refused)) in _STALE:
                # The wallet was changed past this service, or a moment ago.
                order, refreshed = replace(order, wallet=await _caught_up(service, order.wallet)), True
                continue
            if form.approval is not None and approvals.is_worthless(service, refused):
                worthless.add(form.approval.address)
                form = replace(form, approval=None)
                continue
            rule = rule_of(service.codec, refused)
            if rule == _CO_SIGN and order.session is not None and not form.policy_triggered:
                form = await _with_operator(service, order, form, worthless)
                if form.policy_triggered:
                    continue
            if rule is not None:
                raise await _blocked(service, order, refused, worthless) from None
            if name == "Unauthorized" and order.session is not None:
                raise AuthenticationError("session_token_invalid") from None
            missing = opens and not form.creates and not is_known(name)
            if missing and await may_create(service, order.wallet.wallet_id, order.payee.owner):
                form = replace(form, creates=True)
                continue
            if name == "WalletFrozen" and await _expired(service, order.wallet):
                raise BusinessError("wallet_frozen", EXPIRED) from None
            raise business_error(service.codec, refused, recipient=order.recipient_field) from None


async def _caught_up(service: Service, wallet: WalletRecord) -> WalletRecord:
    """Return a wallet as the chain has it now."""
    await service.indexer.catch_up()
    await service.projector.catch_up()
    return await service.wallet_cache.fresh(wallet.org, wallet.wallet_id)


async def _expired(service: Service, frozen: WalletRecord) -> bool:
    """Whether a wallet that the chain has as frozen is so by its policy's expiry, which is lifted in another way."""
    found = await service.wallet_cache.fresh(frozen.org, frozen.wallet_id)
    if not found.frozen:
        found = await _caught_up(service, frozen)
    return found.frozen == BY_EXPIRY


def _runtime_error(refused: RefusedError) -> str | None:
    """Return the runtime's name of what an instruction failed of; None when that was a program's own error."""
    match refused.simulation.err:
        case {"InstructionError": [_, str() as name]}:
            return name
    return None


async def _with_operator(service: Service, order: Order, form: Form, worthless: Collection[str]) -> Form:
    """Return the form with the operator's co-signature or approval, as far as there is one."""
    if order.may_co_sign:
        return replace(form, co_signed=True)
    given = await approvals.given(
        service, order.wallet, order.payee.owner, order.amount, for_escrow=order.for_escrow, worthless=worthless
    )
    return replace(form, approval=given)


async def _blocked(service: Service, order: Order, refused: RefusedError, worthless: Collection[str]) -> ApiError:
    """Put a refusal on record: a `blocked` row and its event; answers the error to raise."""
    paying = order.wallet
    policy = await policies.find(service, paying.org, paying.policy.policy_id)
    found = violation(service.codec, refused.simulation.logs, policy)
    if found is None:
        return business_error(service.codec, refused)
    approval_id = None
    if found["rule"] == _CO_SIGN and order.session is not None:
        owner, name = order.payee.owner, order.payee.name
        approval_id = await approvals.request(
            service, paying, owner, name, order.amount, for_escrow=order.for_escrow, worthless=worthless
        )
    now = now_ms()
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
        created_at=now,
    )

    def record(conn: Connection) -> None:
        insert_attempt(conn, blocked)
        append_event(
            conn,
            event_id=derived_id("evt_", blocked.tx_id, "transaction.blocked"),
            org=blocked.org,
            type="transaction.blocked",
            timestamp=now,
            wallet_id=blocked.wallet_id,
            summary=f"{format_usdc(blocked.amount)} USDC to {blocked.recipient} refused by {found['rule']}",
            payload={
                "wallet_id": blocked.wallet_id,
                "tx_id": blocked.tx_id,
                "attempted_amount": format_usdc(blocked.amount),
                "recipient": blocked.recipient,
                "violation": found,
                **({} if approval_id is None else {"approval_id": approval_id}),
                "timestamp": iso_ms(now),
            },
        )

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
