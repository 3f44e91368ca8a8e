"""Layout versions of accounts: every instruction refuses other versions by name, and `migrate` enlarges an account."""

import pytest
from solders.pubkey import Pubkey

from app.chain.payees import ENTRY
from app.core.identifiers import PRESET_POLICY_IDS
from idl.codec import Event
from tests.program.adversaries.stage import AttackStage, earlier_layout
from tests.program.adversaries.ways import CALLS, Way
from tests.support.vm import CODEC, PROGRAM_ID
from tests.support.vm_world import VmWorld

EARLIER, CURRENT, LATER = 0, 1, 2
CUT = 8
LISTS = 32 * ENTRY.size
"""Size of the lists of payees that `migrate` adds to a vault."""
"""Bytes that an account of the earlier layout lacks at its end."""


def with_layout(world: VmWorld, account: Pubkey, version: int) -> bytes:
    """Give an account a different layout version, and return its data before."""
    before = world.vm.data(account)
    world.vm.put(account, before[:8] + bytes([version]) + before[9:], PROGRAM_ID)
    return before


def test_each_account_starts_with_its_layout_version() -> None:
    structs = {one["name"]: one["type"]["fields"] for one in CODEC.idl["types"] if one["type"]["kind"] == "struct"}
    for account in CODEC.idl["accounts"]:
        assert structs[account["name"]][0]["name"] == "layout"


@pytest.mark.parametrize("version", [EARLIER, LATER])
@pytest.mark.parametrize("way", CALLS, ids=[way.name for way in CALLS])
def test_instructions_refuse_other_layouts_by_name(stage: AttackStage, way: Way, version: int) -> None:
    party, call = stage.victim, way.make(stage.victim)
    own = {meta.pubkey for meta in call.instruction.accounts if stage.vm.exists(meta.pubkey)}
    own = {one for one in own if (account := stage.vm.account(one)) and account.owner == PROGRAM_ID}
    assert own or way.instruction == "initialize_org"
    for address in own:
        if (address, version) == (party.earlier, EARLIER):
            continue
        before = with_layout(party, address, version)
        error = stage.vm.simulate(*call.instructions).error
        stage.vm.put(address, before, PROGRAM_ID)
        assert error == "UnsupportedLayout", CODEC.decode_account(before).name


@pytest.fixture(scope="module", name="stage")
def _stage() -> AttackStage:
    return AttackStage()


@pytest.mark.proves("instruction migrate")
def test_vault_of_a_smaller_layout_pays_once_it_is_migrated(world: VmWorld) -> None:
    # Given a vault without the last field of its present layout
    vault, payee = world.wallet(), world.payee()
    payment, before = world.payment(vault, payee), world.vm.data(vault)
    earlier_layout(world, vault, cut=CUT)
    world.vm.refuse("UnsupportedLayout", payment)
    paid, sequence = world.vm.lamports(world.payer), world.fields(world.org)["sequence"]
    # When anyone migrates it
    result = world.vm.succeed(world.build.migrate(payer=world.payer, account=vault))
    # Then it has its present size with room for lists, and zero in the new field, for rent from the payer
    assert world.vm.data(vault) == before[:-CUT] + bytes(CUT + LISTS)
    assert world.vm.lamports(vault) == world.vm.rent(len(before) + LISTS)
    assert paid - world.vm.lamports(world.payer) == world.vm.rent(len(before) + LISTS) - world.vm.rent(
        len(before) - CUT
    )
    expected = {"org": world.org, "account": vault, "previous": EARLIER, "layout": CURRENT}
    assert result.event == Event("AccountMigrated", {**expected, "sequence": sequence + 1})
    world.vm.succeed(world.payment(vault, payee))
    world.vm.refuse("UnsupportedLayout", world.build.migrate(payer=world.payer, account=vault))


def test_organisation_is_migrated_before_its_accounts(world: VmWorld) -> None:
    preset = world.addresses.preset(world.org, PRESET_POLICY_IDS[0])
    org, policy = world.vm.data(world.org), world.vm.data(preset)
    for account in (world.org, preset):
        earlier_layout(world, account, cut=CUT)
    migrate = world.build.migrate(payer=world.payer, account=preset)
    world.vm.refuse("UnsupportedLayout", migrate)
    result = world.vm.succeed(world.build.migrate(payer=world.payer))
    assert (result.event.data["account"], result.event.data["org"]) == (world.org, world.org)
    world.vm.succeed(migrate)
    assert len(world.vm.data(world.org)) == len(org)
    assert world.vm.data(preset) == policy[:-CUT] + bytes(CUT)


def test_only_earlier_layouts_of_own_accounts_are_migrated(world: VmWorld) -> None:
    vault, other = world.wallet(), VmWorld(world.vm, org_id="other", mint=world.mint)
    migrate = world.build.migrate(payer=world.payer, account=vault)
    world.vm.succeed(migrate)
    world.vm.refuse("UnsupportedLayout", migrate)
    with_layout(world, vault, LATER)
    world.vm.refuse("UnsupportedLayout", migrate)
    with_layout(world, vault, EARLIER)
    world.vm.refuse("WrongOrg", other.build.migrate(payer=world.payer, account=vault))
    world.vm.refuse("IllegalOwner", world.build.migrate(payer=world.payer, account=world.reserve))
    world.vm.succeed(migrate)
