"""What a payment costs beyond the plain transfer that it makes, by count, on both runtimes."""

from collections.abc import Mapping

import pytest

from tests.bench.compute_units import measure
from tests.support.environments import MissingEnvironmentError
from tests.support.needs import skip_or_fail
from tests.support.runtimes import NEWER, OLDER, Runtime
from tests.support.vm import PROGRAM

UNREGISTERED = "all eight, 1,000 entries, recipient not registered"
GAPS = "worst of those gaps"
"""After every number of slots from 1 to 97, with a full ledger."""
MOST = {
    OLDER: {"no rule": 3_870, "all eight, 10 entries": 4_270, f"{UNREGISTERED}, {GAPS}": 5_030},
    NEWER: {"no rule": 3_745, "all eight, 10 entries": 4_155, f"{UNREGISTERED}, {GAPS}": 4_880},
}
"""Most compute units beyond the transfer; where an entry is in its list makes up to 40."""
MOST_FOR_A_NEW_RECIPIENT = 400
"""Most that `new_recipient_cap` adds."""
MOST_IN_A_BUDGET = 360
"""Most that a vault's budget adds."""
MOST_IN_AN_OLD_BUDGET = 860
"""The same at the worst gap, when the budget's ledger is old, too."""
MOST_BELOW_A_PARENT = 350
"""Most that the parent of a vault's budget adds."""
MOST_BELOW_AN_OLD_PARENT = 920
"""The same at the worst gap."""


MOST_BYTES = 270_000
"""Most bytes of the program."""


def test_program_stays_small() -> None:
    assert PROGRAM.stat().st_size <= MOST_BYTES


@pytest.fixture(scope="module", params=[OLDER, NEWER], name="release")
def _release(request: pytest.FixtureRequest) -> str:
    release: str = request.param
    return release


@pytest.fixture(scope="module", name="beyond")
def _beyond(release: str) -> Mapping[str, int]:
    """Units of payments beyond the transfer, by their rules. Skipped, or failed if CI=true, without the runtime."""
    try:
        with Runtime(release) as runtime:
            transfer, _, payments = measure(runtime)
    except MissingEnvironmentError:
        skip_or_fail(f"solders {release} cannot be installed")
    return {rules: units - transfer for rules, units in payments.items()}


def test_payments_cost_little_more_than_their_transfer(beyond: Mapping[str, int], release: str) -> None:
    most = MOST[release]
    assert {rules: beyond[rules] for rules in most if beyond[rules] > most[rules]} == {}


@pytest.mark.parametrize("case", ["stranger", "most"])
def test_cap_of_new_recipients_adds_few_units(beyond: Mapping[str, int], case: str) -> None:
    assert 0 < beyond[f"new_recipient_cap, {case}"] - beyond["no rule"] <= MOST_FOR_A_NEW_RECIPIENT


@pytest.mark.parametrize("rules", ["no rule", UNREGISTERED])
def test_budget_adds_few_units(beyond: Mapping[str, int], rules: str) -> None:
    assert beyond[f"{rules}, in a budget, {GAPS}"] - beyond[f"{rules}, {GAPS}"] <= MOST_IN_AN_OLD_BUDGET


@pytest.mark.parametrize("rules", ["no rule", UNREGISTERED])
def test_parent_adds_few_units(beyond: Mapping[str, int], rules: str) -> None:
    below, alone = f"{rules}, in a budget with a parent", f"{rules}, in a budget"
    assert beyond[below] - beyond[alone] <= MOST_BELOW_A_PARENT
    assert beyond[f"{below}, {GAPS}"] - beyond[f"{alone}, {GAPS}"] <= MOST_BELOW_AN_OLD_PARENT


def test_budget_adds_few_units_without_a_gap(beyond: Mapping[str, int]) -> None:
    assert beyond["no rule, in a budget"] - beyond["no rule"] <= MOST_IN_A_BUDGET
