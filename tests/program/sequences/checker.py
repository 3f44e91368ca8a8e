"""Judges payments by what the rules promise, remembering every payment. It knows nothing of slots."""

from dataclasses import dataclass, field

from app.chain.logs import LoggedViolation
from app.chain.rules import Rules
from tests.program.sequences.steps import DAY, HOUR, MINUTE, PAYEES, SLOT, Payment, month_of


@dataclass
class Checker:
    """What a vault has paid and what its settled allowances have spent: times and amounts. `held` is in open ones."""

    paid: list[tuple[int, int]] = field(default_factory=list)
    settled: list[tuple[int, int]] = field(default_factory=list)
    held: int = 0

    def time(self, clock: int) -> int:
        """Return the time that counts: the clock, but never before the last payment."""
        return max([clock, *(one[-1][0] for one in (self.paid, self.settled) if one)])

    def accepted(self, rules: Rules, payment: Payment, clock: int, *, held: bool = False) -> None:
        """Record a payment that was made, or an allowance that is `held`, and check that it breaks no promise."""
        now = self.time(clock)
        self.paid.append((now, 0 if held else payment.amount))
        self.held += payment.amount if held else 0
        listed, category = PAYEES[payment.payee]
        assert listed or not rules.restricted
        assert not rules.blocked_categories >> category & 1
        assert _within(now, rules.expiry)
        assert _within(payment.amount, rules.max_per_tx)
        assert payment.co_signed or _within(payment.amount, rules.require_co_sign)
        # Intervals that end earlier were checked with the payment at their end. Both ends belong to the interval.
        assert _within(self._count(now - HOUR), rules.velocity_cap)
        assert _within(self._sum(now - DAY), rules.max_per_day)
        assert _within(self._month(now), rules.max_per_month)

    def settle(self, clock: int, amount: int, spent: int) -> None:
        """Release an allowance of this amount, which counts from now on with the spent part."""
        self.held -= amount
        if spent:
            self.settled.append((self.time(clock), spent))

    def refused(self, rules: Rules, payment: Payment, clock: int, violation: LoggedViolation) -> None:
        """Check that a refusal is stricter than the promise by less than one slot of its window."""
        now = self.time(clock)
        listed, category = PAYEES[payment.payee]
        match violation.rule_name:
            case "expiry":
                assert not _within(now, rules.expiry)
            case "allowed_recipients":
                assert rules.restricted
                assert not listed
            case "blocked_categories":
                assert rules.blocked_categories >> category & 1
            case "max_per_tx":
                assert not _within(payment.amount, rules.max_per_tx)
            case "velocity_cap":
                assert violation.limit == rules.velocity_cap
                least, most = (self._count(now - span) + 1 for span in (HOUR, HOUR + MINUTE - 1))
                assert max(violation.limit + 1, least) <= violation.attempted <= most
            case "max_per_day":
                assert violation.limit == rules.max_per_day
                least, most = (self._sum(now - span) + payment.amount for span in (DAY, DAY + SLOT - 1))
                assert max(violation.limit + 1, least) <= violation.attempted <= most
            case "max_per_month":
                assert violation.limit == rules.max_per_month
                assert violation.limit < violation.attempted == self._month(now) + payment.amount
            case "require_co_sign":
                assert not payment.co_signed
                assert not _within(payment.amount, rules.require_co_sign)
            case other:
                raise AssertionError(f"refused by {other}")

    def _count(self, time: int) -> int:
        return sum(at >= time for at, _ in self.paid)

    def _sum(self, time: int) -> int:
        return self.held + sum(amount for at, amount in [*self.paid, *self.settled] if at >= time)

    def _month(self, now: int) -> int:
        month = month_of(now)
        return self.held + sum(amount for at, amount in [*self.paid, *self.settled] if month_of(at) == month)


def _within(value: int, limit: int | None) -> bool:
    return limit is None or value <= limit
