"""Runs random interleavings of vaults below two budgets, in the VM and as a script for the native crate."""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.chain.escrow_instructions import OpenEscrow
from app.chain.logs import LoggedViolation
from app.chain.payment_instructions import SpendingKind
from app.chain.rules import RULES, BudgetLimits, Rules
from tests.program.sequences.checker import Checker
from tests.program.sequences.runner import Transcript, judged, with_amount
from tests.program.sequences.steps import EARLIEST, JUMPS, LATEST, MIN_STEPS, Jump, Payment
from tests.support.vm import Vm
from tests.support.vm_allowances import LONGEST, MOST, delegates_transfer, granting, next_allowance, settling
from tests.support.vm_escrows import creation, decision, dispute, next_escrow
from tests.support.vm_tokens import SUPPLY
from tests.support.vm_world import VmWorld

VAULTS = 3
_BUDGET_RULES = {
    RULES.index(f"budget_{name}"): RULES.index(name) for name in ("max_per_day", "max_per_month", "velocity_cap")
} | {RULES.index("budget_expired"): RULES.index("expiry")}
_LEDGER = 8 * (4 + 99 + 63)
"""Bytes of a ledger, the last of a budget's account."""


@dataclass(frozen=True)
class Spend:
    """A payment of a vault after a step of the clock, or an escrow or an allowance of it."""

    vault: int
    jump: Jump
    amount: int
    kind: SpendingKind


@dataclass(frozen=True)
class Refund:
    """The end of the open escrow or allowance of this number, giving back this share of it, in percent."""

    number: int
    share: int


@dataclass(frozen=True)
class Limit:
    """New limits of the budget or of its parent, whose end counts from now. It is frozen from then on, or is not."""

    level: int
    limits: BudgetLimits
    frozen: bool


@dataclass(frozen=True)
class BudgetSequence:
    """The vaults' rules, the first limits of the budget and of its parent, and the steps."""

    start: int
    rules: Rules
    limits: list[BudgetLimits]
    steps: list[Spend | Refund | Limit]


_KINDS: list[SpendingKind] = ["Payment", "Payment", "Payment", "Escrow", "Allowance"]
_limits = st.builds(
    BudgetLimits,
    max_per_day=st.none() | st.integers(0, 1_000) | st.integers(100, 400),
    max_per_month=st.none() | st.none() | st.integers(0, 6_000),
    velocity_cap=st.none() | st.none() | st.integers(0, 8),
    max_total=st.none() | st.none() | st.integers(0, 4_000),
    expires_at=st.none() | st.none() | st.none() | st.integers(0, 800_000),
)
_spend = st.builds(
    Spend,
    st.integers(0, VAULTS - 1),
    st.sampled_from(JUMPS),
    st.integers(1, 250),
    st.sampled_from(_KINDS),
)
_step: st.SearchStrategy[Spend | Refund | Limit] = st.integers(0, 9).flatmap(
    lambda kind: (
        st.builds(Limit, st.integers(0, 1), _limits, st.sampled_from([False] * 5 + [True]))
        if kind == 4
        else st.builds(Refund, st.integers(0, 7), st.integers(0, 100))
        if kind == 5
        else _spend
    )
)


@st.composite
def budget_sequences(draw: st.DrawFn, most: int) -> BudgetSequence:
    """Draw a sequence of 20 to `most` steps."""
    number = draw(st.integers(MIN_STEPS, most))
    steps = draw(st.lists(_step, min_size=number, max_size=number))
    rules = Rules(max_per_day=draw(st.none() | st.integers(100, 600)), allow_allowances=True)
    return BudgetSequence(draw(st.integers(EARLIEST, LATEST)), rules, [draw(_limits), draw(_limits)], steps)


@dataclass
class _Locked:
    """An open escrow or allowance: its account, and which payments of the budgets and of the vault made it."""

    account: OpenEscrow | OpenAllowance
    vault: int
    number: int
    own: int
    amount: int


@dataclass
class _Level:
    """A budget, its present limits, and what it has counted."""

    address: Pubkey
    name: str
    limits: BudgetLimits
    frozen: bool = False
    checker: Checker = field(default_factory=Checker)

    def accepted(self, made: Payment, clock: int, *, held: bool) -> None:
        """Record a payment or an allowance, and check that it breaks no promise of the budget."""
        self.checker.accepted(self._bounds(), made, clock, held=held)
        assert not self.frozen
        assert self.limits.max_total is None or self._total() <= self.limits.max_total

    def refused(self, made: Payment, clock: int, violation: LoggedViolation) -> None:
        """Check that a refusal by this budget is due."""
        match violation.rule_name:
            case "budget_frozen":
                assert self.frozen
            case "budget_max_total":
                assert violation.limit == self.limits.max_total
                assert violation.limit < violation.attempted == self._total() + made.amount
            case _:
                alike = replace(violation, rule=_BUDGET_RULES[violation.rule])
                self.checker.refused(self._bounds(), made, clock, alike)

    def line(self) -> str:
        """Return the line that gives this budget to the native program."""
        one = self.limits
        limits = (one.max_per_day, one.max_per_month, one.velocity_cap, one.max_total, one.expires_at)
        return " ".join([self.name, *map(_text, limits), str(int(self.frozen))])

    def _bounds(self) -> Rules:
        one = self.limits
        return Rules(None, one.max_per_day, one.max_per_month, one.velocity_cap, expiry=one.expires_at)

    def _total(self) -> int:
        return self.checker.held + sum(amount for _, amount in [*self.checker.paid, *self.checker.settled])


class BudgetRunner:
    """An organisation whose vaults share a policy. Each sequence gets a new budget with new vaults."""

    def __init__(self) -> None:
        self.world = VmWorld(Vm(checks_signatures=False))
        self.world.vm.now = EARLIEST
        self.payee, self.delegate = self.world.payee(), self.world.vm.key()
        self.policy = self.world.policy()

    def run(self, sequence: BudgetSequence) -> Transcript:
        """Run a sequence and let the checkers judge it. Raises `AssertionError` when a promise is broken."""
        world, vm = self.world, self.world.vm
        world.update_policy(self.policy, sequence.rules)
        vm.now = sequence.start
        levels = self._levels(sequence)
        vaults = [self._vault(levels[0].address) for _ in range(VAULTS)]
        payments = [world.payment(vault, self.payee, 1) for vault in vaults]
        own, pending = [Checker() for _ in vaults], list[_Locked]()
        clock, verdicts = sequence.start, list[str]()
        script = [f"rules - {_text(sequence.rules.max_per_day)} - - - - 0 0", *(level.line() for level in levels)]
        for step in sequence.steps:
            match step:
                case Limit():
                    self._limit(levels[step.level], step, clock)
                    script.append(levels[step.level].line())
                case Refund() if pending:
                    locked = pending.pop(step.number % len(pending))
                    returned = locked.amount * step.share // 100
                    self._refund(locked, returned)
                    script.append(_ended(locked, returned, clock, levels, own[locked.vault]))
                case Spend():
                    shared = levels[0].checker
                    clock = max(step.jump.from_time(clock, [at for at, _ in shared.paid]), 0)
                    vm.now = clock
                    vault, watched = vaults[step.vault], (vaults[step.vault], *(one.address for one in levels))
                    before = [vm.data(one) for one in watched]
                    end = self._end(levels, own[step.vault])
                    account = self._next(step, vault, pending, ends=end <= own[step.vault].time(clock))
                    held = isinstance(account, OpenAllowance)
                    script += [f"vault {step.vault}", f"{'hold' if held else 'pay'} {clock} {step.amount} 1 0 0"]
                    violation = judged(vm, self._spending(step, vault, payments[step.vault], account, end))
                    made = Payment(step.jump, step.amount, 0, co_signed=False)
                    if violation is None:
                        if account is not None:
                            if isinstance(account, OpenEscrow):
                                # A dispute stops the deadline, so that the arbiter can refund it at any time.
                                vm.succeed(dispute(world, account, world.operator))
                            numbers = (len(shared.paid), len(own[step.vault].paid))
                            pending.append(_Locked(account, step.vault, *numbers, step.amount))
                        own[step.vault].accepted(sequence.rules, made, clock, held=held)
                        for level in levels:
                            level.accepted(made, clock, held=held)
                            assert _last(vm.data(level.address)) == level.checker.time(0)
                        verdicts.append("ok")
                        continue
                    assert [vm.data(one) for one in watched] == before
                    verdicts.append(f"{violation.rule} {violation.limit} {violation.attempted}")
                    refusing = [level for level in levels if level.address == violation.budget]
                    for level in refusing:
                        level.refused(made, clock, violation)
                    if not refusing:
                        own[step.vault].refused(sequence.rules, made, clock, violation)
        return Transcript(script, verdicts)

    def _levels(self, sequence: BudgetSequence) -> list[_Level]:
        """Create a budget and its parent."""
        made: list[_Level] = []
        for name, limits in zip(("parent", "budget"), reversed(sequence.limits), strict=True):
            given = _from(limits, sequence.start)
            parent = made[0].address if made else None
            made.insert(0, _Level(self.world.budget(parent, **_set(given)), name, given))
        return made

    def _spending(
        self, step: Spend, vault: Pubkey, payment: Instruction, account: OpenEscrow | OpenAllowance | None, end: int
    ) -> Instruction:
        """Return the instruction of a step, which may create an escrow or an allowance until `end`."""
        world = self.world
        if account is None:
            return with_amount(payment, step.amount)
        if isinstance(account, OpenEscrow):
            return creation(world, vault, self.payee.owner, step.amount)
        return granting(world, vault, self.payee, self.delegate, step.amount, expires_at=end)

    def _end(self, levels: list[_Level], own: Checker) -> int:
        """Return the latest end of an allowance: neither budget may end before it."""
        ends = [one.limits.expires_at for one in levels if one.limits.expires_at is not None]
        return min([own.time(self.world.vm.now) + LONGEST, *ends])

    def _vault(self, budget: Pubkey) -> Pubkey:
        vault = self.world.wallet(self.policy, funds=0)
        self.world.fill(self.world.tokens_of(vault), vault, SUPPLY)
        self.world.vm.succeed(self.world.joining(vault, budget))
        return vault

    def _limit(self, level: _Level, step: Limit, clock: int) -> None:
        world = self.world
        level.limits = _from(step.limits, clock)
        world.vm.succeed(world.budget_update(level.address, **_set(level.limits)))
        if step.frozen != level.frozen:
            level.frozen = step.frozen
            change = world.build.freeze_budget(signer=world.operator, budget=level.address)
            if not step.frozen:
                change = world.build.unfreeze_budget(authority=world.authority, budget=level.address)
            world.vm.succeed(change)

    def _next(
        self, step: Spend, vault: Pubkey, pending: list[_Locked], *, ends: bool
    ) -> OpenEscrow | OpenAllowance | None:
        """Return the account that a step will make, if any.

        It pays instead where there are allowances enough, or where a budget `ends` before an allowance could.
        """
        if step.kind == "Escrow":
            return next_escrow(self.world, vault, self.payee.owner)
        outstanding = sum(isinstance(one.account, OpenAllowance) and one.vault == step.vault for one in pending)
        grants = step.kind == "Allowance" and outstanding < MOST and not ends
        return next_allowance(self.world, vault) if grants else None

    def _refund(self, locked: _Locked, returned: int) -> None:
        world, account, kept = self.world, locked.account, locked.amount - returned
        if isinstance(account, OpenEscrow):
            world.vm.succeed(decision(world, account, kept))
            return
        if kept:
            world.vm.succeed(delegates_transfer(world, account, self.delegate, self.payee.tokens, kept))
        world.vm.succeed(settling(world, account))


def _ended(locked: _Locked, returned: int, clock: int, levels: list[_Level], own: Checker) -> str:
    """Record the end of an escrow or allowance in all checkers, and return its line of the script."""
    kept = locked.amount - returned
    for checker, number in (*((one.checker, locked.number) for one in levels), (own, locked.own)):
        if isinstance(locked.account, OpenAllowance):
            checker.settle(clock, locked.amount, kept)
        else:
            at, amount = checker.paid[number]
            checker.paid[number] = (at, amount - returned)
    return (
        f"settle {locked.number} {clock} {kept}"
        if isinstance(locked.account, OpenAllowance)
        else (f"refund {locked.number} {returned}")
    )


def _last(budget: bytes) -> int:
    """Return the time of a budget's last payment; decoding all of its ledger takes much longer."""
    return int.from_bytes(budget[-_LEDGER:][:8], "little")


def _from(limits: BudgetLimits, now: int) -> BudgetLimits:
    """Return the limits with their end counted from `now`."""
    return limits if limits.expires_at is None else replace(limits, expires_at=now + limits.expires_at)


def _set(limits: BudgetLimits) -> dict[str, int]:
    """Return the limits that are set."""
    return {name: value for name, value in limits.to_args().items() if value is not None}


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)
