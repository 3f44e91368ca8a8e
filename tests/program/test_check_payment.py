"""The preview of a payment: what the payment would answer, how much still fits, and when it would pass."""

import hashlib
from typing import Any

import pytest

from app.chain.rules import RULES, Rules, category_bits
from tests.support.vm import CODEC, START
from tests.support.vm_tokens import USDC
from tests.support.vm_world import OPEN, Payee, VmWorld

MINUTE, SLOT, HOUR, DAY = 60, 900, 3_600, 86_400
FEBRUARY = 1_801_440_000
NOTHING_COUNTED = 2**64 - 1
FULL = Rules(
    max_per_tx=50,
    max_per_day=100,
    max_per_month=1_000,
    velocity_cap=5,
    require_co_sign=40,
    expiry=START + 10**6,
    blocked_categories=category_bits(["gambling"]),
    restricted=True,
)


def verdict(check: dict[str, Any], rule: str) -> dict[str, Any]:
    """Return one rule's verdict."""
    (found,) = (one for one in check["rules"] if RULES[one["rule"]] == rule)
    return dict(found)


def test_open_policy_sets_no_rule_and_passes(world: VmWorld) -> None:
    check = world.check(world.wallet(), world.payee())
    assert (check["passed"], check["retry_at"]) == (True, START)
    assert [rule["rule"] for rule in check["rules"]] == [*range(9), 15, 14, 13, 10, 11, 12, 9, 16]
    assert [rule["set"] for rule in check["rules"]] == [True, True] + [False] * 15
    for rule in check["rules"]:
        assert (rule["passed"], rule["headroom"], rule["retry_at"]) == (True, NOTHING_COUNTED, START)


def test_verdict_of_each_rule_has_limit_attempted_and_headroom(world: VmWorld) -> None:
    payee = world.payee()
    vault = world.wallet(world.policy(FULL, [bytes(payee.owner)]))
    for _ in range(2):
        world.vm.succeed(world.payment(vault, payee, 30))
    check = world.check(vault, payee, 40)
    assert check["passed"]
    numbers = [(rule["limit"], rule["attempted"], rule["headroom"]) for rule in check["rules"]]
    assert numbers == [
        (0, 0, NOTHING_COUNTED),
        (0, 0, NOTHING_COUNTED),
        (START + 10**6, START, NOTHING_COUNTED),
        (0, 0, NOTHING_COUNTED),
        (FULL.blocked_categories, 0, NOTHING_COUNTED),
        (50, 40, 50),
        (5, 3, 3),
        (100, 100, 40),
        (1_000, 100, 940),
        *[(0, 0, NOTHING_COUNTED)] * 6,
        (40, 40, 40),
        (0, 0, NOTHING_COUNTED),
    ]


def test_preview_and_payment_refuse_alike(world: VmWorld) -> None:
    payee, other = world.payee(), world.payee()
    vault = world.wallet(world.policy(FULL, [bytes(payee.owner)]))
    for target, amount, co_signed, rule in [
        (payee, 40, False, None),
        (payee, 41, False, "require_co_sign"),
        (payee, 41, True, None),
        (payee, 51, True, "max_per_tx"),
        (other, 1, False, "allowed_recipients"),
    ]:
        check = world.check(vault, target, amount, co_signed=co_signed)
        failed = [RULES[one["rule"]] for one in check["rules"] if not one["passed"]]
        assert failed == ([] if rule is None else [rule])
        paid = world.vm.simulate(world.payment(vault, target, amount, co_signer=world.operator if co_signed else None))
        assert (paid.violation.rule_name if paid.violation else None) == rule
        assert check["passed"] == (paid.error is None)


def test_pause_and_freeze_are_verdicts_without_a_retry_time(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    world.vm.succeed(world.freeze(vault))
    world.pause()
    check = world.check(vault, payee)
    assert (check["passed"], check["retry_at"]) == (False, None)
    for rule in ("paused", "frozen"):
        assert (verdict(check, rule)["passed"], verdict(check, rule)["retry_at"]) == (False, None)


@pytest.mark.parametrize(
    ("amount", "to_itself", "error"),
    [
        (0, False, "ZeroAmount"),
        (USDC, True, "PaymentToSelf"),
        (1_000 * USDC + 1, False, "InsufficientBalance"),
        (1_000 * USDC, False, None),
    ],
)
def test_preview_makes_the_checks_that_are_no_rules(
    world: VmWorld, amount: int, to_itself: bool, error: str | None
) -> None:
    vault = world.wallet()
    payee = Payee(vault, world.tokens_of(vault)) if to_itself else world.payee()
    check = world.check(vault, payee, amount)
    assert check["passed"] == (error is None)
    assert CODEC.error_name(check["error"]) == error if error else check["error"] is None
    assert (check["balance"], check["retry_at"]) == (1_000 * USDC, None if error else START)
    if not to_itself:
        assert world.vm.simulate(world.payment(vault, payee, amount)).error == error


def test_outstanding_payments_use_up_the_balance(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    check = world.check(vault, payee, USDC, outstanding_amount=1_000 * USDC - 1, outstanding_count=1)
    assert (check["balance"], CODEC.error_name(check["error"])) == (1, "InsufficientBalance")


@pytest.mark.parametrize("rule", ["allowed_recipients", "blocked_categories"])
def test_pending_attestation_is_the_time_to_retry(rule: str) -> None:
    world = VmWorld(attestation_delay=HOUR)
    payee, domain = world.payee(), "shop.example"
    rules = Rules(restricted=True) if rule == "allowed_recipients" else Rules(blocked_categories=1)
    entry = hashlib.sha256(hashlib.sha256(domain.encode()).digest()).digest()
    vault = world.wallet(world.policy(rules, [entry] if rules.restricted else None))
    assert world.check(vault, payee)["retry_at"] is None
    world.vm.succeed(world.registration(payee.owner, RULES.index("frozen"), domain))
    check = world.check(vault, payee)
    assert verdict(check, rule)["retry_at"] == check["retry_at"] == START + HOUR
    assert_passes_from(world, vault, payee, 1, START + HOUR)


def assert_passes_from(world: VmWorld, vault: Any, payee: Any, amount: int, expected: int) -> None:
    """Check that the preview names `expected`, and that a payment passes then but not a second earlier."""
    check = world.check(vault, payee, amount)
    assert (check["passed"], check["retry_at"]) == (False, expected)
    world.vm.now = expected - 1
    assert world.vm.send(world.payment(vault, payee, amount)).error is not None
    assert not world.check(vault, payee, amount)["passed"]
    world.vm.now = expected
    assert world.check(vault, payee, amount)["passed"]
    world.vm.succeed(world.payment(vault, payee, amount))


def test_payment_passes_at_the_previewed_time_under_velocity_cap(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(velocity_cap=2)), world.payee()
    for _ in range(2):
        world.vm.succeed(world.payment(vault, payee))
        world.vm.now += 150
    assert_passes_from(world, vault, payee, 1, START + MINUTE + HOUR)
    assert_passes_from(world, vault, payee, 1, START + 150 // MINUTE * MINUTE + MINUTE + HOUR)


@pytest.mark.parametrize(("amount", "slots"), [(1, 1), (30, 1), (31, 3), (100, 3)])
def test_payment_passes_at_the_previewed_time_under_max_per_day(world: VmWorld, amount: int, slots: int) -> None:
    vault, payee = world.wallet(Rules(max_per_day=100)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 30))
    world.vm.now = START + 2 * SLOT + 7
    world.vm.succeed(world.payment(vault, payee, 70))
    assert_passes_from(world, vault, payee, amount, START + slots * SLOT + DAY)


def test_payment_passes_at_the_previewed_time_under_max_per_month(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_month=100)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 100))
    assert_passes_from(world, vault, payee, 100, FEBRUARY)


def test_payment_passes_when_the_last_of_its_rules_allows_it(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_day=100, velocity_cap=1)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 100))
    check = world.check(vault, payee, 1)
    assert verdict(check, "velocity_cap")["retry_at"] == START + MINUTE + HOUR
    assert_passes_from(world, vault, payee, 1, START + SLOT + DAY)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(max_per_tx=1),
        Rules(max_per_day=1),
        Rules(max_per_month=1),
        Rules(velocity_cap=0),
        Rules(require_co_sign=1),
        Rules(expiry=START - 1),
        Rules(restricted=True),
        Rules(blocked_categories=1),
    ],
)
def test_payment_that_can_never_pass_has_no_retry_time(world: VmWorld, rules: Rules) -> None:
    check = world.check(world.wallet(rules), world.payee(), 2)
    assert (check["passed"], check["retry_at"]) == (False, None)


def test_payment_that_could_pass_only_after_expiry_has_no_retry_time(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(velocity_cap=1, expiry=START + 100)), world.payee()
    world.vm.succeed(world.payment(vault, payee))
    check = world.check(vault, payee)
    assert verdict(check, "velocity_cap")["retry_at"] == START + MINUTE + HOUR
    assert (check["passed"], check["retry_at"]) == (False, None)


def test_retry_time_can_be_the_policys_last_second(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(velocity_cap=1, expiry=START + MINUTE + HOUR)), world.payee()
    world.vm.succeed(world.payment(vault, payee))
    assert_passes_from(world, vault, payee, 1, START + MINUTE + HOUR)


def test_preview_uses_the_ledgers_time_when_the_clock_steps_back(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(velocity_cap=2, max_per_day=USDC)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = START - DAY
    check = world.check(vault, payee, 1)
    assert (check["passed"], check["retry_at"]) == (True, START)


def test_preview_needs_the_accounts_that_the_payment_needs(world: VmWorld) -> None:
    payee, other = world.payee(), world.policy()
    vault = world.wallet(world.policy(FULL, [bytes(payee.owner)]))
    policy = world.fields(vault)["policy"]
    good = {"allowlist": world.fields(policy)["allowlist"], "policy": policy}
    good["recipient_account"] = world.addresses.recipient(world.org, payee.owner)
    for wrong, error in [
        ({"allowlist": None}, "AllowlistRequired"),
        ({"recipient_account": None}, "RecipientAccountRequired"),
        ({"recipient_account": good["allowlist"]}, "WrongRecipientAccount"),
        ({"policy": other}, "WrongPolicy"),
    ]:
        call = world.build.check_payment(
            vault=vault, amount=1, recipient=payee.owner, co_signed=False, **{**good, **wrong}
        )
        world.vm.refuse(error, call)


def test_preview_changes_nothing_even_when_it_is_sent(world: VmWorld) -> None:
    vault, payee = world.wallet(OPEN), world.payee()
    before = world.vm.state()
    result = world.vm.succeed(
        world.build.check_payment(
            vault=vault,
            amount=1,
            recipient=payee.owner,
            co_signed=False,
            policy=world.fields(vault)["policy"],
        )
    )
    assert (result.events, world.vm.state()) == ([], before)
