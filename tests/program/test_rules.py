"""Each rule at its boundary: what it allows, what it refuses and how it reports that; and the order of the rules."""

from collections.abc import Callable
from typing import Any

import pytest

from app.chain.rules import RULES, Rules
from tests.support.vm import START, Receipt
from tests.support.vm_tokens import USDC
from tests.support.vm_world import OPEN, VmWorld

MINUTE, SLOT, HOUR, DAY = 60, 900, 3_600, 86_400
FEBRUARY = 1_801_440_000
"""date -u -d 2027-02-01 +%s"""
MARCH = 1_803_859_200


def assert_violation(refused: Receipt, rule: str, limit: int, attempted: int) -> None:
    """Check what the program logged about a refused payment."""
    violation = refused.violation
    assert violation is not None
    assert (violation.rule_name, violation.limit, violation.attempted) == (rule, limit, attempted)


def test_policy_allows_payments_in_its_last_second_and_not_after(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(expiry=START + 9)), world.payee()
    world.vm.now = START + 9
    world.vm.succeed(world.payment(vault, payee))
    world.vm.now = START + 10
    assert_violation(world.vm.refuse("PolicyExpired", world.payment(vault, payee)), "expiry", START + 9, START + 10)


def test_violation_names_vault_and_recipient(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_tx=0)), world.payee()
    violation = world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee)).violation
    assert violation is not None
    assert (violation.vault, violation.recipient) == (vault, payee.owner)


def test_allowed_recipients_reports_no_figures(world: VmWorld) -> None:
    vault = world.wallet(Rules(restricted=True))
    refused = world.vm.refuse("RecipientNotAllowed", world.payment(vault, world.payee()))
    assert_violation(refused, "allowed_recipients", 0, 0)


@pytest.mark.parametrize("limit", [1, USDC, 10 * USDC])
def test_max_per_tx_allows_its_limit_and_no_more(world: VmWorld, limit: int) -> None:
    vault, payee = world.wallet(Rules(max_per_tx=limit)), world.payee()
    refused = world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee, limit + 1))
    assert_violation(refused, "max_per_tx", limit, limit + 1)
    world.vm.succeed(world.payment(vault, payee, limit))


@pytest.mark.proves("Limits: Velocity", "Policy(velocity_cap)")
def test_velocity_cap_counts_any_hour(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(velocity_cap=3)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = START + MINUTE - 1
    for _ in range(2):
        world.vm.succeed(world.payment(vault, payee, 1))
    for now in (START + MINUTE - 1, START + HOUR, START + MINUTE + HOUR - 1):
        world.vm.now = now
        assert_violation(world.vm.refuse("VelocityCapExceeded", world.payment(vault, payee, 1)), "velocity_cap", 3, 4)
    world.vm.now = START + MINUTE + HOUR
    world.vm.succeed(world.payment(vault, payee, 1))


@pytest.mark.proves("Policy(max_per_day)")
def test_max_per_day_counts_any_24_hours(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_day=100)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 10))
    world.vm.now = START + SLOT - 1
    world.vm.succeed(world.payment(vault, payee, 20))
    world.vm.now = START + SLOT
    world.vm.succeed(world.payment(vault, payee, 70))
    for now in (START + SLOT, START + DAY, START + SLOT + DAY - 1):
        world.vm.now = now
        refused = world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))
        assert_violation(refused, "max_per_day", 100, 101)
    # The first slot leaves once all of it is older than 24 hours, the second a quarter of an hour later
    world.vm.now = START + SLOT + DAY
    refused = world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 31))
    assert_violation(refused, "max_per_day", 100, 101)
    world.vm.succeed(world.payment(vault, payee, 30))
    world.vm.now = START + 2 * SLOT + DAY
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 71))
    world.vm.succeed(world.payment(vault, payee, 70))


@pytest.mark.proves("Policy(max_per_month)")
def test_max_per_month_counts_the_utc_calendar_month(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_month=100)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 60))
    world.vm.now = FEBRUARY - 1
    world.vm.succeed(world.payment(vault, payee, 40))
    refused = world.vm.refuse("MaxPerMonthExceeded", world.payment(vault, payee, 1))
    assert_violation(refused, "max_per_month", 100, 101)
    for first_second in (FEBRUARY, MARCH):
        world.vm.now = first_second - 1
        world.vm.refuse("MaxPerMonthExceeded", world.payment(vault, payee, 1))
        world.vm.now = first_second
        world.vm.refuse("MaxPerMonthExceeded", world.payment(vault, payee, 101))
        world.vm.succeed(world.payment(vault, payee, 100))


def test_require_co_sign_applies_above_its_threshold(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(require_co_sign=USDC)), world.payee()
    world.vm.succeed(world.payment(vault, payee, USDC))
    refused = world.vm.refuse("CoSignRequired", world.payment(vault, payee, USDC + 1))
    assert_violation(refused, "require_co_sign", USDC, USDC + 1)
    signed = world.vm.succeed(world.payment(vault, payee, USDC + 1, co_signer=world.operator))
    assert (signed.event.data["co_signed"], signed.event.data["by_session"]) == (1, 1)


@pytest.mark.parametrize("role", ["authority", "session", "arbiter", "verifier", "stranger"])
def test_only_the_operator_can_co_sign(world: VmWorld, role: str) -> None:
    vault, payee = world.wallet(Rules(require_co_sign=USDC)), world.payee()
    world.vm.refuse("Unauthorized", world.payment(vault, payee, USDC + 1, co_signer=getattr(world, role)))


def test_operator_alone_counts_as_one_signature(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(require_co_sign=USDC)), world.payee()
    world.vm.succeed(world.payment(vault, payee, USDC, signer=world.operator))
    world.vm.refuse("CoSignRequired", world.payment(vault, payee, USDC + 1, signer=world.operator))


@pytest.mark.parametrize(
    "rules",
    [
        Rules(max_per_tx=0),
        Rules(max_per_day=0),
        Rules(max_per_month=0),
        Rules(velocity_cap=0),
        Rules(require_co_sign=0),
        Rules(expiry=0),
        Rules(expiry=-1),
        Rules(restricted=True),
    ],
)
def test_limit_of_zero_is_a_limit(world: VmWorld, rules: Rules) -> None:
    refused = world.vm.send(world.payment(world.wallet(rules), world.payee(), 1))
    assert refused.violation is not None
    assert refused.violation.limit == 0


def test_largest_limits_allow_everything(world: VmWorld) -> None:
    whole = 2**64 - 1
    rules = Rules(
        max_per_tx=whole,
        max_per_day=whole,
        max_per_month=whole,
        velocity_cap=2**32 - 1,
        require_co_sign=whole,
        expiry=2**63 - 1,
    )
    vault, payee = world.wallet(rules), world.payee()
    world.fill(world.tokens_of(vault), vault, whole)
    world.vm.succeed(world.payment(vault, payee, whole))
    refused = world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))
    assert_violation(refused, "max_per_day", whole, whole)


def test_policy_is_judged_before_the_balance(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_tx=5), funds=0), world.payee()
    world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee, 6))
    world.vm.refuse("InsufficientBalance", world.payment(vault, payee, 5))


@pytest.mark.proves("instruction execute_payment")
def test_first_rule_in_order_is_the_one_reported(world: VmWorld) -> None:
    # Given a payment that every rule refuses
    vault, payee = world.wallet(), world.payee()
    policy = world.fields(vault)["policy"]
    world.vm.succeed(world.payment(vault, payee))
    everything: dict[str, Any] = {
        "expiry": START - 1,
        "restricted": True,
        "blocked_categories": 1,
        "max_per_tx": 0,
        "velocity_cap": 0,
        "max_per_day": 0,
        "max_per_month": 0,
        "require_co_sign": 0,
    }
    world.update_policy(policy, Rules(**everything))
    world.vm.succeed(world.freeze(vault))
    world.pause()
    # When they are lifted in order, one after the other, then the next one is reported
    lifts: list[Callable[[], object]] = [
        lambda: world.vm.succeed(world.org_update(paused=False)),
        lambda: _unfreeze(world, vault, everything),
    ]
    errors = list(CODES)
    for error, lift in zip(errors[:2], lifts, strict=True):
        world.vm.refuse(error, world.payment(vault, payee))
        lift()
    for error, name in zip(errors[2:], list(everything), strict=True):
        refused = world.vm.refuse(error, world.payment(vault, payee))
        assert refused.violation is not None
        assert RULES[refused.violation.rule] == CODES[error]
        del everything[name]
        world.update_policy(policy, Rules(**everything))
    world.vm.succeed(world.payment(vault, payee))


CODES = {
    "OrgPaused": "paused",
    "WalletFrozen": "frozen",
    "PolicyExpired": "expiry",
    "RecipientNotAllowed": "allowed_recipients",
    "CategoryBlocked": "blocked_categories",
    "MaxPerTxExceeded": "max_per_tx",
    "VelocityCapExceeded": "velocity_cap",
    "MaxPerDayExceeded": "max_per_day",
    "MaxPerMonthExceeded": "max_per_month",
    "CoSignRequired": "require_co_sign",
}
"""The error of each rule, in the order in which they are judged."""


def _unfreeze(world: VmWorld, vault: Any, rules: dict[str, Any]) -> None:
    """Lift a freeze, which is refused while the policy is expired."""
    policy = world.fields(vault)["policy"]
    world.update_policy(policy, OPEN)
    world.vm.succeed(world.freeze(vault, "Unfreeze", signer=world.authority))
    world.update_policy(policy, Rules(**rules))


def test_pause_and_freeze_log_no_violation(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_tx=0)), world.payee()
    world.vm.succeed(world.freeze(vault))
    assert world.vm.refuse("WalletFrozen", world.payment(vault, payee)).violation is None
    world.pause()
    assert world.vm.refuse("OrgPaused", world.payment(vault, payee)).violation is None


def test_clock_that_steps_back_frees_no_budget(world: VmWorld) -> None:
    rules = Rules(max_per_day=10, max_per_month=15, velocity_cap=2)
    vault, payee = world.wallet(rules), world.payee()
    world.vm.now = FEBRUARY
    world.vm.succeed(world.payment(vault, payee, 9))
    for back in (1, MINUTE, SLOT, HOUR, DAY, 2 * DAY, 40 * DAY, FEBRUARY):
        world.vm.now = FEBRUARY - back
        world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 2))
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.refuse("VelocityCapExceeded", world.payment(vault, payee, 1))
    # Payments made while the clock was behind count at the time before it stepped back
    world.vm.now = FEBRUARY + MINUTE + HOUR - 1
    world.vm.refuse("VelocityCapExceeded", world.payment(vault, payee, 1))
    world.vm.now = FEBRUARY + SLOT + DAY - 1
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))
    world.vm.now = FEBRUARY + SLOT + DAY
    world.vm.refuse("MaxPerMonthExceeded", world.payment(vault, payee, 6))
    world.vm.succeed(world.payment(vault, payee, 5))


SPENT = [
    ("MaxPerDayExceeded", Rules(max_per_day=10)),
    ("MaxPerMonthExceeded", Rules(max_per_month=10)),
    ("VelocityCapExceeded", Rules(velocity_cap=1)),
]


@pytest.mark.parametrize(("error", "rules"), SPENT)
def test_editing_the_policy_resets_nothing(world: VmWorld, error: str, rules: Rules) -> None:
    vault, payee = world.wallet(), world.payee()
    policy = world.fields(vault)["policy"]
    world.vm.succeed(world.payment(vault, payee, 10))
    for _ in range(2):
        # A rule that was set later counts the earlier payment
        world.update_policy(policy, rules)
        world.vm.refuse(error, world.payment(vault, payee, 1))
        world.update_policy(policy, OPEN)


@pytest.mark.parametrize(("error", "rules"), SPENT)
def test_switching_the_policy_resets_nothing(world: VmWorld, error: str, rules: Rules) -> None:
    vault, payee, strict = world.wallet(), world.payee(), world.policy(rules)
    world.vm.succeed(world.payment(vault, payee, 10))
    loose = world.fields(vault)["policy"]
    for policy, new_policy in ((loose, strict), (strict, loose), (loose, strict)):
        world.vm.succeed(
            world.build.update_wallet(operator=world.operator, vault=vault, policy=policy, new_policy=new_policy)
        )
    world.vm.refuse(error, world.payment(vault, payee, 1))


def test_vaults_under_one_policy_are_counted_separately(world: VmWorld) -> None:
    policy, payee = world.policy(Rules(max_per_day=10, velocity_cap=1)), world.payee()
    for vault in [world.wallet(policy) for _ in range(2)]:
        world.vm.succeed(world.payment(vault, payee, 10))
        world.vm.refuse("VelocityCapExceeded", world.payment(vault, payee, 10))


def test_limit_lowered_below_what_was_spent_refuses_and_does_not_wrap(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    world.vm.succeed(world.payment(vault, payee, 10))
    world.update_policy(world.fields(vault)["policy"], Rules(max_per_day=3, max_per_month=3))
    refused = world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))
    assert_violation(refused, "max_per_day", 3, 11)
