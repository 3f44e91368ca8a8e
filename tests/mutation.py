"""Changes each boundary of the policy crate by one and checks that its native tests notice.

`python tests/mutation.py` works on a copy, prints a table, and exits with 1 if a change goes unnoticed. It needs cargo
and takes some minutes.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / "programs"
POLICY = PROGRAMS / "agent-vault" / "policy"
TIMEOUT = 300
"""Seconds after which a change counts as noticed because the tests hang."""

WINDOW, TYPES, VERDICT, ESCROW = "window.rs", "types.rs", "verdict.rs", "escrow.rs"
BUDGET, LIB = "budget.rs", "lib.rs"


@dataclass(frozen=True)
class Mutant:
    """A change: in `file`, the `nth` occurrence of `old` becomes `new`.

    `equivalent` says why no test can notice it, if none can.
    """

    file: str
    old: str
    new: str
    nth: int = 0
    equivalent: str = ""


def _each(file: str, old: str, *new: str, nth: int = 0) -> Iterator[Mutant]:
    for one in new:
        yield Mutant(file, old, one, nth)


def _rule(name: str, old: str, *new: str) -> Iterator[Mutant]:
    return _each(f"rules/{name}.rs", old, *new)


_SAME_YEARS = "the quotients differ on some days of the 400 years, but none of these moves the start of a year"

MUTANTS = [
    # The windows' sizes
    *_each(WINDOW, "Window<97, 900>", "Window<96, 900>", "Window<98, 900>", "Window<97, 899>", "Window<97, 901>"),
    *_each(WINDOW, "Window<61, 60>", "Window<60, 60>", "Window<62, 60>", "Window<61, 59>", "Window<61, 61>"),
    # What the window holds
    *_each(WINDOW, "if slot <= self.newest", "if slot >= self.newest", "if slot <= self.newest + 1"),
    Mutant(
        WINDOW,
        "if slot <= self.newest",
        "if slot < self.newest",
        equivalent="at the newest slot itself nothing leaves, so the sum is the total",
    ),
    *_each(
        WINDOW,
        "let leaving = slot.saturating_sub(self.newest);",
        "let leaving = slot.saturating_sub(self.newest).saturating_sub(1);",
        "let leaving = slot.saturating_sub(self.newest).saturating_add(1);",
    ),
    *_each(
        WINDOW,
        "(self.slots.len() as u64).saturating_sub(leaving)",
        "(self.slots.len() as u64 - 1).saturating_sub(leaving)",
        "(self.slots.len() as u64 + 1).saturating_sub(leaving)",
    ),
    *_each(WINDOW, "if staying < leaving", "if staying > leaving"),
    Mutant(
        WINDOW,
        "if staying < leaving",
        "if staying <= leaving",
        equivalent="windows have odd numbers of slots, so the number that stays never equals the number that leaves",
    ),
    *_each(WINDOW, "self.sum(slot.saturating_add(1), ", "self.sum(slot, ", "self.sum(slot + 2, "),
    *_each(WINDOW, "self.sum(self.newest.saturating_add(1), ", "self.sum(self.newest, ", "self.sum(slot, "),
    *_each(WINDOW, "halves(self.newest.saturating_add(1), ", "halves(self.newest, ", "halves(self.newest + 2, "),
    *_each(WINDOW, "if held <= self.total", "if held < self.total", "if true"),
    *_each(WINDOW, ".wrapping_add(self.sum_of(newer)?)", ".wrapping_sub(self.sum_of(newer)?)", ""),
    *_each(WINDOW, "sum.wrapping_add(*a)", "sum"),
    *_each(WINDOW, ".wrapping_add(*h)", ""),
    *_each(WINDOW, "|sum, slot| sum.wrapping_add(*slot)", "|sum, _| sum"),
    *_each(WINDOW, "self.total.checked_sub(gone)", "self.total.checked_add(gone)", "Some(self.total)"),
    # What is added
    *_each(WINDOW, "if slot > self.newest", "if slot < self.newest", "if slot > self.newest + 1"),
    Mutant(
        WINDOW,
        "if slot > self.newest",
        "if slot >= self.newest",
        equivalent="advancing to the newest slot empties nothing and changes nothing",
    ),
    *_each(WINDOW, "self.total = held.checked_add(value)", "self.total = self.total.checked_add(value)"),
    *_each(
        WINDOW,
        "let leaving = slot.saturating_sub(self.newest).min(SLOTS as u64);",
        "let leaving = slot.saturating_sub(self.newest).saturating_sub(1).min(SLOTS as u64);",
        "let leaving = slot.saturating_sub(self.newest).saturating_add(1).min(SLOTS as u64);",
        "let leaving = slot.saturating_sub(self.newest).min(SLOTS as u64 - 1);",
        "let leaving = slot.saturating_sub(self.newest);",
    ),
    *_each(WINDOW, "        self.newest = slot;", "        self.newest = slot + 1;", "        self.newest = slot - 1;"),
    *_each(
        WINDOW,
        "start.saturating_add(usize::try_from(count).unwrap_or(length))",
        "start.saturating_add(usize::try_from(count).unwrap_or(length)).saturating_sub(1)",
        "start.saturating_add(usize::try_from(count).unwrap_or(length)) + 1",
    ),
    *_each(
        WINDOW,
        "(start..end.min(length), 0..end.saturating_sub(length))",
        "(start..end.min(length - 1), 0..end.saturating_sub(length))",
        "(start..end.min(length), 0..end.saturating_sub(length - 1))",
        "(start..end.min(length), 0..end.saturating_sub(length + 1))",
        "(start + 1..end.min(length), 0..end.saturating_sub(length))",
        "(start..end.min(length), 1..end.saturating_sub(length))",
    ),
    # When it fits
    *_each(WINDOW, "if self.total_at(now)? <= room", "if self.total_at(now)? < room"),
    *_each(WINDOW, "if self.total_at_slot(slot)? <= room", "if self.total_at_slot(slot)? < room"),
    *_each(
        WINDOW,
        "let end = self.newest.saturating_add(self.slots.len() as u64);",
        "let end = self.newest.saturating_add(self.slots.len() as u64 - 1);",
    ),
    Mutant(
        WINDOW,
        "while slot < end",
        "while slot <= end",
        equivalent="at the end the window is empty, so the loop has been left by then",
    ),
    *_each(WINDOW, "slot = slot.saturating_add(1);", "slot = slot.saturating_add(2);"),
    *_each(WINDOW, "let seconds = slot.saturating_mul(SECONDS);", "let seconds = (slot + 1) * SECONDS;"),
    *_each(WINDOW, "let seconds = slot.saturating_mul(SECONDS);", "let seconds = slot * SECONDS + 1;"),
    # Months
    *_each(WINDOW, "if now < self.ends_at", "if now <= self.ends_at", "if now > self.ends_at"),
    *_each(WINDOW, "if now >= self.ends_at", "if now > self.ends_at", "if now < self.ends_at"),
    *_each(WINDOW, "const DAY: u64 = 86_400", "const DAY: u64 = 86_399", "const DAY: u64 = 86_401"),
    *_each(WINDOW, "u64 = 719_468", "u64 = 719_467", "u64 = 719_469"),
    *_each(WINDOW, "u64 = 146_097", "u64 = 146_096", "u64 = 146_098"),
    *_each(WINDOW, "day_of_era / 1_460", "day_of_era / 1_461"),
    *(
        Mutant(WINDOW, f"day_of_era / {days}", f"day_of_era / {fewer}", equivalent=_SAME_YEARS)
        for days, fewer in (("1_460", "1_459"), ("36_524", "36_523"), ("146_096", "146_095"))
    ),
    *_each(WINDOW, "day_of_era / 36_524", "day_of_era / 36_525"),
    *_each(WINDOW, "day_of_era / 146_096", "day_of_era / 146_097"),
    *_each(WINDOW, "/ 146_096) / 365", "/ 146_096) / 364", "/ 146_096) / 366"),
    *_each(WINDOW, "(5 * day_of_year + 2) / 153", "(5 * day_of_year + 1) / 153", "(5 * day_of_year + 3) / 153"),
    *_each(WINDOW, "month_from_march == 11", "month_from_march == 10", "month_from_march == 12"),
    *_each(WINDOW, "let year = year_of_era + 1;", "let year = year_of_era;", "let year = year_of_era + 2;"),
    *_each(
        WINDOW,
        "(153 * (month_from_march + 1) + 2) / 5",
        "(153 * (month_from_march + 1) + 1) / 5",
        "(153 * (month_from_march + 1) + 3) / 5",
        "(153 * month_from_march + 2) / 5",
        "(153 * (month_from_march + 2) + 2) / 5",
    ),
    # The ledger
    *_each(TYPES, "clock.max(self.last)", "clock.min(self.last)", "clock"),
    *_each(TYPES, "charge.at, 1)?", "charge.at, 0)?", "charge.at, 2)?"),
    *_each(TYPES, "self.last = charge.at;", "", "self.last = UnixTime(charge.at.0 + 1);"),
    *_each(TYPES, "self.day.add_to(charge.day_held, charge.at, charge.amount.0)?;", ""),
    *_each(TYPES, "self.month.add(charge.at, charge.amount)?;", ""),
    # What comes back
    *_each(WINDOW, "if slot > self.newest || self", "if slot >= self.newest || self", "if self"),
    *_each(
        WINDOW,
        "self.newest.saturating_sub(slot) >= SLOTS as u64",
        "self.newest.saturating_sub(slot) > SLOTS as u64",
        "self.newest.saturating_sub(slot) >= SLOTS as u64 - 1",
    ),
    *_each(WINDOW, "value.min(*entry).min(self.total)", "value.min(self.total)", "value"),
    Mutant(
        WINDOW,
        "value.min(*entry).min(self.total)",
        "value.min(*entry)",
        equivalent="no slot holds more than the total",
    ),
    *_each(WINDOW, "*entry = entry.saturating_sub(taken);", ""),
    *_each(WINDOW, "self.total = self.total.saturating_sub(taken);", ""),
    *_each(TYPES, "day_slot: self.day.newest", "day_slot: self.day.newest + 1", "day_slot: self.day.newest - 1"),
    *_each(TYPES, "month_ends_at: self.month.ends_at", "month_ends_at: self.last"),
    *_each(TYPES, "self.day.take_back(place.day_slot, returned.0);", ""),
    *_each(
        TYPES,
        "if self.month.ends_at == place.month_ends_at",
        "if self.month.ends_at != place.month_ends_at",
        "if self.month.ends_at >= place.month_ends_at",
    ),
    Mutant(
        TYPES,
        "if self.month.ends_at == place.month_ends_at",
        "if self.month.ends_at <= place.month_ends_at",
        equivalent="the ledger's month is never earlier than one it has charged",
    ),
    *_each(TYPES, "self.month.spent.0.saturating_sub(returned.0)", "self.month.spent.0", "0"),
    # Escrows
    *_each(ESCROW, "u32 = 60;", "u32 = 59;", "u32 = 61;"),
    *_each(ESCROW, "u32 = 30 * 86_400;", "u32 = 30 * 86_400 - 1;", "u32 = 30 * 86_400 + 1;"),
    *_each(ESCROW, "i64 = 30 * 86_400;", "i64 = 30 * 86_400 - 1;", "i64 = 30 * 86_400 + 1;"),
    *_each(ESCROW, "MIN_TIMEOUT_SECONDS..=MAX_TIMEOUT_SECONDS", "MIN_TIMEOUT_SECONDS..MAX_TIMEOUT_SECONDS"),
    *_each(ESCROW, "i64::from(timeout_seconds)", "i64::from(timeout_seconds) + 1"),
    *_each(ESCROW, "Outcome::Completed, self.amount", "Outcome::Completed, Usdc(0)"),
    *_each(ESCROW, "self.settle(outcome, Usdc(0))", "self.settle(outcome, self.amount)"),
    *_each(ESCROW, "if now < from", "if now <= from", "if now > from"),
    *_each(ESCROW, "at.0.saturating_add(UNDECIDED_SECONDS)", "at.0"),
    *_each(ESCROW, "self.open_at(now)?;", "", nth=0),
    *_each(ESCROW, "self.open_at(now)?;", "", nth=1),
    *_each(ESCROW, "if self.disputed_at.is_none()", "if self.disputed_at.is_some()", "if false"),
    *_each(ESCROW, "if self.decided", "if false", "if !self.decided"),
    *_each(ESCROW, "self.deadline.0.saturating_sub(at)", "self.deadline.0", "0"),
    *_each(ESCROW, "now.0.saturating_add(remaining)", "now.0", "remaining"),
    *_each(ESCROW, "if released > self.amount", "if released >= self.amount", "if released < self.amount", "if false"),
    *_each(ESCROW, "if released == self.amount", "if released != self.amount"),
    *_each(ESCROW, "if released.0 == 0", "if released.0 != 0", "if released.0 <= 1"),
    *_each(ESCROW, "if now >= self.deadline", "if now > self.deadline", "if now < self.deadline"),
    *_each(ESCROW, "self.amount.0.saturating_sub(released.0)", "self.amount.0", "released.0"),
    # The rules
    *_rule("expiry", "now <= expiry", "now < expiry", "now >= expiry"),
    *_rule("max_per_tx", "payment.amount <= limit", "payment.amount < limit", "payment.amount >= limit"),
    *_rule("velocity_cap", "attempted <= cap", "attempted < cap", "attempted >= cap"),
    *_rule("velocity_cap", "count.saturating_add(1)", "count", "count.saturating_add(2)"),
    *_rule("velocity_cap", "cap.saturating_sub(count)", "cap.saturating_sub(attempted)"),
    *_rule("require_co_sign", "payment.amount <= threshold", "payment.amount < threshold"),
    *_rule("require_co_sign", "threshold || payment.co_signed", "threshold && payment.co_signed"),
    *_rule("blocked_categories", "bit != 0 &&", "bit == 0 &&", "bit != 0 ||"),
    *_rule("blocked_categories", "blocked_categories & bit == 0", "blocked_categories & bit != 0"),
    *_rule("allowed_recipients", "payment.listed, 0", "!payment.listed, 0"),
    *_rule("allowed_recipients", "            candidate < wanted\n", "candidate > wanted\n", "true\n", "false\n"),
    *_rule("allowed_recipients", "first < wanted[0]", "first > wanted[0]"),
    *_rule("allowed_recipients", "return true;", "return false;"),
    *_rule("allowed_recipients", "words(previous) < words(next)", "words(previous) <= words(next)"),
    *_rule("paused", "!standing.paused", "standing.paused"),
    *_rule("frozen", "!standing.frozen", "standing.frozen"),
    *(
        Mutant(f"rules/{name}.rs", old, new)
        for name in ("max_per_day", "max_per_month")
        for old, new in (
            ("payment.amount.0 <= headroom", "payment.amount.0 < headroom"),
            ("payment.amount.0 <= headroom", "payment.amount.0 >= headroom"),
            ("&& spent <= limit.0", "&& spent < limit.0"),
            ("&& spent <= limit.0", "|| spent <= limit.0"),
            ("limit.0.saturating_sub(spent)", "limit.0.saturating_sub(spent) + 1"),
            ("limit.0.saturating_sub(spent)", "limit.0"),
            ("spent.saturating_add(payment.amount.0)", "spent"),
        )
    ),
    # When a refused payment passes
    *_each(VERDICT, "self.passed", "!self.passed"),
    *_each(
        VERDICT, "ledger.hour.fits_from(now, 1, ", "ledger.hour.fits_from(now, 0, ", "ledger.hour.fits_from(now, 2, "
    ),
    *_each(VERDICT, "if amount <= self.limit", "if amount < self.limit", "if amount >= self.limit"),
    # Budgets
    *_each(BUDGET, "ledger.time(clock)", "clock"),
    *(Mutant(BUDGET, f"{rule}.refuse()?;", "") for rule in ("day", "month", "velocity")),
    *_each(BUDGET, "limits.max_per_day, day_held", "limits.max_per_month, day_held", "limits.max_per_day, hour_held"),
    *_each(BUDGET, "limits.velocity_cap, hour_held", "limits.velocity_cap, day_held", "None, hour_held"),
    *_each(LIB, "budget.authorize(payment, clock)", "budget.authorize(payment, now)"),
    *_each(VERDICT, "budget.assess(payment, clock)", "budget.assess(payment, now)"),
    *_each(VERDICT, "Budget::RULES.contains(&verdict.rule)", "false"),
    *_each(TYPES, "self.day.add(now, amount.0)?;", ""),
    *_each(TYPES, "self.hour.add(now, count)?;", "", "self.hour.add(now, 1)?;"),
    *_each(TYPES, "self.month.add(now, amount)?;", ""),
    *_each(TYPES, "self.last = now;", ""),
]


class Bench:
    """A copy of the policy crate in its own workspace."""

    def __init__(self, folder: Path) -> None:
        self.crate = folder / "policy"
        shutil.copytree(POLICY, self.crate)
        manifest = (PROGRAMS / "Cargo.toml").read_text(encoding="utf-8")
        members = 'members = ["agent-vault", "agent-vault/policy"]'
        assert members in manifest
        (folder / "Cargo.toml").write_text(manifest.replace(members, 'members = ["policy"]'), encoding="utf-8")

    def passes(self) -> bool:
        """Run the crate's tests. Raises `RuntimeError` if they do not compile."""
        if self._cargo("--no-run").returncode:
            raise RuntimeError("the change does not compile")
        try:
            return self._cargo().returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def judge(self, mutant: Mutant) -> bool:
        """Apply a change, run the tests and revert it. Tell whether the tests noticed."""
        path = self.crate / "src" / mutant.file
        text = path.read_text(encoding="utf-8")
        parts = text.split(mutant.old)
        assert len(parts) > mutant.nth + 1, f"{mutant.file} does not contain {mutant.old!r}"
        before, after = mutant.old.join(parts[: mutant.nth + 1]), mutant.old.join(parts[mutant.nth + 1 :])
        path.write_text(before + mutant.new + after, encoding="utf-8")
        try:
            return not self.passes()
        finally:
            path.write_text(text, encoding="utf-8")

    def _cargo(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        command = ["cargo", "test", "--quiet", "--lib", *options]
        return subprocess.run(command, cwd=self.crate, capture_output=True, timeout=TIMEOUT, check=False)


def main(arguments: Sequence[str]) -> int:
    """Judge every change and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="judge only changes in files whose name contains this")
    only = parser.parse_args(arguments).only
    chosen = [mutant for mutant in MUTANTS if only in mutant.file]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        if not bench.passes():
            print("the tests fail even without a change")
            return 1
        for mutant in chosen:
            killed = bench.judge(mutant)
            expected = not mutant.equivalent
            verdict = "killed" if killed else f"equivalent: {mutant.equivalent}" if mutant.equivalent else "SURVIVED"
            wrong += killed != expected
            print(f"{mutant.file:<28} {_short(mutant.old)} -> {_short(mutant.new)}: {verdict}", flush=True)
    equivalent = sum(bool(mutant.equivalent) for mutant in chosen)
    print(f"{len(chosen)} changes, {equivalent} of them equivalent, {wrong} not as expected")
    return 1 if wrong else 0


def _short(text: str) -> str:
    return " ".join(text.split()) or "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
