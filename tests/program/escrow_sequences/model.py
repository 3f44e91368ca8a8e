"""Predicts the results of payments, escrows and allowances, remembering every one and what was really paid of it."""

from dataclasses import dataclass, field

from app.chain.logs import LoggedViolation
from app.chain.rules import Rules
from tests.program.escrow_sequences.steps import FORGED
from tests.program.sequences.steps import MINUTE, SLOT, month_of
from tests.support.vm_escrows import (
    COMPLETED,
    DAY,
    HOUR,
    REFUNDED,
    RELEASED,
    SPLIT,
    THIRTY_DAYS,
    TIMED_OUT,
    UNDECIDED,
)


@dataclass
class Spent:
    """Money that left a vault at some time, less what an escrow returned.

    A grant counts as one of the `payments` without money, a settled allowance as money without a payment.
    """

    time: int
    amount: int
    payments: int = 1
    held: bool = False


@dataclass
class Account:
    """A vault: its rules, its money, and everything it ever spent."""

    rules: Rules
    balance: int
    spent: list[Spent] = field(default_factory=list)
    held: int = 0
    escrows: int = 0
    allowances: int = 0

    def time(self, clock: int) -> int:
        """Return the time that counts: the clock, but never before the last payment."""
        return max(clock, self.spent[-1].time) if self.spent else clock

    def spend(self, amount: int, clock: int, *, held: bool = False) -> Spent:
        """Record a payment that was made, or an allowance that is `held`, and check that it breaks no promise."""
        spent = Spent(self.time(clock), 0 if held else amount, held=held)
        self.held += amount if held else 0
        self.spent.append(spent)
        self.balance -= amount
        # Intervals that end earlier were checked with the payment at their end, and refunds only reduce them.
        assert _within(self.count(spent.time - HOUR), self.rules.velocity_cap)
        assert _within(self.sum(spent.time - DAY), self.rules.max_per_day)
        assert _within(self.month(spent.time), self.rules.max_per_month)
        return spent

    def refused(self, amount: int, clock: int, violation: LoggedViolation) -> None:
        """Check that a refusal is stricter than the promise by less than one slot of its window."""
        now, rules = self.time(clock), self.rules
        match violation.rule_name:
            case "velocity_cap":
                least, most = (self.count(now - span) + 1 for span in (HOUR, HOUR + MINUTE - 1))
                limit = rules.velocity_cap
            case "max_per_day":
                least, most = (self.sum(now - span) + amount for span in (DAY, DAY + SLOT - 1))
                limit = rules.max_per_day
            case "max_per_month":
                least = most = self.month(now) + amount
                limit = rules.max_per_month
            case other:
                raise AssertionError(f"refused by {other}")
        assert violation.limit == limit
        assert max(violation.limit + 1, least) <= violation.attempted <= most

    def count(self, since: int) -> int:
        """Return the number of payments since a time."""
        return sum(one.payments for one in self.spent if one.time >= since)

    def sum(self, since: int) -> int:
        """Return what was spent since a time and not returned, and what is held."""
        return self.held + sum(one.amount for one in self.spent if one.time >= since)

    def month(self, time: int) -> int:
        """Return what was spent in the calendar month of a time and not returned, and what is held."""
        month = month_of(time)
        return self.held + sum(one.amount for one in self.spent if month_of(one.time) == month)


@dataclass
class Locked:
    """An escrow. `gift` is what strangers sent into it."""

    vault: Account
    amount: int
    deadline: int
    spent: Spent
    disputed_at: int | None = None
    disputed_by: int | None = None
    raised: set[int] = field(default_factory=set)
    gift: int = 0

    @property
    def ripe_at(self) -> int:
        """The time from which it can be refunded."""
        return self.deadline if self.disputed_at is None else self.disputed_at + THIRTY_DAYS

    def complete(self, kind: int, clock: int) -> str | tuple[int, int]:
        """Return the error that a completion must end with, or its outcome and what it releases."""
        return self._open(clock) or ("InvalidProof" if kind == FORGED else (COMPLETED, self.amount))

    def dispute(self, side: int, clock: int) -> str | None:
        """Raise a side's dispute, or return the error that it must end with. Each side raises one."""
        error = self._open(clock) or ("DisputeRaisedBefore" if side in self.raised else None)
        if error is None:
            self.disputed_at, self.disputed_by = self.vault.time(clock), side
            self.raised.add(side)
        return error

    def withdraw(self, side: int, clock: int) -> str | None:
        """Withdraw the dispute, or return the error that it must end with."""
        if self.disputed_at is None:
            return "EscrowNotDisputed"
        if side != self.disputed_by:
            return "Unauthorized"
        self.deadline += self.vault.time(clock) - self.disputed_at
        self.disputed_at = self.disputed_by = None
        return None

    def refund(self, clock: int) -> str | tuple[int, int]:
        """Return the error that a refund must end with, or its outcome and what it releases."""
        if self.vault.time(clock) < self.ripe_at:
            return "EscrowNotExpired"
        return (TIMED_OUT if self.disputed_at is None else UNDECIDED, 0)

    def resolve(self, released: int) -> str | tuple[int, int]:
        """Return the error that a decision must end with, or its outcome and what it releases."""
        if self.disputed_at is None:
            return "EscrowNotDisputed"
        if released > self.amount:
            return "EscrowAmountExceeded"
        return ({0: REFUNDED, self.amount: RELEASED}.get(released, SPLIT), released)

    def settle(self, released: int) -> None:
        """Return what was not released, and the gift, which does not count towards budgets."""
        self.spent.amount = released
        self.vault.balance += self.amount - released + self.gift

    def _open(self, clock: int) -> str | None:
        if self.disputed_at is not None:
            return "EscrowDisputed"
        return "EscrowExpired" if self.vault.time(clock) >= self.deadline else None


@dataclass
class Granted:
    """An allowance. `left` is what the delegate may still transfer."""

    vault: Account
    amount: int
    expires_at: int
    left: int

    def settle(self, clock: int, *, signed: bool) -> str | None:
        """Return the error that a settlement must end with, if any."""
        return "AllowanceNotExpired" if not signed and self.vault.time(clock) < self.expires_at else None

    def settled(self, gift: int, clock: int) -> None:
        """Return what was not spent, and the gift, which counts towards no budget. The rest counts from now on."""
        self.vault.held -= self.amount
        if self.left < self.amount:
            self.vault.spent.append(Spent(self.vault.time(clock), self.amount - self.left, payments=0))
        self.vault.balance += self.left + gift


def _within(value: int, limit: int | None) -> bool:
    return limit is None or value <= limit
