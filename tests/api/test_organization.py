"""The organisation as its keys see it."""

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.core.paths import ConfigurationError
from app.organisations.service import create
from app.store.organisations import organisation
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves(
    "GET /v1/organization",
    "Organization(organization_id, organization_address, program_id, mint, cluster, genesis_hash)",
    "Organization(created_at)",
    "OrganizationRoles(authority, operator, arbiter, verifier, fee_payer)",
)
async def test_organization_shows_its_chain_and_roles(world: ServiceWorld) -> None:
    shown = await world.ok("GET", "/v1/organization", key=world.key("viewer"))

    service, signers = world.service, world.service.signers
    assert signers.authority is not None
    assert signers.arbiter is not None
    arbiter = str(signers.arbiter.pubkey())
    assert shown.pop("created_at").endswith("Z")
    assert shown.pop("sol")["fee_payer_reserve"] == "0.05"
    assert shown == {
        "organization_id": "test",
        "organization_address": world.org,
        "reserve_address": str(service.instructions(world.org).reserve_tokens),
        "reserve_balance": "1000000.00",
        "program_id": str(service.codec.program_id),
        "mint": str(service.addresses.mint),
        "cluster": "localnet",
        "genesis_hash": str(world.localnet.chain.timeline.genesis_hash),
        "paused": False,
        "authority_attaches": False,
        "restricts_keys": False,
        "roles": {
            "authority": str(signers.authority.pubkey()),
            "operator": str(signers.operator_address),
            "arbiter": arbiter,
            "verifier": arbiter,
            "fee_payer": str(signers.fee_payer_address),
        },
    }
    refused = await world.call("GET", "/v1/organization?x=1")
    error_of(refused, 400, "invalid_request")


@pytest.mark.proves("Organization(reserve_address, reserve_balance)")
async def test_deposit_to_the_shown_reserve_arrives(world: ServiceWorld) -> None:
    org = await world.organisation("depositor")
    key = world.key("admin", org=org)
    before = await world.ok("GET", "/v1/organization", key=key)

    await world.localnet.mint_usdc(Pubkey.from_string(before["reserve_address"]), 2_500_000)
    await world.service.indexer.check(late=False)
    await world.catch_up()

    after = await world.ok("GET", "/v1/organization", key=key)
    assert (before["reserve_balance"], after["reserve_balance"]) == ("1000000.00", "1000002.50")


@pytest.mark.proves(
    "Organization(paused, roles)",
    "OrganizationRoles(authority, operator, arbiter, verifier, fee_payer)",
    "PausedOrganisation(paused)",
)
async def test_pause_and_new_roles_are_shown(own_world: ServiceWorld) -> None:
    authority, arbiter = own_world.service.signers.require_authority(), str(Keypair().pubkey())
    changes = {"paused": True, "arbiter": Pubkey.from_string(arbiter)}
    await own_world.land([await own_world.org_update(authority.pubkey(), **changes)], authority)
    await own_world.catch_up()

    shown = await own_world.ok("GET", "/v1/organization")

    assert shown["paused"] is True
    assert shown["roles"]["arbiter"] == arbiter
    assert shown["roles"]["verifier"] != arbiter


async def test_organisation_that_names_another_cluster_is_refused(own_world: ServiceWorld) -> None:
    # Given an organisation whose creator gave another cluster's genesis hash
    service, authority = own_world.service, own_world.service.signers.require_authority()
    address = service.addresses.org(authority.pubkey(), "elsewhere")
    mine = authority.pubkey()
    creation = service.instructions(str(address)).initialize_org(
        payer=service.signers.fee_payer_address,
        creator=authority.pubkey(),
        org_id="elsewhere",
        genesis_hash=bytes(32),
        operator=mine,
        arbiter=mine,
        verifier=mine,
    )
    assert (await own_world.land([creation], authority)).err is None

    # Then the service does not take it over
    with pytest.raises(ConfigurationError, match="another cluster"):
        await create(service, "elsewhere")
    assert service.db.read_now(lambda conn: organisation(conn, str(address))) is None
