"""Defines random sequences of payments and draws them."""

from calendar import monthrange
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hypothesis import strategies as st

from app.chain.rules import CATEGORIES, Rules

MINUTE, SLOT, HOUR, DAY = 60, 900, 3_600, 86_400
GAMBLING = CATEGORIES.index("gambling")
ADULT = CATEGORIES.index("adult")
PAYEES = ((True, 0), (True, GAMBLING), (False, 0), (False, ADULT))
"""Whether each payee is on the allowlist, and its category."""
MIN_STEPS = 20
EARLIEST, LATEST = 1_700_000_000, 1_900_000_000
"""Unix times between which a sequence starts."""
FOUNDED = EARLIEST - 2 * 366 * DAY
"""Unix time at which recipients are registered: no sequence steps back before it, when that has no effect yet."""


def month_of(time: int) -> tuple[int, int]:
    """Return year and month of a Unix time, in UTC."""
    moment = datetime.fromtimestamp(time, UTC)
    return moment.year, moment.month


def next_month(time: int) -> int:
    """Return the first second of the next calendar month."""
    moment = datetime.fromtimestamp(time, UTC)
    start = int(datetime(moment.year, moment.month, 1, tzinfo=UTC).timestamp())
    return start + monthrange(moment.year, moment.month)[1] * DAY


@dataclass(frozen=True)
class Jump:
    """A step of the clock: `seconds` from a moment, or from the next multiple of `edge` after it (0: the next month).

    The moment is now or, if `payment` is given, the time of that payment, counted back from the last (0).
    """

    seconds: int
    edge: int | None = None
    payment: int | None = None

    def from_time(self, now: int, paid: list[int]) -> int:
        """Return the clock after the step, given the times of the payments made."""
        known = self.payment is not None and self.payment < len(paid)
        moment = paid[-1 - self.payment] if known and self.payment is not None else now
        match self.edge:
            case None:
                return moment + self.seconds
            case 0:
                return next_month(moment) + self.seconds
            case edge:
                return (moment // edge + 1) * edge + self.seconds


@dataclass(frozen=True)
class Payment:
    """A payment after a step of the clock."""

    jump: Jump
    amount: int
    payee: int
    co_signed: bool


@dataclass(frozen=True)
class Edit:
    """New rules for the attached policy. Their `expiry` counts from the time of the edit."""

    rules: Rules


@dataclass(frozen=True)
class Switch:
    """The vault gets the other policy."""


Step = Payment | Edit | Switch


@dataclass(frozen=True)
class PaymentSequence:
    """The initial rules of the restricted and the open policy, and the steps. The vault starts under the open one."""

    start: int
    restricted: Rules
    open: Rules
    steps: list[Step]


NUDGES = (0, -1, 1)
EDGES = (MINUTE, SLOT, HOUR, DAY)
SPANS = (HOUR, HOUR + MINUTE, DAY, DAY + SLOT)
JUMPS = [
    *[Jump(0)] * 40,
    *(Jump(nudge, edge) for edge in EDGES for nudge in (*NUDGES, -1, -1)),
    *(Jump(nudge, 0) for nudge in NUDGES),
    *(Jump(edge + nudge) for edge in EDGES for nudge in NUDGES),
    *(Jump(span + nudge) for span in SPANS for nudge in NUDGES),
    *(
        Jump(span + nudge, edge, payment)
        for edge, span in ((MINUTE, HOUR), (SLOT, DAY))
        for nudge in NUDGES
        for payment in range(6)
    ),
    *(Jump(span - less) for span in SPANS for less in (MINUTE - 1, MINUTE, SLOT - 1, SLOT)),
    *(Jump(-seconds) for seconds in (1, 59, 60, 61, 899, 900, 3_600, 86_400, 200_000)),
    *(Jump(seconds) for seconds in (7, 31, 97, 313, 1_009, 5_003, 50_021, 199_999)),
]
"""Steps that tend to stay, or to land on or next to the edges of slots and months and the moments at which earlier
payments leave their windows."""
PLAIN, CO_SIGNED, EDIT, SWITCH = range(4)
KINDS = [
    *[(PLAIN, 0)] * 16,
    *[(CO_SIGNED, 0)] * 8,
    *((kind, payee) for kind in (PLAIN, CO_SIGNED) for payee in range(1, len(PAYEES))),
    *((EDIT, number) for number in range(2)),
    (SWITCH, 0),
]
"""Mostly payments to the first payee, which most rules allow, so that the windows fill."""


def _seldom(strategy: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.integers(0, 7).flatmap(lambda number: strategy if number == 5 else st.none())


_rules = st.builds(
    Rules,
    max_per_tx=_seldom(st.integers(50, 250)),
    max_per_day=st.none() | st.integers(0, 1_000) | st.integers(100, 400),
    max_per_month=_seldom(st.integers(0, 6_000)),
    velocity_cap=st.none() | st.integers(0, 6) | st.integers(1, 3),
    require_co_sign=_seldom(st.integers(50, 250)),
    expiry=_seldom(st.integers(-1, 800_000)),
    blocked_categories=st.sampled_from([0] * 8 + [1 << GAMBLING, 1 << ADULT, 1]),
)
_drawn = st.tuples(st.sampled_from(JUMPS), st.integers(1, 250), st.sampled_from(KINDS))


@st.composite
def sequences(draw: st.DrawFn, most: int) -> PaymentSequence:
    """Draw a sequence of 20 to `most` steps."""
    restricted, *others = draw(st.lists(_rules, min_size=4, max_size=4))
    count = draw(st.integers(MIN_STEPS, most))
    steps: list[Step] = []
    for jump, amount, (kind, number) in draw(st.lists(_drawn, min_size=count, max_size=count)):
        if kind == EDIT:
            steps.append(Edit(others[1 + number]))
        elif kind == SWITCH:
            steps.append(Switch())
        else:
            steps.append(Payment(jump, amount, number, kind == CO_SIGNED))
    return PaymentSequence(draw(st.integers(EARLIEST, LATEST)), replace(restricted, restricted=True), others[0], steps)
