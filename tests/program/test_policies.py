"""Creating, changing and closing policies."""

from functools import partial
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.chain.rules import CATEGORIES, Rules
from idl.codec import Event
from tests.support.vm_escrows import completion, creation, lock, worker
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
    allow_allowances=True,
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
    Rules(allow_allowances=True),
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
    values: dict[str, Any] = {
        name: fields[name] if fields["flags"] >> bit & 1 else None for bit, name in enumerate(FLAGS)
    }
    assert all(fields[name] == 0 for name, value in values.items() if value is None)
    return Rules(
        **values,
        blocked_categories=fields["blocked_categories"],
        restricted=bool(fields["flags"] >> 6 & 1),
        max_open_escrows=fields["max_open_escrows"] if fields["flags"] >> 7 & 1 else None,
        allow_allowances=bool(fields["flags"] >> 8 & 1),
    )


@pytest.mark.proves("instruction create_policy", "instruction close_policy", "instruction write_allowlist")
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
    assert (fields["version"], fields["next_allowlist_version"], fields["wallet_count"]) == (6, 6, 0)
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
        world.build.update_policy(authority=signer, policy=policy, expected_version=6, rules=OPEN),
    )
    refuse(
        "Unauthorized",
        world.policy_closing(policy, authority=signer),
    )
    if role != "operator":
        refuse("Unauthorized", world.chunk(policy, [], writer=signer))
    world.vm.succeed(world.chunk(policy, []))
    version = world.fields(policy)["next_allowlist_version"]
    discard = world.build.close_allowlist(authority=signer, policy=policy, version=version, rent_receiver=world.payer)
    refuse("Unauthorized", discard)


@pytest.mark.proves("instruction update_policy")
def test_update_replaces_all_rules_and_reports_old_and_new(world: VmWorld) -> None:
    policy = world.policy(Rules(max_per_tx=9, expiry=8, blocked_categories=4))
    rules = Rules(max_per_day=1, velocity_cap=2)
    result = world.update_policy(policy, rules)
    assert stored(world, policy) == rules
    assert world.fields(policy)["version"] == 7
    assert result.event == Event(
        "PolicyUpdated",
        {
            "org": world.org,
            "policy": policy,
            "sequence": 7,
            "previous": Rules(max_per_tx=9, expiry=8, blocked_categories=4).to_args(),
            "rules": rules.to_args(),
            "previous_allowlist": NONE,
            "allowlist": NONE,
        },
    )


def test_update_that_expects_another_version_is_refused(world: VmWorld) -> None:
    policy = world.policy()
    for expected in (0, 5, 7, 2**64 - 1):
        world.vm.refuse("VersionMismatch", world.policy_update(policy, OPEN, expected_version=expected))
    world.update_policy(policy, OPEN, expected_version=6)
    world.vm.refuse("VersionMismatch", world.policy_update(policy, OPEN, expected_version=6))
    world.update_policy(policy, OPEN, expected_version=7)


@pytest.mark.proves("instruction update_policy")
def test_update_applies_to_all_vaults_at_once(world: VmWorld) -> None:
    policy, payee = world.policy(), world.payee()
    vaults = [world.wallet(policy) for _ in range(3)]
    for vault in vaults:
        world.vm.succeed(world.payment(vault, payee, 2))
    world.update_policy(policy, Rules(max_per_tx=1))
    for vault in vaults:
        world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee, 2))


@pytest.mark.proves("instruction create_policy", "instruction close_policy", "instruction write_allowlist")
def test_closed_policy_returns_its_rent_to_whoever_paid_it(world: VmWorld) -> None:
    before = world.vm.lamports(world.payer)
    policy = world.policy()
    close = world.policy_closing(policy)
    for receiver in (world.authority, world.stranger):
        world.vm.refuse(
            "WrongRentReceiver",
            world.policy_closing(policy, policy_rent_receiver=receiver),
        )
    result = world.vm.succeed(close)
    assert not world.vm.exists(policy)
    assert world.vm.lamports(world.payer) == before
    assert result.event == Event("PolicyClosed", {"org": world.org, "policy": policy, "sequence": 7})


def test_policy_in_use_cannot_be_closed(world: VmWorld) -> None:
    policy, other = world.policy(), world.policy()
    vault = world.wallet(policy, funds=0)
    close = world.policy_closing(policy)
    assert world.fields(policy)["wallet_count"] == 1
    world.vm.refuse("PolicyInUse", close)
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, policy=policy, new_policy=other))
    assert (world.fields(policy)["wallet_count"], world.fields(other)["wallet_count"]) == (0, 1)
    world.vm.succeed(close)


def test_key_can_be_used_again_after_closing(world: VmWorld) -> None:
    key = b"k" * 16
    create = partial(
        world.build.create_policy, payer=world.payer, authority=world.authority, key=key, rules=Rules(max_per_tx=USDC)
    )
    kept = create()
    world.vm.succeed(kept)
    world.vm.refuse("System:0", kept)
    policy = world.addresses.policy(world.org, key)
    world.vm.succeed(world.policy_closing(policy))
    world.vm.refuse("SequenceMismatch", kept)
    world.vm.succeed(create())


def test_no_version_repeats_when_a_policy_is_made_anew(world: VmWorld) -> None:
    # Given a policy that is closed and created anew under its key
    key = b"k" * 16
    policy = world.addresses.policy(world.org, key)
    rules = Rules(require_co_sign=1)
    create = partial(world.build.create_policy, payer=world.payer, authority=world.authority, key=key, rules=rules)
    world.vm.succeed(create())
    late = world.policy_update(policy, OPEN)
    vault, payee, other = world.wallet(policy), world.payee(), world.policy()
    approval = world.approval(vault, payee, 2)
    move = partial(world.build.update_wallet, operator=world.operator, vault=vault)
    world.vm.succeed(move(policy=policy, new_policy=other))
    before = world.fields(policy)
    world.vm.succeed(world.policy_closing(policy))
    world.vm.succeed(create())
    world.vm.succeed(move(policy=other, new_policy=policy))
    # Then neither what was approved nor what was signed under the old one passes
    after = world.fields(policy)
    assert after["version"] > before["version"]
    assert after["next_allowlist_version"] > before["next_allowlist_version"]
    world.vm.refuse("VersionMismatch", late)
    world.vm.refuse("ApprovalOutdated", world.payment(vault, payee, 2, approval=approval))


def test_versions_come_from_the_organisations_sequence(world: VmWorld) -> None:
    seen = set()
    for _ in range(2):
        policy = world.policy()
        for _ in range(3):
            fields = world.fields(policy)
            assert fields["version"] == world.fields(world.org)["sequence"]
            seen.add(fields["version"])
            world.update_policy(policy, OPEN)
    assert len(seen) == 6


@pytest.mark.parametrize("limit", [None, 0, 1, 64, 65, 2**32 - 1])
def test_policy_bounds_the_open_escrows_of_a_vault(world: VmWorld, limit: int | None) -> None:
    vault, receiver = world.wallet(Rules(max_open_escrows=limit)), worker(world)
    expected = 64 if limit is None else min(limit, 64)
    first = None
    for _ in range(expected):
        escrow = lock(world, vault, receiver.vault, 1)
        first = first or escrow
    world.vm.refuse("TooManyEscrows", creation(world, vault, receiver.vault, 1))
    if first is not None:
        world.vm.succeed(completion(world, first))
        world.vm.succeed(creation(world, vault, receiver.vault, 1))
