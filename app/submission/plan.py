"""Transactions before and after sending: their plans and their outcomes."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.instructions import MAX_UNITS, compute_unit_limit
from app.chain.records import SimulationResult
from app.core.actors import Actor
from app.core.errors import ApiError
from app.core.identifiers import EVENT_INNER_INDEX, transaction_id
from app.core.signers import Signer
from app.core.transaction_types import ROW_OF
from app.store.attempts import Attempt
from app.store.audit import NewLogEntry
from app.store.brakes import BrakeKind
from idl.transactions import message_hash


@dataclass(frozen=True, slots=True)
class Authority:
    """An organisation's authority: its address, and its key unless it signs offline."""

    address: Pubkey
    key: Signer | None


Hook = Callable[[Connection, Attempt], None]
"""A write that joins the database transaction which stores an attempt or records its failure."""


def nothing(_conn: Connection, _attempt: Attempt) -> None:
    """Write nothing."""


@dataclass(frozen=True, slots=True)
class PlanType:
    """A kind of transaction, declared by its capability. Attempts are stored under its ``name``.

    - ``projected``: the projector records the success together with the transaction's event, instead of the submitter.
    - ``indexed``: the transaction calls the program, so the indexer finds it.
    - ``resent``: recovery may resend the stored bytes. A change that could undo a newer one is resent only by its own
      request, repeated under its idempotency key.
    - ``waits_for``: names of types that delay this one. While a transaction of such a type is pending, this one is not
      sent, because the other could land later and undo this one, or take the address that this one needs.
    - ``superseded``: a newer transaction of this type replaces the effect of the older one. The newer request may
      therefore resend the older transaction first.
    - ``braked``: the transaction spends money, so a freeze, a pause or an operator's rotation of its session token
      stops it.
    - ``lifts``: the kind of brake that the transaction would undo on the chain. Such a brake stops the transaction.
    - ``stops``: the transaction ends the permission for a vault's allowances. They are settled once it has been sent.
    - ``held``: lamports of rent that the transaction locks until a later transaction settles the escrow or allowance.
      The later transaction is ``prepaid``: its fee was already charged to the wallet's SOL limit with the first
      transaction.
    - ``on_failed``: removes the rows that the plan's ``on_store`` wrote, if the attempt fails permanently.
    """

    name: str
    projected: bool = False
    indexed: bool = True
    resent: bool = True
    waits_for: frozenset[str] = frozenset()
    superseded: bool = False
    braked: bool = False
    lifts: BrakeKind | None = None
    stops: bool = False
    held: int = 0
    prepaid: bool = False
    on_failed: Hook = nothing


@dataclass(frozen=True, slots=True)
class Plan:
    """A transaction to make: its effect on the chain, and the data to store about it.

    ``authority``, if given, must sign as well. ``event_instruction`` is the index of the program's instruction among
    ``instructions``, ``event_inner`` the expected index of its event among the inner instructions. ``attested`` means
    that the session authority signs. ``actor`` requested the change to a policy. ``entry`` is appended to the audit log
    in the database transaction that stores the attempt, with the ids of the transaction; payments have none.
    ``opens_account`` means that the fee payer opens a token account for the recipient. ``prepaid`` is the fee of a
    further transaction in lamports, which counts towards the wallet's SOL limit together with this one's. ``limited``
    means that the limits on the fee payer's SOL apply to this transaction as they do to expenses. ``on_store`` writes
    in the same database transaction and has no other effect, because it may run a second time after its writes were
    undone.
    """

    org: str
    type: PlanType
    instructions: Sequence[Instruction]
    signers: Sequence[Signer] = ()
    authority: Authority | None = None
    event_instruction: int = 0
    event_inner: int = EVENT_INNER_INDEX
    wallet_id: str | None = None
    recipient: str | None = None
    recipient_address: str | None = None
    amount: int = 0
    policy_id: str | None = None
    policy_triggered: bool = False
    memo: str | None = None
    actor: Actor | None = None
    #: The actor who requested the spending. Once the actor's API key is revoked, the attempt is not stored.
    asked_by: Actor | None = None
    entry: NewLogEntry | None = None
    reference: bytes | None = None
    attested: bool = False
    opens_account: bool = False
    prepaid: int = 0
    limited: bool = False
    on_store: Hook = nothing
    #: A third party that pays the fee and sends the transaction. The service only signs it and hands it out.
    fee_payer: Pubkey | None = None
    #: Error to raise after a successful simulation, instead of sending the transaction.
    refusal: ApiError | None = None


#: Fields that an attempt copies from its plan.
_SHARED = (
    *("org", "wallet_id", "recipient", "recipient_address", "amount", "policy_id", "policy_triggered", "memo"),
    "reference",
)


def attempt_for(plan: Plan, raw: bytes, *, status: str, created_at: int, added: int = 0) -> Attempt:
    """Return the attempt to store for a plan and the bytes of its transaction.

    ``added`` is the number of instructions before the plan's own. ``event_instruction`` does not count them.
    ``created_at`` is in milliseconds.
    """
    message, instruction = message_hash(raw), plan.event_instruction + added
    return Attempt(
        **{name: getattr(plan, name) for name in _SHARED},
        tx_id=transaction_id(message, instruction, plan.event_inner, ROW_OF.get(plan.type.name, plan.type.name)),
        type=plan.type.name,
        status=status,
        actor=plan.actor if plan.entry is None else plan.entry.actor,
        subject=None if plan.entry is None else plan.entry.object,
        message_hash=message,
        instruction_index=instruction,
        inner_index=plan.event_inner,
        raw=raw,
        attestation_hash=f"sha256:{message}" if plan.attested else None,
        created_at=created_at,
    )


class AwaitingSignatureError(Exception):
    """Ends a request: its transaction is stored and awaits a signature made offline."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        super().__init__(attempt.tx_id)


def with_random_compute_limit(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Prepend a random compute limit to the instructions.

    Two transactions with equal instructions and the same blockhash would be one transaction to the chain. Payments and
    other movements of money carry a reference of their own instead.
    """
    return [compute_unit_limit(MAX_UNITS - secrets.randbelow(MAX_UNITS // 4)), *instructions]


class SimulationFailedError(Exception):
    """The simulation failed, so the transaction was not sent."""

    def __init__(self, simulation: SimulationResult) -> None:
        self.simulation = simulation
        self.custom_error = simulation.custom_error
        super().__init__(str(simulation.err))

    @property
    def lacks_account(self) -> bool:
        """True if an instruction failed without a program error, as happens for a missing or archived account."""
        return self.simulation.failed_instruction is not None and self.custom_error is None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt: confirmed at ``slot``, still pending, or failed with an ``error``.

    The error is the chain's, or `expired`, or the code of the brake that stopped the attempt.

    A pending attempt is not ``sendable`` if it has landed and waits for its confirmation or the read models, or if a
    third party sends it. It is not ``sendable`` either if it is too old to land, while missing events might show that
    it has landed.
    """

    attempt: Attempt
    status: str
    slot: int | None = None
    error: Any = None
    custom_error: int | None = None
    sendable: bool = True

    @property
    def confirmed(self) -> bool:
        """True if the chain has confirmed the attempt."""
        return self.status == "confirmed"


Failure = SimulationFailedError | Outcome
"""A transaction that failed in simulation, or an outcome that is a failure."""
