"""Top-ups by the keeper on a real chain: once whenever a balance is too low, whatever breaks."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.chain.errors import ChainUnavailable
from app.keeper.jobs import topup
from app.store.topups import TopupRecord, low_wallets, put_topup_rule
from tests.support.keeper import (
    PATIENCE,
    asks_history,
    calls_of,
    events_of,
    fundings_of,
    path_of,
    set_rule,
    shown,
)
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("PUT /v1/wallets/{wallet_id}/auto-topup", "TopupRule(trigger_below, topup_amount)")
async def test_balance_below_the_trigger_is_topped_up_like_any_funding(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, full = await world.wallet(funds="9.999999"), await world.wallet(funds="10")
    await set_rule(world, wallet, "10", "25")
    await set_rule(world, full, "10", "25")

    assert await world.keeper().tick() == 1

    assert await shown(world, wallet) == ("active", "34.999999")
    assert await fundings_of(world, wallet) == ["25.00", "9.999999"]
    reported = await events_of(world, wallet, "wallet.funded")
    assert {one["amount"] for one in reported} == {"25.00", "9.999999"}
    assert await shown(world, full) == ("active", "10.00")
    assert await world.keeper().tick() == 0


async def test_payment_that_takes_the_balance_below_leads_to_a_topup(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to, keeper = await world.wallet(funds="20"), await world.payee(), world.keeper()
    await set_rule(world, wallet, "15", "5")
    assert await keeper.tick() == 0

    assert (await world.pay(wallet, to, "6")).json()["status"] == "confirmed"

    assert await keeper.tick() == 1
    assert await shown(world, wallet) == ("active", "19.00")
    assert await keeper.tick() == 0


async def test_topup_lands_although_the_wallet_pays_meanwhile(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(funds="9"), await world.payee()
    await set_rule(world, wallet, "10", "5")
    await world.catch_up()
    [low] = world.service.db.read_now(low_wallets)
    fill = await topup(world.service, low).build()
    assert fill is not None

    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"
    landed = await world.land([fill], world.service.signers.operator)

    assert landed.err is None
    assert await shown(world, wallet) == ("active", "13.00")


async def test_small_topups_follow_each_other_until_the_balance_is_reached(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, keeper = await world.wallet(funds="0.5"), world.keeper()
    await set_rule(world, wallet, "10", "4")

    sent = 0
    for _ in range(5):
        sent += await keeper.tick()
        await world.catch_up()

    assert sent == 3
    assert await shown(world, wallet) == ("active", "12.50")


async def test_two_keepers_at_once_top_up_once(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds="1")
    await set_rule(world, wallet, "10", "25")
    async with world.twin() as (other, line):
        rule = TopupRecord(wallet["wallet_id"], True, 10_000_000, 25_000_000, 0)
        await other.db.write(lambda conn: put_topup_rule(conn, rule))
        # Both have decided before either sends.
        ready = asyncio.Barrier(2)
        world.line.hold = line.hold = lambda method: ready.wait() if method == "sendTransaction" else None

        async with asyncio.timeout(PATIENCE):
            sent = await asyncio.gather(world.keeper().tick(), world.keeper(other).tick())

        world.line.hold = line.hold = lambda _method: None
        assert sorted(sent) == [0, 1]
        for service in (world.service, other):
            await service.indexer.catch_up()
            await service.projector.catch_up()
            assert await world.keeper(service).tick() == 0
    assert await fundings_of(world, wallet) == ["1.00", "25.00"]
    assert await shown(world, wallet) == ("active", "26.00")


async def test_topup_whose_answer_was_lost_is_not_repeated_after_a_restart(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds="1")
    await set_rule(world, wallet, "10", "25")
    # The node accepts the transaction, but neither the keeper nor, after the restart, the indexer learns of it.
    world.line.lose_answers = lambda method: method == "sendTransaction"
    world.line.lose_requests = asks_history
    with pytest.raises(ChainUnavailable):
        await world.keeper().tick()
    assert await world.balance(wallet["chain_address"]) == 26_000_000

    await world.stop()
    await world.start(lose_requests=asks_history)
    assert (await world.ok("GET", path_of(wallet)))["usdc_balance"] == "1.00"
    assert await world.keeper().tick() == 0

    world.line.mend()
    assert await fundings_of(world, wallet) == ["1.00", "25.00"]
    assert await world.keeper().tick() == 0


async def test_lost_topup_that_arrives_after_another_is_refused_by_the_program(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds="1")
    await set_rule(world, wallet, "10", "25")
    lost: list[bytes] = []
    through = world.line.through

    async def lose(body: bytes) -> bytes:
        if b"sendTransaction" not in body:
            return await through(body)
        lost.append(body)
        raise ChainUnavailable("cut by the test")

    world.line.through = lose
    with pytest.raises(ChainUnavailable):
        await world.keeper().tick()
    world.line.through = through
    assert await world.keeper().tick() == 1

    assert b"custom program error" in await through(lost[0])

    assert await fundings_of(world, wallet) == ["1.00", "25.00"]
    assert await shown(world, wallet) == ("active", "26.00")


@pytest.mark.proves("TopupRule(enabled)")
async def test_frozen_disabled_archived_and_paused_wallets_are_not_topped_up(own_world: ServiceWorld) -> None:
    world = own_world
    frozen, disabled, paused = [await world.wallet(funds="1") for _ in range(3)]
    archived = await world.wallet(funds=None)
    for wallet in (frozen, disabled, archived):
        await set_rule(world, wallet, "10", "25")
    await world.ok("PATCH", path_of(frozen), {"status": "frozen"})
    await world.ok("PUT", path_of(disabled, "/auto-topup"), {"enabled": False})
    await world.ok("DELETE", path_of(archived))
    keeper = world.keeper()

    with calls_of(world.service) as calls:
        assert await keeper.tick() == 0
    assert calls == []
    await _pause(world, paused=True)
    await set_rule(world, paused, "10", "25")
    with calls_of(world.service) as calls:
        assert await keeper.tick() == 0
    assert calls == []

    # Once nothing stands in the way any more
    await _pause(world, paused=False)
    await world.ok("PATCH", path_of(frozen), {"status": "active"})
    assert await keeper.tick() == 2
    assert await shown(world, frozen) == ("active", "26.00")
    assert await shown(world, paused) == ("active", "26.00")
    assert await fundings_of(world, disabled) == ["1.00"]


async def test_reserve_that_is_too_low_is_warned_of_once_and_waited_for(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, keeper = await world.wallet(funds="1"), world.keeper()
    await set_rule(world, wallet, "10", "2000000")

    with capture_logs() as logs, calls_of(world.service) as calls:
        sent = [await keeper.tick() for _ in range(5)]

    assert (sent, calls) == ([0] * 5, [])
    assert [(one["event"], one["wallet_id"]) for one in logs] == [("reserve_too_low_for_topup", wallet["wallet_id"])]

    await world.localnet.mint_usdc(world.build.reserve_tokens, 2_000_000_000_000)
    await world.service.indexer.check()
    await world.service.projector.catch_up()
    assert await keeper.tick() == 1
    assert await shown(world, wallet) == ("active", "2000001.00")


async def test_operators_daily_limit_prevents_a_topup_without_a_fee(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds="1")
    await set_rule(world, wallet, "10", "25")
    await _update_org(world, operator_daily_limit=20_000_000)
    payer = world.service.signers.fee_payer_address
    before = await world.accounts(payer)

    with capture_logs() as logs:
        assert await world.keeper().tick() == 0

    assert [one.get("error") for one in logs] == ["OperatorLimitExceeded"]
    assert await world.accounts(payer) == before


async def _update_org(world: ServiceWorld, **changes: Any) -> None:
    authority = world.service.signers.require_authority()
    change = await world.org_update(authority.pubkey(), **changes)
    assert (await world.land([change], authority)).err is None
    await world.catch_up()


async def _pause(world: ServiceWorld, *, paused: bool) -> None:
    await _update_org(world, paused=paused)
