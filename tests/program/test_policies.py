"""Creating, changing and closing policies."""

import pytest
from solders.pubkey import Pubkey

from app.chain.rules import CATEGORIES, Rules
from idl.codec import Event
from tests.support.vm_tokens import USDC
from tests.support.vm_world import NONE, OPEN, VmWorld

FULL = Rules(
    max_per_tx=1,
    max_per_day=2,
    max_per_month=3,
    velocity_cap=4,
    require_co_sign=5,
    expiry=6,
    blocked_categories=7,
    restricted=True,
)
SINGLE = [
    Rules(max_per_tx=0),
    Rules(max_per_day=0),
    Rules(max_per_month=0),
    Rules(velocity_cap=0),
    Rules(require_co_sign=0),
    Rules(expiry=0),
    Rules(blocked_categories=1 << 19),
    Rules(restricted=True),
]
MAXIMAL = Rules(
    max_per_tx=2**64 - 1,
    max_per_day=2**64 - 1,
    max_per_month=2**64 - 1,
    velocity_cap=2**32 - 1,
    require_co_sign=2**64 - 1,
    expiry=2**63 - 1,
    blocked_categories=(1 << len(CATEGORIES)) - 1,
)
FLAGS = ("max_per_tx", "max_per_day", "max_per_month", "velocity_cap", "require_co_sign", "expiry")


def stored(world: VmWorld, policy: Pubkey) -> Rules:
    """Return the rules that a policy's account holds."""
    fields = world.fields(policy)
    values = {name: fields[name] if fields["flags"] >> bit & 1 else None for bit, name in enumerate(FLAGS)}
    assert all(fields[name] == 0 for name, value in values.items() if value is None)
    return Rules(**values, blocked_categories=fields["blocked_categories"], restricted=bool(fields["flags"] >> 6 & 1))


@pytest.mark.parametrize("rules", [OPEN, FULL, MAXIMAL, *SINGLE])
def test_new_policy_holds_its_rules_and_reports_them(world: VmWorld, rules: Rules) -> None:
    key = b"k" * 16
    policy = world.addresses.policy(world.org, key)
    result = world.vm.succeed(
        world.build.create_policy(payer=world.payer, authority=world.authority, key=key, rules=rules)
    )
    assert stored(world, policy) == rules
    fields = world.fields(policy)
    assert (fields["org"], fields["payer"], fields["key"]) == (world.org, world.payer, key)
    assert (fields["version"], fields["allowlist_version"], fields["wallet_count"]) == (1, 0, 0)
    assert (fields["allowlist"], fields["immutable"]) == (NONE, 0)
    expected = {"org": world.org, "policy": policy, "sequence": 6, "key": key, "immutable": False}
    assert result.event == Event("PolicyCreated", {**expected, "rules": rules.to_args()})


@pytest.mark.parametrize("bit", [20, 31])
def test_category_that_does_not_exist_cannot_be_blocked(world: VmWorld, bit: int) -> None:
    rules = Rules(blocked_categories=1 << bit)
    world.vm.refuse(
        "UnknownCategory",
        world.build.create_policy(payer=world.payer, authority=world.authority, key=b"k" * 16, rules=rules),
    )
    world.vm.refuse("UnknownCategory", world.policy_update(world.policy(), rules))


@pytest.mark.parametrize("role", ["operator", "arbiter", "verifier", "session", "stranger"])
def test_only_the_authority_creates_changes_and_closes_policies(world: VmWorld, role: str) -> None:
    signer, policy = getattr(world, role), world.policy()
    refuse = world.vm.refuse
    refuse(
        "Unauthorized",
        world.build.create_policy(payer=world.payer, authority=signer, key=b"k" * 16, rules=OPEN),
    )
    refuse(
        "Unauthorized",
        world.build.update_policy(authority=signer, policy=policy, expected_version=1, rules=OPEN),
    )
    refuse(
        "Unauthorized",
        world.build.close_policy(authority=signer, policy=policy, policy_rent_receiver=world.payer),
    )
    refuse(
        "Unauthorized",
        world.build.write_allowlist(
            payer=world.payer, authority=signer, policy=policy, version=1, offset=0, entries=[], seal=True
        ),
    )


def test_update_replaces_all_rules_and_reports_old_and_new(world: VmWorld) -> None:
    policy = world.policy(Rules(max_per_tx=9, expiry=8, blocked_categories=4))
    rules = Rules(max_per_day=1, velocity_cap=2)
    result = world.update_policy(policy, rules)
    assert stored(world, policy) == rules
    assert world.fields(policy)["version"] == 2
    assert result.event == Event(
        "PolicyUpdated",
        {
            "org": world.org,
            "policy": policy,
            "sequence": 7,
            "version": 2,
            "previous": Rules(max_per_tx=9, expiry=8, blocked_categories=4).to_args(),
            "rules": rules.to_args(),
            "previous_allowlist": NONE,
            "allowlist": NONE,
        },
    )


def test_update_that_expects_another_version_is_refused(world: VmWorld) -> None:
    policy = world.policy()
    for expected in (0, 2, 2**64 - 1):
        world.vm.refuse("VersionMismatch", world.policy_update(policy, OPEN, expected_version=expected))
    world.update_policy(policy, OPEN, expected_version=1)
    world.vm.refuse("VersionMismatch", world.policy_update(policy, OPEN, expected_version=1))
    world.update_policy(policy, OPEN, expected_version=2)


def test_update_applies_to_all_vaults_at_once(world: VmWorld) -> None:
    policy, payee = world.policy(), world.payee()
    vaults = [world.wallet(policy) for _ in range(3)]
    for vault in vaults:
        world.vm.succeed(world.payment(vault, payee, 2))
    world.update_policy(policy, Rules(max_per_tx=1))
    for vault in vaults:
        world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee, 2))


def test_closed_policy_returns_its_rent_to_whoever_paid_it(world: VmWorld) -> None:
    before = world.vm.lamports(world.payer)
    policy = world.policy()
    close = world.build.close_policy(authority=world.authority, policy=policy, policy_rent_receiver=world.payer)
    for receiver in (world.authority, world.stranger):
        world.vm.refuse(
            "WrongRentReceiver",
            world.build.close_policy(authority=world.authority, policy=policy, policy_rent_receiver=receiver),
        )
    result = world.vm.succeed(close)
    assert not world.vm.exists(policy)
    assert world.vm.lamports(world.payer) == before
    assert result.event == Event("PolicyClosed", {"org": world.org, "policy": policy, "sequence": 7})


def test_policy_in_use_cannot_be_closed(world: VmWorld) -> None:
    policy, other = world.policy(), world.policy()
    vault = world.wallet(policy, funds=0)
    close = world.build.close_policy(authority=world.authority, policy=policy, policy_rent_receiver=world.payer)
    assert world.fields(policy)["wallet_count"] == 1
    world.vm.refuse("PolicyInUse", close)
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, policy=policy, new_policy=other))
    assert (world.fields(policy)["wallet_count"], world.fields(other)["wallet_count"]) == (0, 1)
    world.vm.succeed(close)


def test_key_can_be_used_again_after_closing(world: VmWorld) -> None:
    key = b"k" * 16
    create = world.build.create_policy(
        payer=world.payer, authority=world.authority, key=key, rules=Rules(max_per_tx=USDC)
    )
    world.vm.succeed(create)
    world.vm.refuse("System:0", create)
    policy = world.addresses.policy(world.org, key)
    world.vm.succeed(
        world.build.close_policy(authority=world.authority, policy=policy, policy_rent_receiver=world.payer)
    )
    world.vm.succeed(create)
