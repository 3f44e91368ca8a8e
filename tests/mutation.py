"""Changes each boundary of the policy crate by one, and takes away each guard of the entrypoint; a test must notice.

`python tests/mutation.py` works on a copy, prints a table, and exits with 1 if a change goes unnoticed. It needs cargo
and, for the entrypoint, Debian's compilers (`programs/toolchain`) and the tests' Python packages. The policy crate's
native tests take some minutes. For the entrypoint each change is a build of the program, half a minute, on which the
tests in `GUARD_TESTS` run; `--only src/` judges these alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "programs"
POLICY = PROGRAMS / "agent-vault" / "policy"
TIMEOUT = 300
"""Seconds after which a change counts as noticed because the tests hang."""

WINDOW, TYPES, VERDICT, ESCROW = "window.rs", "types.rs", "verdict.rs", "escrow.rs"
BUDGET, LIB = "budget.rs", "lib.rs"
ENTRYPOINT, EVENTS = "src/entrypoint.rs", "src/events.rs"
EXECUTE_PAYMENT = "src/instructions/execute_payment.rs"
GUARD_TESTS = [f"tests/program/test_{name}.py" for name in ("instruction_data", "guards", "payments")]


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
    *_each(WINDOW, "if staying == 0", "if staying == 1"),
    Mutant(WINDOW, "if staying == 0", "if false", equivalent="the sum of no slot is nothing, only dearer"),
    *_each(WINDOW, "return Ok(0);", "return Ok(1);"),
    *_each(WINDOW, "if newer.is_empty()", "if !newer.is_empty()", "if true"),
    Mutant(WINDOW, "if newer.is_empty()", "if false", equivalent="the sum of no slot is nothing, only dearer"),
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
    *_each(WINDOW, "if leaving == SLOTS as u64", "if leaving != SLOTS as u64"),
    Mutant(
        WINDOW,
        "if leaving == SLOTS as u64",
        "if false",
        equivalent="both halves together are the whole ring, only dearer",
    ),
    *_each(WINDOW, "if !newer.is_empty()", "if newer.is_empty()"),
    Mutant(WINDOW, "if !newer.is_empty()", "if true", equivalent="filling no slot changes nothing, only dearer"),
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
    # Held money
    *_each(TYPES, "self.held.0.checked_add(charge.amount.0).ok_or(Overflow)?", "self.held.0"),
    *_each(TYPES, "self.held.0.saturating_sub(amount.0)", "self.held.0", "self.held.0.saturating_sub(spent.0)"),
    *_each(TYPES, "self.record(clock, spent, 0)?;", "", "self.record(clock, amount, 0)?;"),
    *_each(BUDGET, "day_held, ledger.held", "day_held, Usdc(0)"),
    *_each(LIB, "day_held, ledger.held", "day_held, Usdc(0)"),
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
    *_rule("allowed_recipients", "rest.len() > 1", "rest.len() > 2"),
    *_rule("allowed_recipients", "words(candidate) > wanted", "words(candidate) >= wanted", "true", "false"),
    *_rule("allowed_recipients", "first > wanted[0]", "first < wanted[0]"),
    *_rule("allowed_recipients", "{ below } else { from }", "{ from } else { below }"),
    *_rule("allowed_recipients", "words(candidate) == wanted)", "words(candidate) != wanted)"),
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
    *_each(VERDICT, "&& wanted <= self.limit", "&& wanted < self.limit", "&& wanted >= self.limit"),
    *_each(VERDICT, "amount.saturating_add(ledger.held.0)", "amount"),
    *_each(VERDICT, "spent.saturating_add(amount) > self.limit", "true", "spent.saturating_add(amount) >= self.limit"),
    # Budgets
    *_each(BUDGET, "ledger.time(clock)", "clock"),
    *(Mutant(BUDGET, f"{rule}.refuse()?;", "") for rule in ("frozen", "expired", "total", "day", "month")),
    *_each(BUDGET, "velocity.refuse()\n", "Ok(())\n"),
    *_each(BUDGET, "limits.max_total, total_spent.0, ledger.held", "limits.max_total, total_spent.0, Usdc(0)"),
    *_each(BUDGET, "Violation { level, ..violation }", "violation"),
    *_each(BUDGET, "limits.max_per_day, day_held", "limits.max_per_month, day_held", "limits.max_per_day, hour_held"),
    *_each(BUDGET, "limits.velocity_cap, hour_held", "limits.velocity_cap, day_held", "None, hour_held"),
    *_each(LIB, "budget.authorize(level, payment, clock)", "budget.authorize(level, payment, now)"),
    *_each(VERDICT, "level, payment, clock)?", "level, payment, now)?"),
    *_each(VERDICT, "Level::Budget => budget.as_ref()", "Level::Budget => parent.as_ref()"),
    *_each(VERDICT, "Level::Parent => parent.as_ref()", "Level::Parent => budget.as_ref()"),
    *_each(TYPES, "self.day.add(now, amount.0)?;", ""),
    *_each(TYPES, "self.hour.add(now, count)?;", "", "self.hour.add(now, 1)?;"),
    *_each(TYPES, "self.month.add(now, amount)?;", ""),
    *_each(TYPES, "self.last = now;", ""),
]


_SENT_BY_ITSELF = "nobody but the program can sign for the event authority, and it sends whole events"

GUARDS = [
    # No account but this program twice
    *_each(ENTRYPOINT, "(!named.repeats && is_payment(data))", "(is_payment(data))"),
    *_each(ENTRYPOINT, "self.repeats = true;", "self.repeats = false;"),
    *_each(ENTRYPOINT, "if earlier != self.own {", "if earlier == self.own {"),
    Mutant(
        ENTRYPOINT,
        "self.own = earlier;",
        "",
        equivalent="each repetition of this program is looked at, which is only dearer",
    ),
    # Exactly the data of a payment, to this program
    *_each(ENTRYPOINT, "\n        && *data.sub(LENGTH).cast::<u64>() == PAYMENT_LENGTH", ""),
    *_each(ENTRYPOINT, "cast::<u64>() == PAYMENT_LENGTH", "cast::<u64>() >= PAYMENT_LENGTH"),
    Mutant(
        ENTRYPOINT,
        "cast::<u64>() == PAYMENT_LENGTH",
        "cast::<u64>() <= PAYMENT_LENGTH",
        equivalent="behind shorter data the program's address is at another place, so it is not found",
    ),
    *_each(ENTRYPOINT, "\n        && address_eq(&*data.add(PAYMENT_LENGTH as usize).cast(), &ID)", ""),
    *_each(ENTRYPOINT, "    data.cast::<u64>().read_unaligned() == PAYMENT\n        && ", "    "),
    # All accounts
    *_each(ENTRYPOINT, "if !data.is_null() || count < NAMED as u64 {", "if !data.is_null() {"),
    *_each(ENTRYPOINT, "if count < NAMED as u64 || data", "if data"),
    *_each(ENTRYPOINT, "if count < NAMED as u64 || data", "if count < NAMED as u64 - 1 || data"),
    Mutant(
        ENTRYPOINT,
        " || data.cast::<u64>().read_unaligned() != PAYMENT {",
        " {",
        equivalent="the framework answers what is not a payment, which is only dearer",
    ),
    # Where accounts and data are
    *_each(ENTRYPOINT, "count.wrapping_sub(NAMED as u64)", "count", "count.wrapping_sub(NAMED as u64 - 1)"),
    *_each(ENTRYPOINT, "end.add(end.align_offset(8)).add(RENT_EPOCH)", "end.add(RENT_EPOCH)"),
    # Who signs
    *_each(EXECUTE_PAYMENT, "pub signer: Signer,", "pub signer: UncheckedAccount,"),
    *_each(EXECUTE_PAYMENT, "pub co_signer: Option<Signer>,", "pub co_signer: Option<UncheckedAccount>,"),
    # Events
    *_each(EVENTS, "\n        && *input.add(IS_SIGNER) != 0", ""),
    *_each(
        EVENTS,
        "\n        && anchor_lang::address_eq(&*input.add(ADDRESS).cast(), &Address::new_from_array(AUTHORITY.0))",
        "",
    ),
    Mutant(EVENTS, "length >= 8\n        && *data", "*data", equivalent=_SENT_BY_ITSELF),
    Mutant(EVENTS, "\n        && *data.cast::<u64>() == EVENT_IX_TAG", "", equivalent=_SENT_BY_ITSELF),
    Mutant(
        EVENTS,
        "\n        && *input.cast::<u64>() > 0",
        "",
        equivalent="without accounts, data are where the address would be, and they begin with the tag",
    ),
]
"""Changes of the program itself, outside of the policy crate."""


class Bench(ABC):
    """A copy of a crate whose changes are judged by tests."""

    crate: Path

    @abstractmethod
    def killer(self) -> str | None:
        """Return what notices that the crate is not as it should be. Raises `RuntimeError` if it does not compile."""

    def judge(self, mutant: Mutant) -> str | None:
        """Apply a change, run the tests and revert it. Return what noticed."""
        path = self.crate / mutant.file
        text = path.read_text(encoding="utf-8")
        parts = text.split(mutant.old)
        assert len(parts) > mutant.nth + 1, f"{mutant.file} does not contain {mutant.old!r}"
        before, after = mutant.old.join(parts[: mutant.nth + 1]), mutant.old.join(parts[mutant.nth + 1 :])
        path.write_text(before + mutant.new + after, encoding="utf-8")
        try:
            return self.killer()
        finally:
            path.write_text(text, encoding="utf-8")


class PolicyBench(Bench):
    """The policy crate in its own workspace, and its native tests."""

    def __init__(self, folder: Path) -> None:
        crate = folder / "policy"
        shutil.copytree(POLICY, crate)
        self.crate = crate / "src"
        manifest = (PROGRAMS / "Cargo.toml").read_text(encoding="utf-8")
        members = 'members = ["agent-vault", "agent-vault/policy"]'
        assert members in manifest
        (folder / "Cargo.toml").write_text(manifest.replace(members, 'members = ["policy"]'), encoding="utf-8")

    def killer(self) -> str | None:
        if self._cargo("--no-run").returncode:
            raise RuntimeError("the change does not compile")
        try:
            return "its tests" if self._cargo().returncode else None
        except subprocess.TimeoutExpired:
            return "its tests, which hang"

    def _cargo(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        command = ["cargo", "test", "--quiet", "--lib", *options]
        return subprocess.run(command, cwd=self.crate, capture_output=True, timeout=TIMEOUT, check=False)


class ProgramBench(Bench):
    """The whole program, built for the VM, and tests that run it there."""

    def __init__(self, folder: Path) -> None:
        self._workspace = folder / "programs"
        shutil.copytree(PROGRAMS, self._workspace, ignore=shutil.ignore_patterns("target", "*.so"))
        self.crate = self._workspace / "agent-vault"

    def killer(self) -> str | None:
        program = self._workspace / "agent_vault.so"
        build = [self._workspace / "toolchain" / "build-sbf", self.crate, program]
        if subprocess.run(build, capture_output=True, check=False).returncode:
            raise RuntimeError("the change does not compile")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *GUARD_TESTS]
        environment = {**os.environ, "AGENT_VAULT_SO": str(program), "PYTHONPATH": str(ROOT)}
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) .*?::(\w+)", run.stdout, re.MULTILINE)
        if failed is None:
            raise RuntimeError(f"the tests did not run: {run.stdout}{run.stderr}")
        return failed[1]


def main(arguments: Sequence[str]) -> int:
    """Judge every change and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="judge only changes in files whose name contains this")
    only = parser.parse_args(arguments).only
    wrong = count = equivalent = 0
    for make, mutants in ((PolicyBench, MUTANTS), (ProgramBench, GUARDS)):
        chosen = [mutant for mutant in mutants if only in mutant.file]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            bench = make(Path(folder))
            if (noticed := bench.killer()) is not None:
                print(f"the tests fail even without a change: {noticed}")
                return 1
            wrong += sum(not _as_expected(bench, mutant) for mutant in chosen)
        count += len(chosen)
        equivalent += sum(bool(mutant.equivalent) for mutant in chosen)
    print(f"{count} changes, {equivalent} of them equivalent, {wrong} not as expected")
    return 1 if wrong else 0


def _as_expected(bench: Bench, mutant: Mutant) -> bool:
    """Judge a change and print the verdict. Tell whether it is noticed, or not if it is equivalent."""
    killer = bench.judge(mutant)
    if killer is not None:
        verdict = f"killed by {killer}"
    else:
        verdict = f"equivalent: {mutant.equivalent}" if mutant.equivalent else "SURVIVED"
    print(f"{mutant.file:<28} {_short(mutant.old)} -> {_short(mutant.new)}: {verdict}", flush=True)
    return (killer is None) == bool(mutant.equivalent)


def _short(text: str) -> str:
    return " ".join(text.split()) or "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
