"""No sequence of payments, escrows and allowances loses money, exceeds caps through a refund, or leaves the model."""

import secrets

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from tests.program.escrow_sequences.runner import EscrowRunner
from tests.program.escrow_sequences.steps import EscrowSequence, sequences

QUICK = (40, 60, 200)
FULL = (250, 120, 2_000)
"""Number of sequences, most steps in one, and the least number of operations on escrows, and on allowances, in all."""
OPERATIONS = ("create", "complete", "dispute", "withdraw", "resolve", "refund")
OF_ALLOWANCES = ("grant", "delegated", "settle")


def test_every_sequence_of_escrows_follows_the_model(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    full = request.config.getoption("--full", default=False)
    count, steps, least = FULL if full else QUICK
    number = int(request.config.getoption("--hypothesis-seed") or secrets.randbits(32))
    with capsys.disabled():
        print(f"\n{count} sequences of up to {steps} steps; to repeat them: --hypothesis-seed={number}")
    runner = EscrowRunner()

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sequences(steps))
    def check(sequence: EscrowSequence) -> None:
        note(repr(sequence))
        runner.run(sequence)

    check()
    with capsys.disabled():
        print(dict(sorted(runner.moves.items())))
    for operations in (OPERATIONS, OF_ALLOWANCES):
        assert sum(runner.moves[name] for name in operations) >= least
