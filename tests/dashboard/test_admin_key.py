"""The admin key of an organisation without people: on a cluster it views and brakes, and the machine invites."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.access.keyring import system
from app.core.timestamps import now_ms
from app.people.service import invite
from app.store.people import people_of
from tests.dashboard.authenticators import Authenticator
from tests.dashboard.browsing import Crafted, join_with
from tests.support.service_world import GENESIS_HASHES, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    """A service whose chain says that it is devnet."""
    folder: Path = tmp_path_factory.mktemp("devnet")
    async with ServiceWorld(folder, genesis_hash=GENESIS_HASHES["devnet"]) as world:
        yield world


async def _signed_in(world: ServiceWorld) -> Crafted:
    visitor = Crafted(world)
    csrf = await visitor.csrf("/dashboard/sign-in")
    answer = await visitor.post("/dashboard/sign-in", {"admin_key": world.keys["admin"]}, csrf=csrf)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    return Crafted(world, answer.cookies["agent-vault-session"])


@pytest.mark.proves("POST /dashboard/sign-in")
async def test_admin_key_views_and_brakes_and_changes_nothing_else(cluster: ServiceWorld) -> None:
    wallet, me = await cluster.wallet(), await _signed_in(cluster)
    vault = f"/dashboard/vaults/{wallet['wallet_id']}"

    for path in ("/dashboard", vault, "/dashboard/people", "/dashboard/developers", "/dashboard/audit"):
        assert (await me.client.get(path)).status_code == 200, path
    assert "agent-vault people invite" in (await me.client.get("/dashboard/people")).text
    assert (await me.client.get("/dashboard/passkey")).headers["location"] == "/dashboard/people"
    for path, fields in (
        ("/dashboard/passkey/options", {"name": "Eve"}),
        ("/dashboard/passkey", {"name": "Eve", "credential": "{}"}),
        ("/dashboard/people/invite", {"name": "Eve", "role": "admin"}),
        ("/dashboard/developers/keys", {"role": "admin"}),
        ("/dashboard/unpause", {}),
        (f"{vault}/unfreeze", {}),
    ):
        refused = await me.post(path, fields, accept="application/json")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions"), path
    assert cluster.service.db.read_now(lambda conn: people_of(conn, cluster.org)) == []
    assert (await me.post(f"{vault}/freeze")).status_code == 303
    assert (await cluster.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "frozen"
    assert (await me.post("/dashboard/pause")).status_code == 303
    assert (await cluster.ok("GET", "/v1/organization"))["paused"]
    assert (await me.post("/dashboard/sign-out")).headers["location"].endswith("done=signed-out")


async def test_first_person_is_invited_on_the_machine_and_ends_the_keys_sign_in(cluster: ServiceWorld) -> None:
    me, by = await _signed_in(cluster), system(cluster.org, "command_line")
    made = cluster.service.db.write_now(lambda conn: invite(conn, by, "Ada", "admin", now_ms()))

    joined = await join_with(Crafted(cluster), made.token, Authenticator().made)

    assert joined.status_code == 200
    [first] = cluster.service.db.read_now(lambda conn: people_of(conn, cluster.org))
    assert (first.role, first.created_by) == ("admin", by.actor)
    assert (await me.client.get("/dashboard")).status_code == 303
