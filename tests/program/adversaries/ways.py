"""Defines valid calls and keeps the list of all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from solders.instruction import Instruction

from tests.program.adversaries.stage import Party
from tests.support.vm import CODEC

REFERENCE = b"the same one: 16"

Seeds = tuple[bytes, ...]


@dataclass(frozen=True)
class Call:
    """A valid call, and what must come directly before it in its transaction.

    `seeds` are those of the addresses at which it creates accounts of the program. `ends_at` is where its data has a
    time that is soon over.
    """

    instruction: Instruction
    seeds: dict[str, Seeds] = field(default_factory=dict)
    before: tuple[Instruction, ...] = ()
    ends_at: slice | None = None

    def renewed(self, until: int) -> "Call":
        """Return the same call with this time, for one that was made long ago by a chain whose clock does not stop."""
        if self.ends_at is None:
            return self
        one, data = self.instruction, bytearray(self.instruction.data)
        data[self.ends_at] = until.to_bytes(8, "little")
        return replace(self, instruction=Instruction(one.program_id, bytes(data), one.accounts))

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The call, preceded by what must come before it."""
        return (*self.before, self.instruction)


@dataclass(frozen=True)
class Way:
    """One way to call an instruction."""

    name: str
    make: Callable[[Party], Call]

    @property
    def instruction(self) -> str:
        return self.name.partition(" ")[0]


CALLS: list[Way] = []


def way(name: str) -> Callable[[Callable[[Party], Instruction | Call]], None]:
    """Register a valid call. The name is that of the instruction, then a space and the name of the way."""

    def register(make: Callable[[Party], Instruction | Call]) -> None:
        def call(party: Party) -> Call:
            made = make(party)
            return made if isinstance(made, Call) else Call(made)

        CALLS.append(Way(name, call))

    return register


@dataclass(frozen=True)
class Slot:
    """An account of an instruction as the IDL describes it."""

    name: str
    signer: bool
    writable: bool
    optional: bool


def slots(instruction: str) -> Sequence[Slot]:
    """Return the accounts of an instruction, in order."""
    (found,) = (item for item in CODEC.idl["instructions"] if item["name"] == instruction)
    return [
        Slot(
            account["name"],
            account.get("signer", False),
            account.get("writable", False),
            account.get("optional", False),
        )
        for account in found["accounts"]
    ]
