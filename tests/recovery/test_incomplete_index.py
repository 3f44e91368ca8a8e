"""What the index lacks stops nothing else, and nobody is told that nothing is to be done because of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from app.chain.client import ChainClient
from app.reconciliation.index_watch import IndexWatch
from app.reconciliation.reconciliation import Reconciliation
from app.server.gauges import Gauges
from app.server.health import Health
from indexer.transaction_reader import TransactionReader
from tests.support.chain import altered
from tests.support.processes import command
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

CUT: Json = {"transaction": ["gg==", "base64"]}
"""What a node tells of a transaction in a version that nothing here reads."""


class Told:
    """Changes what the world's node tells about some transactions; `all` of them without their inner instructions."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.through = world, world.line.through
        self.instead: dict[str, Json | None] = {}
        self.all = False
        world.line.through = self

    async def __call__(self, body: bytes) -> bytes:
        request = json.loads(body)
        calls = request if isinstance(request, list) else [request]
        left = iter(calls)

        def alter(method: str, result: Any) -> Any:
            signature = next(left)["params"][0] if method == "getTransaction" else next(left)
            if method != "getTransaction" or result is None:
                return result
            if self.all:
                return {**result, "meta": {**result["meta"], "innerInstructions": None}}
            if signature in self.instead:
                instead = self.instead[signature]
                return None if instead is None else {**result, **instead}
            return result

        return altered([one["method"] for one in calls], await self.through(body), alter)


@pytest_asyncio.fixture(name="world", loop_scope="module")
async def _world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    async with ServiceWorld(tmp_path) as world:
        yield world


async def stranger_names_the_program(world: ServiceWorld) -> str:
    """Land a transaction that only names the program, and return its signature."""
    program, payer = world.service.codec.program_id, world.service.signers.fee_payer.pubkey()
    step = transfer(TransferParams(from_pubkey=payer, to_pubkey=payer, lamports=1))
    named = [*step.accounts, AccountMeta(program, is_signer=False, is_writable=False)]
    await world.land([Instruction(step.program_id, step.data, named)])
    return (await world.signatures(str(world.service.codec.program_id)))[0]


async def ready(world: ServiceWorld) -> Json:
    """Return what `/readyz` says; the service must be ready."""
    _app: Any = world.client._transport
    _app.app.state.health = Health(world.service, remember=0.0)
    return await world.ok("GET", "/readyz")


async def events_of(world: ServiceWorld) -> list[Json]:
    """Return the reports about what the index lacks, newest first."""
    found: list[Json] = (await world.ok("GET", "/v1/events?event=index.incomplete"))["data"]
    return found


async def due_now(world: ServiceWorld) -> None:
    """Try all holes again, as if the pauses were over."""
    indexer = world.service.indexer

    def hasten(store: Any) -> None:
        store._file.conn.execute("UPDATE chain_transaction_holes SET retry_at = 0")

    await indexer._events.write(hasten)
    await indexer._retry_holes()


async def test_stranger_stops_no_change_by_a_transaction_not_served_yet(world: ServiceWorld) -> None:
    told, policy = Told(world), await world.policy()
    wallet = await world.wallet(policy["policy_id"])
    path = f"/v1/wallets/{wallet['wallet_id']}"
    told.instead = _Everything(None)
    missing = await stranger_names_the_program(world)
    told.instead = {missing: None}

    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "50"})
    await world.ok("POST", f"{path}/rotate-token", {})
    assert (await world.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"
    assert (await world.ok("PATCH", path, {"status": "active"}))["status"] == "active"
    assert await world.service.indexer.unknown([missing]) == [missing]

    told.instead = {}
    await world.service.indexer.catch_up(seen=0)
    assert await world.service.indexer.unknown([missing]) == []


@pytest.mark.proves("GET /readyz", "event index.incomplete")
async def test_stranger_stops_nothing_by_an_unreadable_transaction(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, policy = Told(world), await world.policy()
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    told.instead = _Everything(CUT)
    hole = await stranger_names_the_program(world)
    told.instead = {hole: CUT}

    # Then everything goes on
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "50"})
    await world.ok("POST", f"{path}/rotate-token", {})
    assert (await world.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"
    assert (await world.ok("PATCH", path, {"status": "active"}))["status"] == "active"
    assert (await world.pay(wallet, to, "1")).status_code == 200
    export = await world.ok("POST", "/v1/transactions/export", {"format": "json"})
    async with asyncio.timeout(10):
        path = f"/v1/transactions/exports/{export['export_id']}"
        while (await world.ok("GET", path))["status"] != "ready":  # noqa: ASYNC110 - the exporter notifies nobody
            await asyncio.sleep(0.05)

    # And the hole is listed, counted, and reported once
    await due_now(world)
    listed = (await ready(world))["unreadable_transactions"]
    assert (listed["count"], [one["signature"] for one in listed["newest"]]) == (1, [hole])
    url = world.settings.database_url
    database = {} if url is None else {"AGENT_VAULT_DATABASE_URL": url.get_secret_value()}
    printed = await command("holes", "--data-dir", str(world.settings.data_dir), **database)
    assert printed.split()[:3] == ["transaction", hole, "slot"]
    await Gauges(world.service).tick()
    assert "agent_vault_index_holes 1.0" in (await world.client.get("/metrics")).text
    watch = IndexWatch(world.service)
    monkeypatch.setattr("app.reconciliation.index_watch._MOMENT", -1)
    await watch.tick()
    monkeypatch.setattr("app.reconciliation.index_watch._PAUSE_MS", 0)
    await watch.tick()
    [event] = await events_of(world)
    assert event["severity"] == "critical"
    assert (event["unreadable_transactions"], event["missing_events"]) == (1, [])

    # Until it can be read
    told.instead = {}
    await due_now(world)
    assert "unreadable_transactions" not in await ready(world)


class _Everything(dict[str, Any]):
    """The same instead of every transaction."""

    def __init__(self, instead: Json | None) -> None:
        super().__init__()
        self._instead = instead

    def __contains__(self, _key: object) -> bool:
        return True

    def __getitem__(self, _key: str) -> Json | None:
        return self._instead


async def test_frozen_vault_is_not_shown_active_for_a_missing_part(world: ServiceWorld) -> None:
    told, wallet = Told(world), await world.wallet()
    path, to = f"/v1/wallets/{wallet['wallet_id']}", await world.payee()
    told.all = True
    await world.ok("PATCH", path, {"status": "frozen"})
    error_of(await world.call("PATCH", path, {"status": "active"}), 503, "chain_unavailable")
    told.all = False

    await world.catch_up()
    assert (await world.ok("GET", path))["status"] == "frozen"
    assert (await world.ok("PATCH", path, {"status": "active"}))["status"] == "active"
    assert (await world.pay(wallet, to, "1")).status_code == 200


@pytest.mark.proves("event index.incomplete")
async def test_gap_stops_changes_of_its_object_alone_until_it_is_filled(world: ServiceWorld) -> None:
    # Given a freeze that is stored without its event, as earlier versions did
    wallet, other, to = await world.wallet(), await world.wallet(), await world.payee()
    path, indexer = f"/v1/wallets/{wallet['wallet_id']}", world.service.indexer
    vault = world.wallet_record(wallet["wallet_id"]).vault
    told = Told(world)
    told.all = True
    await _freeze_outside(world, vault)
    emptied = (await world.signatures(vault))[0]
    truth = ChainClient(told.through, program_id=world.service.codec.program_id)
    [frozen] = (await TransactionReader(truth, world.service.codec).read({emptied: 1})).transactions
    await indexer._events.write(lambda store: store.record([replace(frozen, events=())]))
    await world.restart()
    told = Told(world)
    told.instead = {emptied: {"meta": None}}
    indexer = world.service.indexer
    assert (await world.ok("GET", path))["status"] == "active"

    # Then it is not answered that nothing is to be done
    for method, where, body in (
        ("PATCH", path, {"status": "active"}),
        ("PATCH", path, {"policyId": "pol_conservative"}),
        ("POST", f"{path}/rotate-token", {}),
    ):
        error = error_of(await world.call(method, where, body), 503, "chain_unavailable")
        assert "events" in error["message"]
    # But brakes are sent, payments judged by the program, and other objects changed
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    assert (await world.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"
    await world.ok("POST", f"/v1/wallets/{other['wallet_id']}/rotate-token", {})
    assert (await world.pay(other, to, "1")).status_code == 200

    # And operators are told while it lasts
    indexer._gaps = dict.fromkeys([vault], -1e9)
    await Reconciliation(world.service, pace=0.0, second_look=0.0).tick()
    assert (await ready(world))["missing_events"] == [vault]
    await Gauges(world.service).tick()
    assert "agent_vault_index_gaps 1.0" in (await world.client.get("/metrics")).text
    watch, complete = IndexWatch(world.service), world.key("admin", org=await world.organisation("complete"))
    await watch.tick()
    await watch.tick()
    [event] = await events_of(world)
    assert event["missing_events"] == [vault]
    assert (await world.ok("GET", "/v1/events?event=index.incomplete", key=complete))["data"] == []

    # Until the node tells the whole
    told.instead = {}
    for _ in range(3):
        await indexer._reconciler.fill_gaps()
    await world.catch_up()
    assert (await world.ok("GET", path))["status"] == "frozen"
    assert "missing_events" not in await ready(world)
    assert (await world.ok("PATCH", path, {"status": "active"}))["status"] == "active"


async def _freeze_outside(world: ServiceWorld, vault: str) -> None:
    build, operator = world.build, world.service.signers.operator
    policy = (await world.fields(vault))["policy"]
    signer = world.service.signers.operator_address
    freeze = build.freeze_wallet(signer=signer, vault=Pubkey.from_string(vault), policy=policy, action="Freeze")
    await world.land([freeze], operator)
