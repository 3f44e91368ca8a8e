"""A database that went back in time without `agent-vault restore`: the chain shows what it has forgotten."""

import asyncio
import shutil

import pytest

from app.store.guard import guard_values
from app.submission.database_guard import DatabaseGuard
from tests.dashboard.browsing import Crafted, sign_in
from tests.support.http import PATIENCE
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.sqlite("the file is put back; tests/nodes/test_failover.py promotes a standby"),
]


async def _events(world: ServiceWorld, kind: str) -> list[Json]:
    found: list[Json] = (await world.ok("GET", f"/v1/events?type={kind}"))["data"]
    return found


@pytest.mark.proves(
    "POST /dashboard/developers/gap-checked", "event database.commits_lost", "event transaction.forgotten"
)
async def test_file_that_was_put_back_is_guarded_by_the_chain(own_world: ServiceWorld) -> None:
    # Given a database file that is older than two payments
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    known = (await world.pay(wallet, to, "1", body={"idempotencyKey": "known"})).json()
    await world.stop()
    file, copy = world.settings.paths().database, world.settings.data_dir / "copy"
    shutil.copyfile(file, copy)
    await world.start()
    made = [(await world.pay(wallet, to, "2", body={"idempotencyKey": f"lost {n}"})).json() for n in range(2)]
    await world.stop()
    shutil.copyfile(copy, file)

    # When the service reads the chain, it guards itself
    await world.start()
    database_guard = world.service.part(DatabaseGuard)
    async with asyncio.timeout(PATIENCE):
        while database_guard.state() != "unacknowledged":  # noqa: ASYNC110 - it has no signal
            await asyncio.sleep(0.01)
    again = {"idempotencyKey": "lost 1"}
    error_of(await world.pay(wallet, to, "2", body=again), 409, "restore_unacknowledged")
    repeated = await world.pay(wallet, to, "1", body={"idempotencyKey": "known"})
    assert repeated.json() == known
    listed = await _events(world, "transaction.forgotten")
    assert {one["tx_signature"] for one in listed} == {one["tx_signature"] for one in made}
    assert {(one["wallet_id"], one["recipient"], one["amount"]) for one in listed} == {
        (wallet["wallet_id"], to, "2.00")
    }
    assert len(await _events(world, "database.commits_lost")) == 1
    ready = (await world.client.get("/readyz")).json()
    assert (ready["status"], ready["guard"]) == ("ready", "unacknowledged")

    # An admin sees them on the dashboard and releases the guard, for this organisation only
    other = await world.organisation("other")
    viewer = await Crafted(world, sign_in(world, "viewer")).client.get("/dashboard/developers")
    assert made[0]["tx_signature"] in viewer.text
    assert "Release the guard" not in viewer.text
    admin = Crafted(world, sign_in(world, "admin"))
    assert "Release the guard" in (await admin.client.get("/dashboard/developers")).text
    assert (await admin.post("/dashboard/developers/gap-checked", {})).status_code == 303
    assert (database_guard.state(world.org), database_guard.state(other)) == (None, "unacknowledged")
    assert (await world.pay(wallet, to, "2", body=again)).json()["status"] == "confirmed"
    entry = (await world.ok("GET", "/v1/audit-log"))["data"][0]
    assert (entry["action"], entry["actor"]["type"]) == ("backup.gap_checked", "person")

    # A rebuild finds nothing new
    await world.service.projector.rebuild()
    await database_guard.tick()
    assert database_guard.state(world.org) is None


async def test_topups_and_fundings_raise_no_guard(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    rule = {"enabled": True, "triggerBelow": "5", "topupAmount": "10"}
    await world.ok("PUT", f"/v1/wallets/{wallet['wallet_id']}/auto-topup", rule)
    assert await world.keeper().tick() == 1
    await world.catch_up()
    await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "3"})
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"] == "13.00"
    assert await world.service.db.read(guard_values) == {}
    assert await _events(world, "transaction.forgotten") == []
