"""The keeper on a real chain: freezes after expiry, outages of the chain, and its own death."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from app.chain.errors import ChainUnavailable
from app.core.timestamps import iso
from app.store.read_tables import wallets
from tests.support.keeper import (
    HOUR,
    PATIENCE,
    calls_of,
    events_of,
    expiring,
    path_of,
    shown,
)
from tests.support.service_world import Clock, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("Wallets: any to frozen", "event policy.expired", "Policy(expiry)")
async def test_wallet_of_an_expired_policy_is_frozen_once(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, other = await expiring(world), await expiring(world, 2 * HOUR)
    keeper = world.keeper()
    assert await keeper.tick() == 0

    await world.later(HOUR + 1)
    assert await keeper.tick() == 1

    assert await shown(world, wallet) == ("frozen", "0.00")
    assert (await shown(world, other))[0] == "active"
    [reported] = await events_of(world, wallet, "policy.expired")
    assert reported["severity"] == "warning"
    assert reported["policy_id"] == wallet["policy"]["policy_id"]
    assert await events_of(world, wallet, "wallet.frozen") == []
    assert await world.keeper().tick() == 0
    assert len(await events_of(world, wallet, "policy.expired")) == 1


async def test_local_clock_that_is_ahead_costs_nothing_and_freezes_nothing(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await expiring(world)
    timer, ahead = Clock(), Clock()
    ahead.ahead = 2 * HOUR
    keeper = world.keeper(timer=timer)
    keeper._clock = ahead
    payer = world.service.signers.fee_payer_address
    before = await world.accounts(payer)

    with capture_logs() as logs:
        assert await keeper.tick() == 0

    assert [one["error"] for one in logs if one["event"] == "job_refused"] == ["PolicyNotExpired"]
    assert await world.accounts(payer) == before
    assert (await shown(world, wallet))[0] == "active"
    await world.later(HOUR + 1)
    timer.ahead += 10
    assert await keeper.tick() == 1
    assert (await shown(world, wallet))[0] == "frozen"


async def test_refused_job_is_retried_less_and_less_often(own_world: ServiceWorld) -> None:
    world = own_world
    await expiring(world)
    timer, ahead = Clock(), Clock()
    ahead.ahead = 2 * HOUR
    keeper = world.keeper(timer=timer)
    keeper._clock = ahead
    sends = []
    for _ in range(600):
        with calls_of(world.service) as calls:
            await keeper.tick()
        sends.append(calls.count("sendTransaction"))
        timer.ahead += 1.0

    # At once, then after 5, 10, 20, ... seconds; the loop's own time adds a little.
    assert sum(sends) in {7, 8}
    assert sends[0] == 1
    assert sum(sends[1:5]) == 0


async def test_poisoned_wallet_stops_no_other(own_world: ServiceWorld) -> None:
    world = own_world
    poisoned, broken, good = [await expiring(world) for _ in range(3)]
    await world.catch_up()

    def poison(conn: Any) -> None:
        policy = select(wallets.c.policy).where(wallets.c.wallet_id == good["wallet_id"]).scalar_subquery()
        conn.execute(update(wallets).where(wallets.c.wallet_id == poisoned["wallet_id"]).values(policy=policy))
        conn.execute(update(wallets).where(wallets.c.wallet_id == broken["wallet_id"]).values(vault="no address"))

    await world.service.db.write(poison)
    await world.later(HOUR + 1)

    with capture_logs() as logs:
        assert await world.keeper().tick() == 1

    assert (await shown(world, good))[0] == "frozen"
    failed = {one["event"]: one.get("error") for one in logs if one["log_level"] != "info" or "error" in one}
    assert failed == {"job_refused": "WrongPolicy", "job_failed": None}


@pytest.mark.proves("error wallet_frozen")
async def test_wallet_frozen_by_expiry_says_how_to_unfreeze_it(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await expiring(world), await world.payee()
    escrow = {"fromWallet": wallet["wallet_id"], "toWallet": to, "amount": "1", "currency": "USDC"}
    await world.later(HOUR + 1)
    assert await world.keeper().tick() == 1

    for answer in (
        await world.pay(wallet, to, "1"),
        await world.call("POST", "/v1/payments/a2a", {**escrow, "taskDescription": "Work"}),
        await world.call("PATCH", path_of(wallet), {"status": "active"}),
    ):
        message = error_of(answer, 422, "wallet_frozen")["message"]
        assert "attach another policy or extend the `expiry`. Then set the wallet's `status`" in message
    later = {"expiry": iso(int(world.clock() + HOUR))}
    await world.ok("PATCH", f"/v1/policies/{wallet['policy']['policy_id']}", later)
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    assert (await world.ok("PATCH", path_of(wallet), {"status": "active"}))["status"] == "active"


# Outages of the chain and of the process


async def test_keeper_waits_for_a_silent_chain_and_forgets_nothing(own_world: ServiceWorld) -> None:
    world = own_world
    waiting = [await expiring(world) for _ in range(20)]
    timer = Clock()
    keeper = world.keeper(timer=timer)
    await world.later(HOUR + 1)
    world.line.lose_requests = lambda _method: True

    for _ in range(10):
        with calls_of(world.service) as calls, pytest.raises(ChainUnavailable):
            await keeper.tick()
        # One round asks only a few times, however much is due.
        assert len(calls) <= 8
        timer.ahead += 60

    world.line.mend()
    assert await keeper.tick() == len(waiting)
    assert {(await shown(world, wallet))[0] for wallet in waiting} == {"frozen"}


async def test_running_keeper_outlives_an_outage_and_ends_with_the_service(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await expiring(world)
    await world.later(HOUR + 1)
    with capture_logs() as logs:
        await world.stop()
        await world.start(lose_requests=lambda _method: True, keeper=True, keeper_interval=0.01)
        async with asyncio.timeout(PATIENCE):
            while not any(one["event"] == "keeper_waits_for_the_chain" for one in logs):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await world.ok("GET", path_of(wallet)))["status"] == "active"
        await world.restart()
        async with asyncio.timeout(PATIENCE):
            while (await shown(world, wallet))[0] != "frozen":  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    assert [one["event"] for one in logs].count("keeper_waits_for_the_chain") == 1
    await world.stop()
    assert "keeper" not in {task.get_name() for task in asyncio.all_tasks()}
    await world.start()
