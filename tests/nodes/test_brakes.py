"""A freeze, a pause or a rotation that is asked for on one node stops payments on all."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from app.access.keyring import system
from app.core.actors import Actor
from app.store.attempts import Attempt
from app.store.brakes import BrakeKind, BrakeRow, all_brakes, put_brake
from app.submission.claim import Claim
from app.submission.plan import Plan
from tests.support.sends import Sends
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _engage(node: ServiceWorld, wallet: Json, kind: BrakeKind = "freeze") -> None:
    """Engage a brake as a request does that has not reached the chain."""
    brake = node.service.brake
    await brake.show(brake.engage(system(node.org, "test"), wallet["wallet_id"], kind))


def _rows(node: ServiceWorld) -> set[tuple[str, str, str]]:
    return {(row.scope, row.kind, row.node) for row in node.service.db.read_now(all_brakes)}


async def _forget(node: ServiceWorld) -> None:
    """Release what the test engaged."""
    for hold in list(node.service.brake._holds.values()):
        hold.requests = 0
        await node.service.brake.lift(hold)


async def test_brake_of_one_node_refuses_payments_on_the_other(first: ServiceWorld, second: ServiceWorld) -> None:
    wallet, to = await first.wallet(), await first.payee()
    assert (await second.pay(wallet, to, "1")).status_code == 200
    await _engage(first, wallet)

    assert not second.service.brake.is_engaged(wallet["wallet_id"], "freeze")
    error_of(await second.pay(wallet, to, "1"), 422, "wallet_frozen")
    await _forget(first)
    assert (await second.pay(wallet, to, "1")).status_code == 200


@pytest.mark.parametrize("engaging", ["first", "second"])
async def test_payment_stored_on_another_node_is_not_sent(
    first: ServiceWorld, second: ServiceWorld, engaging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await first.wallet(), await first.payee()
    paying, braking = (second, first) if engaging == "first" else (first, second)
    store, sends = paying.service.submitter._store, Sends(paying)

    async def store_and_brake(plan: Plan, attempt: Attempt, claim: Claim, *, charged: bool = False) -> None:
        await store(plan, attempt, claim, charged=charged)
        await _engage(braking, wallet)

    monkeypatch.setattr(paying.service.submitter, "_store", store_and_brake)
    error_of(await paying.pay(wallet, to, "1"), 422, "wallet_frozen")

    assert not sends.payments()
    assert await first.balance(to) == 0
    monkeypatch.undo()
    await _forget(braking)
    assert (await paying.pay(wallet, to, "1")).status_code == 200


async def test_freeze_on_one_node_is_not_lifted_on_the_other(first: ServiceWorld, second: ServiceWorld) -> None:
    wallet = await first.wallet()
    await _engage(first, wallet)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    error_of(await second.call("PATCH", path, {"status": "active"}), 503, "chain_unavailable")
    await _forget(first)
    await second.ok("PATCH", path, {"status": "active"})


async def test_node_ends_only_its_own_brake(first: ServiceWorld, second: ServiceWorld) -> None:
    wallet, to = await first.wallet(), await first.payee()
    await _engage(first, wallet)
    await _engage(second, wallet)
    await _forget(first)
    error_of(await first.pay(wallet, to, "1"), 422, "wallet_frozen")
    await _forget(second)
    assert _rows(first) == set()


async def test_freeze_of_a_dead_node_is_finished_and_its_rotation_forgotten(
    first: ServiceWorld, second: ServiceWorld
) -> None:
    frozen, rotated, to = await first.wallet(), await first.wallet(), await first.payee()
    living, left = (
        await first.wallet(),
        BrakeRow(scope="", kind="freeze", org=first.org, actor=Actor("system", "test"), since=1, node="gone"),
    )
    await _engage(first, living)

    def leave(conn: Connection) -> None:
        put_brake(conn, replace(left, scope=frozen["wallet_id"]))
        put_brake(conn, replace(left, scope=rotated["wallet_id"], kind="session"))

    first.service.db.write_now(leave)
    await _until(lambda: {row for row in _rows(first) if row[0] != living["wallet_id"]} == set())

    error_of(await first.pay(frozen, to, "1"), 422, "wallet_frozen")
    assert (await first.ok("GET", f"/v1/wallets/{frozen['wallet_id']}"))["status"] == "frozen"
    assert (await first.pay(rotated, to, "1")).status_code == 200
    # That of a living node is its own affair.
    assert _rows(second) == {(living["wallet_id"], "freeze", first.service.db.node)}
    await _forget(first)


@pytest.mark.proves("Idempotency: Repeated brake")
async def test_repeated_freeze_brakes_again_on_any_of_three_nodes(first: ServiceWorld, second: ServiceWorld) -> None:
    wallet, to = await first.wallet(), await first.payee()
    path, key = f"/v1/wallets/{wallet['wallet_id']}", {"Idempotency-Key": "brake-again"}
    assert (await first.call("PATCH", path, {"status": "frozen"}, headers=key)).status_code == 200
    assert (await second.call("PATCH", path, {"status": "active"})).status_code == 200

    async with first.node() as third:
        repeats = [node.call("PATCH", path, {"status": "frozen"}, headers=key) for node in (first, second, third)]
        answers = await asyncio.gather(*repeats)

        assert {(one.status_code, one.json()["status"]) for one in answers} == {(200, "frozen")}
        assert "false" in {one.headers["idempotent-replayed"] for one in answers}
        for node in (first, second, third):
            error_of(await node.pay(wallet, to, "1"), 422, "wallet_frozen")
    events = (await first.ok("GET", f"/v1/events?event=alert.brake_repeated&walletId={wallet['wallet_id']}"))["data"]
    assert events
