"""Transactions that a fork dropped, and rebuilds: readers see the state before or the state after, never a part."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from app.projection import rollbacks
from app.submission.recovery import Recovery
from indexer import StoredEvent
from tests.support.escrows import agent, of
from tests.support.forks import Fork
from tests.support.processes import running
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: More than a block takes to finalize, and more than lies between two looks.
_LOOK_SECONDS = 20.0
#: Rows that are applied at once, so that a rebuild of a small history has many steps.
_BATCH = 3

_KILLED = """
import asyncio, sys
from pathlib import Path
from app.core.paths import Paths
from app.projection import projector
from app.database import SqliteDatabase
from app.store.schema import create_tables
from indexer import EventStore

paths = Paths(Path(sys.argv[1]))
events, asked = EventStore(paths.events), 0

async def changes(after, limit):
    global asked
    asked += 1
    if asked == 5:
        print("in the middle", flush=True)
        await asyncio.Event().wait()
    return events.changes(after, limit)

projector._BATCH = 3
asyncio.run(projector.Projector(SqliteDatabase(paths.database, create_tables), changes).rebuild())
"""


class _Readers:
    """Polls what clients can read, and keeps each different answer to each path."""

    def __init__(self, world: ServiceWorld, paths: Sequence[str]) -> None:
        self._world = world
        self.seen: dict[str, list[Json]] = {path: [] for path in paths}
        self.statuses: Counter[int] = Counter()
        self.rounds = 0

    async def look(self) -> None:
        for path, seen in self.seen.items():
            response = await self._world.call("GET", path)
            self.statuses[response.status_code] += 1
            if response.json() not in seen:
                seen.append(response.json())
        self.rounds += 1

    @asynccontextmanager
    async def polling(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        """Poll, and let the projector read its next rows only after another look at everything."""
        await self.look()
        of_world = self._world.service.projector
        changes = of_world._changes

        async def look_first(after: int, limit: int) -> Sequence[StoredEvent]:
            await self.look()
            return await changes(after, limit)

        monkeypatch.setattr("app.projection.projector._BATCH", _BATCH)
        monkeypatch.setattr(of_world, "_changes", look_first)
        yield
        monkeypatch.undo()
        await self.look()


async def _history(world: ServiceWorld) -> tuple[Json, str, list[str]]:
    """Return a wallet with a policy, an escrow and payments, a payee, and the paths that show them."""
    paying, receiving = await agent(world), await agent(world, funds=None)
    escrow = await paying.lock(receiving)
    policy, to = await world.policy(maxPerTx="50"), await world.payee()
    wallet = paying.wallet
    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"policyId": policy["policy_id"]})
    for _ in range(3):
        assert (await world.pay(wallet, to, "1")).status_code == 200
    paths = [
        *(f"/v1/wallets/{paying.id}", f"/v1/wallets/{receiving.id}", "/v1/wallets", of(escrow)),
        *(f"/v1/policies/{policy['policy_id']}", "/v1/policies", f"/v1/wallets/{paying.id}/transactions"),
        *("/v1/organization", "/v1/payments/a2a"),
    ]
    await world.catch_up()
    return wallet, to, paths


async def _names(world: ServiceWorld) -> list[str]:
    return [row.name for row in await world.service.indexer.changes(0, 100_000)]


async def _checks(world: ServiceWorld, count: int) -> None:
    """Let the indexer compare its store with the chain this often, as time passes."""
    for _ in range(count):
        world.clock.ahead += _LOOK_SECONDS
        await world.service.indexer.check(late=False)
        await world.service.indexer.check(late=False)


@pytest.mark.proves("Transactions: confirmed to pending")
async def test_readers_see_a_rollback_whole_or_not_at_all(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a payment that a fork dropped
    world = own_world
    wallet, to, paths = await _history(world)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    fork = await Fork.here(world.localnet)
    before = await world.ok("GET", path)
    paid = (await world.pay(wallet, to, "7")).json()
    after = await world.ok("GET", path)
    await fork.drop()
    readers = _Readers(world, paths)

    # When the indexer finds that out
    async with readers.polling(monkeypatch):
        await _checks(world, 4)
        assert "TransactionReverted" in await _names(world)
        await world.service.projector.catch_up()

    # Then everything was there all the time, and the payment first made and then pending
    assert set(readers.statuses) == {200}
    assert readers.rounds > 5
    balances = dict.fromkeys(one["usdc_balance"] for one in readers.seen[path])
    assert list(balances) == [after["usdc_balance"], before["usdc_balance"]]
    moves = readers.seen[f"{path}/transactions"]
    assert [one["data"][0]["status"] for one in moves] == ["confirmed", "pending"]
    others = [seen for name, seen in readers.seen.items() if name not in {path, f"{path}/transactions", "/v1/wallets"}]
    assert [len(seen) for seen in others] == [1] * len(others)
    assert (await world.ok("GET", f"/v1/payments/{paid['tx_id']}"))["status"] == "pending"

    # And it has failed once it can no longer land
    world.clock.ahead += 90
    await world.service.part(Recovery).recover()
    assert (await world.ok("GET", f"/v1/payments/{paid['tx_id']}"))["status"] == "failed"
    assert await world.balance(to) == 3_000_000


async def test_readers_see_no_part_of_a_rebuild(own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = own_world
    _, _, paths = await _history(world)
    readers = _Readers(world, paths)
    await readers.look()

    async with readers.polling(monkeypatch):
        await world.service.projector.rebuild()

    assert set(readers.statuses) == {200}
    assert readers.rounds > 5
    assert [len(seen) for seen in readers.seen.values()] == [1] * len(paths)


@pytest.mark.proves("Transactions: confirmed to pending")
@pytest.mark.parametrize("forgotten", ["last", "every second"])
async def test_lying_node_causes_no_rollback(own_world: ServiceWorld, forgotten: str) -> None:
    world = own_world
    wallet, to, paths = await _history(world)
    readers = _Readers(world, paths)
    await readers.look()
    signatures = await world.signatures(wallet["chain_address"])
    unknown = set(signatures[:1] if forgotten == "last" else signatures[::2])
    asked: list[list[str]] = []
    through = world.line.through

    async def forget(body: bytes) -> bytes:
        request: Any = json.loads(body)
        if isinstance(request, dict) and request["method"] == "getSignatureStatuses":
            asked.append(request["params"][0])
        return await through(body)

    world.line.through = forget
    world.line.alter = lambda method, result: (
        {
            **result,
            "value": [None if one in unknown else told for one, told in zip(asked[-1], result["value"], strict=True)],
        }
        if method == "getSignatureStatuses"
        else result
    )

    await _checks(world, 8)
    await world.service.projector.catch_up()
    await readers.look()

    assert "TransactionReverted" not in await _names(world)
    assert set(readers.statuses) == {200}
    world.line.mend()
    await world.service.chain.blockhash(fresh=True)
    assert (await world.pay(wallet, to, "1")).status_code == 200


async def test_kill_in_the_middle_of_a_rebuild_leaves_the_state_before(own_world: ServiceWorld) -> None:
    world = own_world
    _, _, paths = await _history(world)
    readers = _Readers(world, paths)
    await readers.look()
    await world.stop()
    async with running(_KILLED, str(world.settings.data_dir), until=b"in the middle"):
        pass

    await world.start()
    await readers.look()
    await world.service.projector.rebuild()
    await readers.look()
    assert set(readers.statuses) == {200}
    assert [len(seen) for seen in readers.seen.values()] == [1] * len(paths)


async def test_rollback_leaves_other_organisations_alone(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two organisations, of which one loses a payment
    world = own_world
    other = await world.organisation("other")
    key = world.key("admin", org=other)
    made = await world.ok("POST", "/v1/policies", {"name": "Theirs"}, key=key)
    wallet, _, _ = await _history(world)
    fork = await Fork.here(world.localnet)
    funded = await world.call("POST", f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "7", "currency": "USDC"})
    assert funded.status_code == 200
    await fork.drop()
    steps: list[tuple[Any, ...]] = []
    reset = rollbacks.reset

    def watch(connection: Connection, *orgs: Any) -> None:
        steps.append(orgs)
        reset(connection, *orgs)

    monkeypatch.setattr("app.projection.applying.reset", watch)

    await _checks(world, 4)
    await world.service.projector.catch_up()

    assert steps == [(world.org,)]
    assert (await world.ok("GET", f"/v1/policies/{made['policy_id']}", key=key))["version"] == made["version"]
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"] == "87.00"
