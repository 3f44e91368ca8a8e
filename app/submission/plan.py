"""Transactions before and after they are sent: what is to be done, and what became of it."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from sqlalchemy import Connection

from app.chain.instructions import MAX_UNITS, compute_unit_limit
from app.chain.records import SimulationResult
from app.core.identifiers import EVENT_INNER_INDEX
from app.store.attempts import Attempt
from app.store.escrows import EscrowRecord


def nothing(_conn: Connection) -> None:
    """Write nothing beside the attempt."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A transaction to be made: what it does on the chain and how it is remembered.

    ``event_instruction`` is the index of the program's instruction in the transaction, ``event_inner`` where its event
    is expected among what that instruction calls. ``attested`` says that the session authority signs. ``also`` is
    written in the database transaction that stores the attempt, and so is ``escrow``, which it is to make.
    """

    org: str
    type: str
    instructions: Sequence[Instruction]
    signers: Sequence[Keypair]
    event_instruction: int = 0
    event_inner: int = EVENT_INNER_INDEX
    wallet_id: str | None = None
    recipient: str | None = None
    recipient_address: str | None = None
    amount: int = 0
    policy_id: str | None = None
    policy_triggered: bool = False
    memo: str | None = None
    reference: bytes | None = None
    attested: bool = False
    also: Callable[[Connection], None] = nothing
    escrow: EscrowRecord | None = None


def distinct(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Return the instructions behind a compute limit that differs each time.

    Two equal transactions under one blockhash would be one; payments and their like carry a random reference instead.
    """
    return [compute_unit_limit(MAX_UNITS - secrets.randbelow(MAX_UNITS // 4)), *instructions]


class RefusedError(Exception):
    """The rehearsal failed: the transaction was not sent."""

    def __init__(self, simulation: SimulationResult) -> None:
        self.simulation = simulation
        super().__init__(str(simulation.err))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt: confirmed at ``slot``, still pending, or failed with the chain's ``error``.

    A pending one that is not ``sendable`` landed and waits for the read models, or is too old to land and waits for
    the events that would show whether it did.
    """

    attempt: Attempt
    status: str
    slot: int | None = None
    error: Any = None
    custom_error: int | None = None
    sendable: bool = True

    @property
    def confirmed(self) -> bool:
        """Whether the chain has confirmed it."""
        return self.status == "confirmed"
