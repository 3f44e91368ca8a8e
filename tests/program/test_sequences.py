"""No sequence of payments exceeds the caps, and the program in the VM decides as the native crate does."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.program.sequences import native
from tests.program.sequences.budgets import BudgetRunner, budget_sequences
from tests.program.sequences.runner import PaymentRunner
from tests.program.sequences.steps import sequences
from tests.support.needs import skip_or_fail

QUICK = (200, 60)
FULL = (2_000, 200)
"""Number of sequences, and most steps in one."""


@pytest.fixture(scope="module", name="replayer")
def _replayer() -> Path | None:
    """The native program, if it can be compiled."""
    cargo = native.find_cargo()
    return None if cargo is None else native.build(cargo)


def test_native_crate_is_available_for_comparison(replayer: Path | None) -> None:
    if replayer is None:
        skip_or_fail("there is no working cargo, so the sequences were not replayed in the native crate")


def test_no_sequence_exceeds_the_caps_and_both_builds_agree(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], replayer: Path | None
) -> None:
    _run(request, capsys, replayer, runner=PaymentRunner(), drawn=sequences)


def test_no_interleaving_exceeds_the_budget_and_both_builds_agree(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], replayer: Path | None
) -> None:
    _run(request, capsys, replayer, runner=BudgetRunner(), drawn=budget_sequences)


def _run(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    replayer: Path | None,
    *,
    runner: PaymentRunner | BudgetRunner,
    drawn: Callable[[int], SearchStrategy[Any]],
) -> None:
    """Run sequences, each of which checks itself, and replay them in the native program."""
    full = request.config.getoption("--full", default=False)
    count, steps = FULL if full else QUICK
    number = int(request.config.getoption("--hypothesis-seed") or secrets.randbits(32))
    with capsys.disabled():
        print(f"\n{count} sequences of up to {steps} payments; to repeat them: --hypothesis-seed={number}")

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(drawn(steps))
    def check(sequence: Any) -> None:
        note(repr(sequence))
        transcript = runner.run(sequence)
        if replayer is not None:
            assert transcript.verdicts == native.replay(replayer, transcript.script)

    check()
