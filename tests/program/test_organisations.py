"""Creating an organisation, its roles, its pause, and handing it over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import org_hash
from app.chain.instructions import UNLIMITED, Instructions
from app.chain.rules import Rules
from app.core.identifiers import PRESET_POLICY_IDS, policy_key
from idl.codec import Event
from tests.support.vm import CODEC
from tests.support.vm_tokens import USDC, token_account_data
from tests.support.vm_world import GENESIS_HASH, NONE, VmWorld

PRESETS = {
    "pol_conservative": Rules(
        max_per_tx=10 * USDC,
        max_per_day=50 * USDC,
        max_per_month=500 * USDC,
        velocity_cap=10,
        max_open_escrows=8,
    ),
    "pol_moderate": Rules(
        max_per_tx=100 * USDC,
        max_per_day=500 * USDC,
        max_per_month=5_000 * USDC,
        velocity_cap=60,
        max_open_escrows=32,
    ),
    "pol_permissive": Rules(
        max_per_tx=1_000 * USDC,
        max_per_day=10_000 * USDC,
        max_per_month=100_000 * USDC,
        velocity_cap=600,
        max_open_escrows=64,
    ),
    "pol_locked": Rules(max_per_tx=0, max_open_escrows=0),
}


@pytest.mark.proves("instruction initialize_org", "instruction update_org", "instruction accept_authority")
def test_new_organisation_has_its_roles_and_an_empty_ledger(world: VmWorld) -> None:
    org = world.fields(world.org)
    assert org["creator"] == org["authority"] == world.authority
    assert org["org_hash"] == org_hash("acme")
    assert org["genesis_hash"] == GENESIS_HASH
    assert (org["operator"], org["arbiter"], org["verifier"]) == (world.operator, world.arbiter, world.verifier)
    assert org["pending_authority"] == NONE
    assert (org["mint"], org["token_program"], org["decimals"]) == (world.mint, world.token_program, 6)
    assert org["reserve_tokens"] == world.reserve
    assert (org["operator_daily_limit"], org["attestation_delay"]) == (UNLIMITED, 0)
    assert (org["paused"], org["authority_attaches"]) == (0, 0)
    assert (org["funded"]["newest"], org["funded"]["total"], org["sequence"]) == (0, 0, 5)


def test_creation_emits_an_event_for_itself_and_one_for_each_preset(world: VmWorld) -> None:
    created, *presets = world.initialized.events
    assert created == Event(
        "OrgInitialized",
        {
            "org": world.org,
            "creator": world.authority,
            "authority": world.authority,
            "operator": world.operator,
            "arbiter": world.arbiter,
            "verifier": world.verifier,
            "mint": world.mint,
            "reserve_tokens": world.reserve,
            "sequence": 1,
            "operator_daily_limit": UNLIMITED,
            "attestation_delay": 0,
            "genesis_hash": GENESIS_HASH,
        },
    )
    assert presets == [
        Event(
            "PolicyCreated",
            {
                "org": world.org,
                "policy": world.addresses.preset(world.org, identifier),
                "sequence": sequence,
                "key": policy_key(identifier),
                "immutable": True,
                "rules": PRESETS[identifier].to_args(),
            },
        )
        for sequence, identifier in enumerate(PRESET_POLICY_IDS, start=2)
    ]


@pytest.mark.parametrize("identifier", PRESET_POLICY_IDS)
def test_presets_cannot_be_changed_closed_or_given_a_list(world: VmWorld, identifier: str) -> None:
    preset = world.addresses.preset(world.org, identifier)
    assert world.fields(preset)["immutable"] == 1
    world.vm.refuse("PolicyImmutable", world.policy_update(preset, Rules()))
    world.vm.refuse("PolicyImmutable", world.chunk(preset, []))
    world.vm.refuse(
        "PolicyImmutable",
        world.policy_closing(preset),
    )


def test_same_id_under_another_creator_is_another_organisation(world: VmWorld) -> None:
    other = VmWorld(world.vm, org_id=world.org_id, mint=world.mint)
    assert other.org != world.org


@pytest.mark.proves("instruction initialize_org", "instruction update_org", "instruction accept_authority")
def test_authority_changes_only_what_it_names(world: VmWorld) -> None:
    before = world.fields(world.org)
    new = Pubkey.new_unique()
    changes: dict[str, Any] = {
        "pending_authority": new,
        "operator": Pubkey.new_unique(),
        "arbiter": Pubkey.new_unique(),
        "verifier": Pubkey.new_unique(),
        "operator_daily_limit": 5,
        "attestation_delay": 7,
        "paused": True,
        "authority_attaches": True,
    }
    for sequence, (name, value) in enumerate(changes.items(), start=6):
        result = world.vm.succeed(world.org_update(**{name: value}))
        before |= {name: int(value) if value is True else value, "sequence": sequence}
        before["authority_sequence"] += 1
        assert world.fields(world.org) == before
        current = {key: before[key] for key in (*changes, "authority", "sequence")}
        expected = {"org": world.org, "signer": world.authority, "reserved": bytes(6), **current}
        assert result.event == Event("OrgUpdated", expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"paused": False},
        {"operator": Pubkey.new_unique()},
        {"paused": True, "operator": Pubkey.new_unique()},
        {"paused": True, "pending_authority": Pubkey.new_unique()},
        {"paused": True, "arbiter": Pubkey.new_unique()},
        {"paused": True, "verifier": Pubkey.new_unique()},
        {"paused": True, "operator_daily_limit": 1},
        {"paused": True, "attestation_delay": 1},
        {"paused": True, "authority_attaches": False},
        {},
    ],
)
def test_operator_may_only_pause(world: VmWorld, changes: dict[str, Any]) -> None:
    world.vm.refuse("Unauthorized", world.org_update(signer=world.operator, **changes))


def test_operator_pauses_and_the_authority_resumes(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    world.pause()
    assert world.fields(world.org)["paused"] == 1
    world.vm.refuse("OrgPaused", world.payment(vault, payee))
    world.vm.refuse("OrgPaused", world.funding(vault, 1))
    world.vm.refuse("Unauthorized", world.org_update(signer=world.operator, paused=False))
    world.vm.succeed(world.org_update(paused=False))
    world.vm.succeed(world.payment(vault, payee))
    world.vm.succeed(world.funding(vault, 1))


@pytest.mark.parametrize("role", ["arbiter", "verifier", "session", "stranger"])
def test_nobody_else_can_change_an_organisation(world: VmWorld, role: str) -> None:
    world.vm.refuse("Unauthorized", world.org_update(signer=getattr(world, role), paused=True))


@pytest.mark.proves("instruction initialize_org", "instruction update_org", "instruction accept_authority")
def test_authority_changes_only_when_the_proposed_one_accepts(world: VmWorld) -> None:
    heir = world.vm.key()
    # Given no proposal, or a proposal of somebody else, then the key cannot accept
    world.vm.refuse("Unauthorized", world.build.accept_authority(new_authority=heir))
    world.vm.succeed(world.org_update(pending_authority=world.stranger))
    world.vm.refuse("Unauthorized", world.build.accept_authority(new_authority=heir))
    # When the proposed key accepts
    world.vm.succeed(world.org_update(pending_authority=heir))
    result = world.vm.succeed(world.build.accept_authority(new_authority=heir))
    # Then it is the only authority, and the proposal is used up
    org = world.fields(world.org)
    assert (org["authority"], org["pending_authority"], org["creator"]) == (heir, NONE, world.authority)
    expected = {"org": world.org, "previous": world.authority, "authority": heir, "sequence": 8}
    assert result.event == Event("AuthorityAccepted", expected)
    world.vm.refuse("Unauthorized", world.build.accept_authority(new_authority=heir))
    world.vm.refuse("Unauthorized", world.org_update(paused=True))
    world.vm.succeed(world.org_update(signer=heir, paused=True))


def test_proposal_is_withdrawn_by_the_zero_address(world: VmWorld) -> None:
    heir = world.vm.key()
    world.vm.succeed(world.org_update(pending_authority=heir))
    world.vm.succeed(world.org_update(pending_authority=NONE))
    world.vm.refuse("Unauthorized", world.build.accept_authority(new_authority=heir))


def test_replaced_operator_loses_its_rights_at_once(world: VmWorld) -> None:
    vault, payee, next_operator = world.wallet(), world.payee(), world.vm.key()
    world.vm.succeed(world.org_update(operator=next_operator))
    world.vm.refuse("Unauthorized", world.funding(vault, 1))
    world.vm.refuse("Unauthorized", world.payment(vault, payee, signer=world.operator))
    world.vm.succeed(world.payment(vault, payee, signer=next_operator))


def test_organisations_sequence_has_no_gap(world: VmWorld) -> None:
    key, payee, vault = b"k" * 16, world.payee(), world.wallet(funds=0)
    policy, build = world.addresses.policy(world.org, key), world.build
    first = world.fields(world.org)["sequence"] + 1
    steps: list[Callable[[], Instruction]] = [
        lambda: build.create_policy(payer=world.payer, authority=world.authority, key=key, rules=Rules()),
        lambda: world.chunk(policy, []),
        lambda: build.close_allowlist(
            authority=world.authority,
            policy=policy,
            version=world.fields(policy)["next_allowlist_version"],
            rent_receiver=world.payer,
        ),
        lambda: world.policy_update(policy, Rules()),
        lambda: world.policy_closing(policy),
        lambda: world.registration(payee.owner),
        lambda: world.funding(vault, 1),
        lambda: build.withdraw_reserve(
            authority=world.authority,
            destination=payee.tokens,
            amount=1,
            reference=bytes(16),
            expected_sequence=world.fields(world.org)["authority_sequence"],
        ),
        lambda: world.org_update(pending_authority=world.stranger),
        lambda: build.accept_authority(new_authority=world.stranger),
    ]
    results = [world.vm.succeed(step()) for step in steps]
    numbers = [result.event.data.get("org_sequence", result.event.data["sequence"]) for result in results]
    assert numbers == list(range(first, first + len(steps)))


@pytest.mark.parametrize(
    ("hand", "error"),
    [
        ({}, None),
        ({"delegate": Pubkey.new_unique()}, "UnusableTokenAccount"),
        ({"close_authority": Pubkey.new_unique()}, "UnusableTokenAccount"),
        ({"frozen": True}, "UnusableTokenAccount"),
    ],
)
def test_existing_reserve_is_adopted_only_if_nobody_else_controls_it(
    world: VmWorld, hand: dict[str, Any], error: str | None
) -> None:
    creator = world.vm.key()
    org = world.addresses.org(creator, "prepared")
    world.vm.put(world.tokens_of(org), token_account_data(world.mint, org, 5, **hand), world.token_program)
    instruction = Instructions(CODEC, world.addresses, org).initialize_org(
        payer=world.payer,
        creator=creator,
        org_id="prepared",
        genesis_hash=GENESIS_HASH,
        operator=creator,
        arbiter=creator,
        verifier=creator,
    )
    if error is None:
        world.vm.succeed(instruction)
    else:
        world.vm.refuse(error, instruction)


def test_every_account_type_of_the_program_is_in_the_idl() -> None:
    names = {account["name"] for account in CODEC.idl["accounts"]}
    assert names == {
        "Org",
        "Policy",
        "Allowlist",
        "Budget",
        "Vault",
        "ArchivedVault",
        "Approval",
        "Recipient",
        "Escrow",
        "Allowance",
    }


def test_late_change_of_the_organisation_is_refused(world: VmWorld) -> None:
    # Given changes that the authority signed and that were not sent
    sequence, payee = world.fields(world.org)["authority_sequence"], world.payee()
    kept = [world.org_update(paused=False), world.org_update(operator=world.stranger)]
    kept.append(
        world.build.withdraw_reserve(
            authority=world.authority,
            destination=payee.tokens,
            amount=1,
            reference=bytes(16),
            expected_sequence=sequence,
        )
    )
    # When the organisation is paused
    world.pause()
    # Then they are refused, and so is a change that names no sequence; a pause needs none
    for late in (*kept, world.build.update_org(signer=world.authority, paused=False)):
        world.vm.refuse("SequenceMismatch", late)
    world.vm.succeed(world.org_update(paused=False))
    world.pause()


def test_operator_does_not_put_off_what_the_authority_signs(world: VmWorld) -> None:
    # Given an operator that has paused the organisation, and changes that the authority signs then
    policy, payee = world.policy(Rules(restricted=True)), world.payee()
    world.pause()
    before = world.fields(world.org)
    withdrawal = world.build.withdraw_reserve(
        authority=world.authority,
        destination=payee.tokens,
        amount=1,
        reference=bytes(16),
        expected_sequence=before["authority_sequence"],
    )
    signed = [world.org_update(paused=False), world.org_update(operator=world.stranger), withdrawal]
    # When the operator does what else it can
    world.vm.refuse("AlreadyPaused", world.build.update_org(signer=world.operator, paused=True))
    world.vm.refuse("AlreadyPaused", world.build.update_org(signer=world.authority, paused=True))
    assert world.fields(world.org) == before
    world.vm.succeed(world.registration(payee.owner))
    world.write_allowlist(policy, [bytes(payee.owner)])
    # Then each of them is still good, and one makes the others void
    assert world.fields(world.org)["sequence"] > before["sequence"]
    for change in signed:
        assert world.vm.simulate(change).error is None
    world.vm.succeed(signed[1])
    for late in (signed[0], withdrawal):
        world.vm.refuse("SequenceMismatch", late)


def test_error_codes_are_only_appended() -> None:
    names = [error["name"] for error in sorted(CODEC.idl["errors"], key=lambda one: one["code"])]
    assert [error["code"] for error in CODEC.idl["errors"]] == list(range(6000, 6000 + len(names)))
    golden = Path(__file__).with_name("error_codes.txt").read_text(encoding="utf-8").split()
    assert names[: len(golden)] == golden, "clients know errors by their codes: none may move, end or be renamed"
    assert names == golden, "append the new errors to error_codes.txt, in their order"
