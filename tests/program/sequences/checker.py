"""Judges payments by what the rules promise, remembering every payment. It knows nothing of slots."""

from dataclasses import dataclass, field

from app.chain.logs import LoggedViolation
from app.chain.rules import Rules
from tests.program.sequences.steps import DAY, HOUR, MINUTE, PAYEES, SLOT, Payment, month_of


@dataclass
class Checker:
    """What a vault has paid: times and amounts."""

    paid: list[tuple[int, int]] = field(default_factory=list)

    def time(self, clock: int) -> int:
        """Return the time that counts: the clock, but never before the last payment."""
        return max(clock, self.paid[-1][0]) if self.paid else clock

    def accepted(self, rules: Rules, payment: Payment, clock: int) -> None:
        """Record a payment that was made, and check that it breaks no promise."""
        now = self.time(clock)
        self.paid.append((now, payment.amount))
        listed, category = PAYEES[payment.payee]
        assert listed or not rules.restricted
        assert not rules.blocked_categories >> category & 1
        assert _within(now, rules.expiry)
        assert _within(payment.amount, rules.max_per_tx)
        assert payment.co_signed or _within(payment.amount, rules.require_co_sign)
        # Intervals that end earlier were checked with the payment at their end. Both ends belong to the interval.
        assert _within(len(self._since(now - HOUR)), rules.velocity_cap)
        assert _within(sum(self._since(now - DAY)), rules.max_per_day)
        assert _within(self._month(now), rules.max_per_month)

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
                least, most = (len(self._since(now - span)) + 1 for span in (HOUR, HOUR + MINUTE - 1))
                assert max(violation.limit + 1, least) <= violation.attempted <= most
            case "max_per_day":
                assert violation.limit == rules.max_per_day
                least, most = (sum(self._since(now - span)) + payment.amount for span in (DAY, DAY + SLOT - 1))
                assert max(violation.limit + 1, least) <= violation.attempted <= most
            case "max_per_month":
                assert violation.limit == rules.max_per_month
                assert violation.limit < violation.attempted == self._month(now) + payment.amount
            case "require_co_sign":
                assert not payment.co_signed
                assert not _within(payment.amount, rules.require_co_sign)
            case other:
                raise AssertionError(f"refused by {other}")

    def _since(self, time: int) -> list[int]:
        return [amount for at, amount in self.paid if at >= time]

    def _month(self, now: int) -> int:
        month = month_of(now)
        return sum(amount for at, amount in self.paid if month_of(at) == month)


def _within(value: int, limit: int | None) -> bool:
    return limit is None or value <= limit
