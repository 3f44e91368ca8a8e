"""Runs random interleavings of vaults that share a budget, in the VM and as a script for the native crate."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.chain.escrow_instructions import OpenEscrow
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
}
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
    """New limits of the budget."""

    limits: BudgetLimits


@dataclass(frozen=True)
class BudgetSequence:
    """The vaults' rules, the budget's first limits, and the steps."""

    start: int
    rules: Rules
    limits: BudgetLimits
    steps: list[Spend | Refund | Limit]


_KINDS: list[SpendingKind] = ["Payment", "Payment", "Payment", "Escrow", "Allowance"]
_limits = st.builds(
    BudgetLimits,
    max_per_day=st.none() | st.integers(0, 1_000) | st.integers(100, 400),
    max_per_month=st.none() | st.none() | st.integers(0, 6_000),
    velocity_cap=st.none() | st.none() | st.integers(0, 8),
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
        st.builds(Limit, _limits)
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
    return BudgetSequence(draw(st.integers(EARLIEST, LATEST)), rules, draw(_limits), steps)


@dataclass
class _Locked:
    """An open escrow or allowance: its account, and which of the budget's payments made it."""

    account: OpenEscrow | OpenAllowance
    vault: int
    number: int
    own: int
    amount: int


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
        limits = sequence.limits
        budget = world.budget(**{name: value for name, value in limits.to_args().items() if value is not None})
        vaults = [self._vault(budget) for _ in range(VAULTS)]
        payments = [world.payment(vault, self.payee, 1) for vault in vaults]
        own, shared, pending = [Checker() for _ in vaults], Checker(), list[_Locked]()
        clock, verdicts = sequence.start, list[str]()
        script = [f"rules - {_text(sequence.rules.max_per_day)} - - - - 0 0", _limits_line(limits)]
        for step in sequence.steps:
            match step:
                case Limit(limits):
                    self._limit(budget, limits)
                    script.append(_limits_line(limits))
                case Refund() if pending:
                    locked = pending.pop(step.number % len(pending))
                    returned = locked.amount * step.share // 100
                    self._refund(locked, returned)
                    script.append(_ended(locked, returned, clock, shared, own[locked.vault]))
                case Spend():
                    clock = max(step.jump.from_time(clock, [at for at, _ in shared.paid]), 0)
                    vm.now = clock
                    vault, before = vaults[step.vault], (vm.data(vaults[step.vault]), vm.data(budget))
                    account = self._next(step, vault, pending)
                    held = isinstance(account, OpenAllowance)
                    script += [f"vault {step.vault}", f"{'hold' if held else 'pay'} {clock} {step.amount} 1 0 0"]
                    if account is None:
                        instruction = with_amount(payments[step.vault], step.amount)
                    elif isinstance(account, OpenEscrow):
                        instruction = creation(world, vault, self.payee.owner, step.amount)
                    else:
                        end = own[step.vault].time(clock) + LONGEST
                        instruction = granting(world, vault, self.payee, self.delegate, step.amount, expires_at=end)
                    violation = judged(vm, instruction)
                    made = Payment(step.jump, step.amount, 0, co_signed=False)
                    bounds = Rules(**limits.to_args())
                    if violation is None:
                        if account is not None:
                            if isinstance(account, OpenEscrow):
                                # A dispute stops the deadline, so that the arbiter can refund it at any time.
                                vm.succeed(dispute(world, account, world.operator))
                            numbers = (len(shared.paid), len(own[step.vault].paid))
                            pending.append(_Locked(account, step.vault, *numbers, step.amount))
                        own[step.vault].accepted(sequence.rules, made, clock, held=held)
                        shared.accepted(bounds, made, clock, held=held)
                        assert _last(vm.data(budget)) == shared.time(0)
                        verdicts.append("ok")
                        continue
                    assert (vm.data(vault), vm.data(budget)) == before
                    verdicts.append(f"{violation.rule} {violation.limit} {violation.attempted}")
                    if violation.rule in _BUDGET_RULES:
                        alike = replace(violation, rule=_BUDGET_RULES[violation.rule])
                        shared.refused(bounds, made, clock, alike)
                    else:
                        own[step.vault].refused(sequence.rules, made, clock, violation)
        return Transcript(script, verdicts)

    def _vault(self, budget: Pubkey) -> Pubkey:
        vault = self.world.wallet(self.policy, funds=0)
        self.world.fill(self.world.tokens_of(vault), vault, SUPPLY)
        self.world.vm.succeed(self.world.joining(vault, budget))
        return vault

    def _limit(self, budget: Pubkey, limits: BudgetLimits) -> None:
        given = {name: value for name, value in limits.to_args().items() if value is not None}
        self.world.vm.succeed(self.world.budget_update(budget, **given))

    def _next(self, step: Spend, vault: Pubkey, pending: list[_Locked]) -> OpenEscrow | OpenAllowance | None:
        """Return the account that a step will make, if any: it pays instead where there are allowances enough."""
        if step.kind == "Escrow":
            return next_escrow(self.world, vault, self.payee.owner)
        outstanding = sum(isinstance(one.account, OpenAllowance) and one.vault == step.vault for one in pending)
        return next_allowance(self.world, vault) if step.kind == "Allowance" and outstanding < MOST else None

    def _refund(self, locked: _Locked, returned: int) -> None:
        world, account, kept = self.world, locked.account, locked.amount - returned
        if isinstance(account, OpenEscrow):
            world.vm.succeed(decision(world, account, kept))
            return
        if kept:
            world.vm.succeed(delegates_transfer(world, account, self.delegate, self.payee.tokens, kept))
        world.vm.succeed(settling(world, account))


def _ended(locked: _Locked, returned: int, clock: int, shared: Checker, own: Checker) -> str:
    """Record the end of an escrow or allowance in both checkers, and return its line of the script."""
    kept = locked.amount - returned
    for checker, number in ((shared, locked.number), (own, locked.own)):
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


def _limits_line(limits: BudgetLimits) -> str:
    return " ".join(["budget", *map(_text, (limits.max_per_day, limits.max_per_month, limits.velocity_cap))])


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)
