"""No sequence of payments and escrows loses money, passes the caps by way of a refund, or reaches another state."""

import secrets

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from tests.program.escrow_sequences.runner import Runner
from tests.program.escrow_sequences.steps import Sequence, sequences

QUICK = (30, 60, 200)
FULL = (250, 120, 2_000)
"""Number of sequences, steps that one has at most, and operations on escrows that there must be in all."""
OPERATIONS = ("create", "complete", "dispute", "resolve", "refund")


def test_every_sequence_of_escrows_follows_the_model(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    full = request.config.getoption("--full", default=False)
    count, steps, least = FULL if full else QUICK
    number = int(request.config.getoption("--hypothesis-seed") or secrets.randbits(32))
    with capsys.disabled():
        print(f"\n{count} sequences of up to {steps} steps; to repeat them: --hypothesis-seed={number}")
    runner = Runner()

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sequences(steps))
    def check(sequence: Sequence) -> None:
        note(repr(sequence))
        runner.run(sequence)

    check()
    with capsys.disabled():
        print(dict(sorted(runner.moves.items())))
    assert sum(runner.moves[name] for name in OPERATIONS) >= least
