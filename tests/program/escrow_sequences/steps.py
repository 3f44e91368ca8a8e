"""Defines random sequences of escrows and allowances, and draws them."""

from dataclasses import dataclass

from hypothesis import strategies as st

from app.chain.rules import Rules
from tests.program.sequences.steps import EARLIEST, JUMPS, LATEST, NUDGES, SLOT, Jump
from tests.support.vm_escrows import DAY, HOUR, THIRTY_DAYS

VAULTS = 2
OUTSIDER = VAULTS
"""Number of the receiver that is not a vault."""
FORGED = 3
"""Used instead of a kind of proof: a signature by somebody else."""
MIN_STEPS = 20
MINUTE = 60


@dataclass(frozen=True)
class Ripening:
    """A step of the clock to the time from which an open escrow can be refunded, or next to it."""

    pick: int
    nudge: int


@dataclass(frozen=True)
class Pay:
    """A vault pays the other one, or the outsider."""

    vault: int
    receiver: int
    amount: int


@dataclass(frozen=True)
class Create:
    """A vault locks money for the other one, or for the outsider."""

    vault: int
    receiver: int
    amount: int
    timeout: int


@dataclass(frozen=True)
class Complete:
    """Somebody submits a proof for an open escrow. `pick` counts back from the newest, modulo their number."""

    pick: int
    kind: int


@dataclass(frozen=True)
class Dispute:
    """A side disputes an escrow."""

    pick: int
    receiver: bool


@dataclass(frozen=True)
class Withdraw:
    """A side withdraws the dispute of an escrow."""

    pick: int
    receiver: bool


@dataclass(frozen=True)
class Resolve:
    """The arbiter releases this percentage of an escrow."""

    pick: int
    percent: int


@dataclass(frozen=True)
class Refund:
    """Somebody asks for the refund of an escrow."""

    pick: int


@dataclass(frozen=True)
class Again:
    """Every instruction is tried on a settled escrow."""

    pick: int


@dataclass(frozen=True)
class Fund:
    """A vault gets money from the reserve."""

    vault: int
    amount: int


@dataclass(frozen=True)
class Donate:
    """A stranger sends money into an escrow."""

    pick: int
    amount: int


@dataclass(frozen=True)
class Grant:
    """A vault sets money aside for a delegate to pay the other one, or the outsider."""

    vault: int
    receiver: int
    amount: int
    seconds: int


@dataclass(frozen=True)
class Delegated:
    """The delegate of an allowance transfers this percentage of what it still may."""

    pick: int
    percent: int


@dataclass(frozen=True)
class Reclaim:
    """An allowance is settled after a stranger's gift: by the operator, or signed by nobody."""

    pick: int
    signed: bool
    gift: int


Move = (
    Pay
    | Create
    | Complete
    | Dispute
    | Withdraw
    | Resolve
    | Refund
    | Again
    | Fund
    | Donate
    | Grant
    | Delegated
    | Reclaim
)
Clock = Jump | Ripening


@dataclass(frozen=True)
class EscrowSequence:
    """The rules of the two vaults, and the moves with the steps of the clock before them."""

    start: int
    rules: tuple[Rules, ...]
    steps: list[tuple[Clock, Move]]


TIMEOUTS = (MINUTE, MINUTE + 1, SLOT, HOUR, DAY, DAY, THIRTY_DAYS, THIRTY_DAYS)
PERCENTS = (0, 1, 50, 99, 100, 100, 0, 101)
SECONDS = (1, MINUTE, 3 * MINUTE)
_clocks: st.SearchStrategy[Clock] = st.sampled_from(
    [*[Jump(0)] * 40, *JUMPS, *(Ripening(pick, nudge) for pick in range(4) for nudge in (*NUDGES, *NUDGES))]
)
_KINDS = [
    *[Create] * 6,
    *[Pay] * 2,
    *[Complete] * 5,
    *[Dispute] * 4,
    *[Withdraw] * 2,
    *[Resolve] * 4,
    *[Refund] * 2,
    Again,
    Fund,
    Donate,
    *[Grant] * 6,
    *[Delegated] * 4,
    *[Reclaim] * 4,
]
"""How often each is drawn."""
_PICKS = (0, 0, 0, 0, 1, 1, 2, 3, 7)
"""Mostly the newest escrows, which allow more than a refund."""


@st.composite
def _moves(draw: st.DrawFn) -> Move:
    kind, pick = draw(st.sampled_from(_KINDS)), draw(st.sampled_from(_PICKS))
    vault, receiver, amount = draw(st.integers(0, VAULTS - 1)), draw(st.integers(0, VAULTS)), draw(st.integers(1, 250))
    if kind is Create:
        return Create(vault, receiver, amount, draw(st.sampled_from(TIMEOUTS)))
    if kind is Pay:
        return Pay(vault, receiver, amount)
    if kind is Complete:
        return Complete(pick, draw(st.integers(0, FORGED)))
    if kind in {Dispute, Withdraw}:
        return (Dispute if kind is Dispute else Withdraw)(pick, draw(st.booleans()))
    if kind is Resolve:
        return Resolve(pick, draw(st.sampled_from(PERCENTS)))
    if kind is Grant:
        return Grant(vault, receiver, amount, draw(st.sampled_from(SECONDS)))
    if kind is Delegated:
        return Delegated(pick, draw(st.sampled_from(PERCENTS[:6])))
    if kind is Reclaim:
        return Reclaim(pick, draw(st.booleans()), draw(st.sampled_from((0, 0, amount))))
    if kind is Fund:
        return Fund(vault, amount)
    if kind is Donate:
        return Donate(pick, amount)
    plain: dict[type, Move] = {Refund: Refund(pick), Again: Again(pick)}
    return plain[kind]


_rules = st.builds(
    Rules,
    max_per_day=st.none() | st.integers(100, 400) | st.integers(0, 1_000),
    max_per_month=st.none() | st.integers(200, 2_000),
    velocity_cap=st.none() | st.none() | st.integers(1, 6),
    allow_allowances=st.just(True),
)


@st.composite
def sequences(draw: st.DrawFn, most: int) -> EscrowSequence:
    """Draw a sequence of 20 to `most` steps."""
    count = draw(st.integers(MIN_STEPS, most))
    steps = draw(st.lists(st.tuples(_clocks, _moves()), min_size=count, max_size=count))
    return EscrowSequence(draw(st.integers(EARLIEST, LATEST)), (draw(_rules), draw(_rules)), steps)
