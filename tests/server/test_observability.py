"""What operators of the service see: health, readiness, metrics and logs."""

import asyncio
import io
import itertools
import json
import logging
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pydantic_core import to_json
from sqlalchemy import Connection, update
from starlette.applications import Starlette
from starlette.types import Message

from app.api.metrics import Metrics
from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable
from app.chain.transport import HttpTransport
from app.core import logs
from app.core.timestamps import now_ms
from app.reconciliation.reconciliation import Reconciliation
from app.server.application import routes
from app.server.gauges import Gauges
from app.server.health import Health
from app.store import deliveries
from app.store.read_tables import wallets
from app.store.webhooks import mark_degraded
from indexer.records import Hole
from tests.support.http import PATIENCE, listening
from tests.support.keeper import HOUR, expiring, queries_of
from tests.support.processes import WITH_LOG, serving
from tests.support.service_world import Clock, ServiceWorld, error_of
from tests.support.sqlite import sqlite_writer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(name="watched", loop_scope="module")
async def _watched(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    """A service whose health is checked anew for every request."""
    async with ServiceWorld(tmp_path) as world:
        _app(world).state.health = Health(world.service, remember=0.0)
        yield world


def _app(world: ServiceWorld) -> Starlette:
    transport = world.client._transport
    assert isinstance(transport, httpx.ASGITransport)
    app = transport.app
    assert isinstance(app, Starlette)
    return app


async def _from(client: str, world: ServiceWorld, key: str | None = None, **headers: str) -> httpx.Response:
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    transport = httpx.ASGITransport(_app(world), client=(client, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.get("/metrics", headers=headers)


async def _metrics(world: ServiceWorld) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read the gauges, which the service does in the background, and return all metrics."""
    await Gauges(world.service).tick()
    response = await world.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _series(metrics: dict[str, list[tuple[dict[str, str], float]]]) -> dict[str, set[tuple[tuple[str, str], ...]]]:
    return {name: {tuple(sorted(labels.items())) for labels, _ in samples} for name, samples in metrics.items()}


async def _status(world: ServiceWorld, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    """Return the status of a request, which takes a tenth of the time of one by httpx."""
    status = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)

    given = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body)), **headers}
    await _app(world)(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("192.0.2.1", 50_000),
            "server": ("localhost", 80),
        },
        receive,
        send,
    )
    return status


class _Renderings(Collector):
    """Counts how often a registry is rendered, and how often at once."""

    def __init__(self) -> None:
        self.count = self.most_at_once = self._now = 0

    def collect(self) -> Iterator[Metric]:
        self.count += 1
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        yield from ()
        self._now -= 1


@pytest.mark.proves("GET /healthz")
async def test_working_service_is_alive_and_ready_without_a_key(world: ServiceWorld) -> None:
    alive, ready = await world.client.get("/healthz"), await world.client.get("/readyz")

    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "indexer_lag_slots": 0})


@pytest.mark.proves("GET /readyz", "error not_ready")
async def test_service_without_its_chain_lives_but_is_not_ready(watched: ServiceWorld) -> None:
    watched.line.lose_requests = lambda _method: True

    error = error_of(await watched.client.get("/readyz"), 503, "not_ready")
    metrics = await _metrics(watched)
    alive = await watched.client.get("/healthz")

    assert error["reasons"] == ["chain"]
    assert metrics["agent_vault_ready"] == [({}, 0.0)]
    assert alive.status_code == 200
    watched.line.mend()
    assert (await watched.client.get("/readyz")).status_code == 200
    assert (await _metrics(watched))["agent_vault_ready"] == [({}, 1.0)]


async def test_readiness_names_the_history_that_no_node_has_given(watched: ServiceWorld) -> None:
    watched.service.indexer.store.note_hole(Hole("signature", 10, 20))

    ready = await watched.client.get("/readyz")

    assert (ready.status_code, ready.json()["missing_history"]) == (200, [{"after_slot": 10, "before_slot": 20}])


async def test_service_whose_polls_fail_is_not_ready(watched: ServiceWorld) -> None:
    await watched.restart(max_indexer_lag=1)
    _app(watched).state.health = Health(watched.service, remember=0.0)

    # Given a node whose history is unusable
    def refuse(method: str, result: Any) -> Any:
        return "no history" if method == "getSignaturesForAddress" else result

    watched.line.alter = refuse
    async with asyncio.timeout(PATIENCE):
        while watched.service.indexer.failing_for <= 0.5:  # noqa: ASYNC110 - the indexer notifies nobody
            await asyncio.sleep(0.05)

    error = error_of(await watched.client.get("/readyz"), 503, "not_ready")
    assert "indexer" in error["reasons"]


@pytest.mark.usefixtures("log")
async def test_service_whose_database_cannot_be_written_is_not_ready(watched: ServiceWorld) -> None:
    writer: Any = sqlite_writer(watched.service.db)
    writer.execute("PRAGMA query_only=ON")

    error = error_of(await watched.client.get("/readyz"), 503, "not_ready")

    assert error["reasons"] == ["database"]
    writer.execute("PRAGMA query_only=OFF")
    assert (await watched.client.get("/readyz")).status_code == 200


@pytest.mark.usefixtures("log")
async def test_service_whose_database_has_no_room_is_not_ready(watched: ServiceWorld) -> None:
    writer: Any = sqlite_writer(watched.service.db)
    [pages] = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={pages + 8}")
    # A payment or two still fit
    wallet = await watched.wallet()

    error = error_of(await watched.client.get("/readyz"), 503, "not_ready")

    assert error["reasons"] == ["database"]
    assert (await watched.pay(wallet, await watched.payee(), "1")).status_code == 200
    writer.execute("PRAGMA max_page_count=1000000")
    before = writer.execute("PRAGMA page_count").fetchone()
    assert (await watched.client.get("/readyz")).status_code == 200
    assert writer.execute("PRAGMA page_count").fetchone() == before


@pytest.mark.proves("GET /readyz")
async def test_old_backup_is_shown_and_changes_no_status(watched: ServiceWorld) -> None:
    file = watched.settings.paths().backed_up
    os.utime(file, (1_700_000_000, 1_700_000_000))

    ready = await watched.client.get("/readyz")

    assert (ready.status_code, ready.json()["last_backup"]) == (200, "2023-11-14T22:13:20.000Z")
    assert (await _metrics(watched))["agent_vault_backup_timestamp_seconds"] == [({}, 1_700_000_000.0)]


@pytest.mark.proves("GET /readyz")
async def test_service_whose_indexer_is_behind_is_not_ready(
    watched: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await watched.wallet(), await watched.payee()
    await watched.catch_up()

    # Given a payment that the chain has and the indexer cannot read
    watched.line.lose_requests = lambda method: method == "getTransaction"
    monkeypatch.setattr(watched.service.submitter, "_confirm_timeout", 0.2)
    paid = await watched.pay(wallet, to, "1")
    assert paid.json()["status"] == "pending"
    assert (await watched.client.get("/readyz")).status_code == 200

    # When it lags by more slots than allowed
    watched.clock.ahead += watched.settings.max_indexer_lag * 0.4 + 4
    error = error_of(await watched.client.get("/readyz"), 503, "not_ready")
    metrics = await _metrics(watched)

    # Then the service is not ready until the indexer has caught up
    assert error["reasons"] == ["indexer"]
    [(_, lag)] = metrics["agent_vault_indexer_lag_slots"]
    assert lag > watched.settings.max_indexer_lag
    assert metrics["agent_vault_pending_attempts"] == [({}, 1.0)]
    watched.line.mend()
    await watched.catch_up()
    assert (await watched.client.get("/readyz")).status_code == 200
    assert (await _metrics(watched))["agent_vault_pending_attempts"] == [({}, 0.0)]


async def test_many_callers_share_one_health_check(world: ServiceWorld) -> None:
    now = 100.0
    health = Health(world.service, remember=1.0, timer=lambda: now)

    with world.line.asked() as methods:
        await asyncio.gather(*(health.report() for _ in range(20)))
        assert methods.count("getSlot") == 1
        now += 1.0
        await health.report()
    assert methods.count("getSlot") == 2


async def test_hanging_chain_delays_many_callers_only_once(tmp_path: Path) -> None:
    world, asked = ServiceWorld(tmp_path), 0

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while got := await reader.read(1 << 16):
            asked += got.count(b"POST / ")
        writer.close()
        await writer.wait_closed()

    # Given a chain that accepts connections and requests but does not answer
    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    silent = HttpTransport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with world, server:
        monitored = Health(world.service, remember=0.2, patience=0.4)
        _app(world).state.health = monitored
        world.service.chain = ChainClient(silent, program_id=world.service.codec.program_id)

        # When several ask for readiness and metrics at once
        began = time.monotonic()
        paths = ["/readyz", "/metrics"] * 10
        answers = await asyncio.gather(*(world.client.get(path) for path in paths))
        took = time.monotonic() - began

        # Then they waited no longer than one would
        assert [one.status_code for one in answers] == [503, 200] * 10
        assert asked == 1
        assert took < len(paths) / 2 * 0.4
        await silent.aclose()


async def test_slow_health_check_is_remembered_from_its_end(watched: ServiceWorld) -> None:
    now, line = 100.0, watched.line
    health = Health(watched.service, remember=1.0, timer=lambda: now)

    async def slowly() -> None:
        nonlocal now
        now += 1.5

    line.hold = lambda method: slowly() if method == "getSlot" and line.asking() else None

    with line.asked() as methods:
        for _ in range(3):
            await health.report()

        assert methods.count("getSlot") == 1
        now += 1.0
        await health.report()
    assert methods.count("getSlot") == 2


async def test_health_check_outlives_the_caller_that_started_it(watched: ServiceWorld) -> None:
    line, go_on = watched.line, asyncio.Event()
    line.hold = lambda method: go_on.wait() if method == "getSlot" else None
    health = Health(watched.service, remember=60.0)
    with line.asked() as methods:
        first, second = (asyncio.create_task(health.report()) for _ in range(2))
    while "getSlot" not in methods:  # noqa: ASYNC110 - the line notifies nobody
        await asyncio.sleep(0.001)

    first.cancel()
    go_on.set()

    assert (await second).failing == ()
    assert first.cancelled()
    assert methods.count("getSlot") == 1


@pytest.mark.proves("GET /metrics")
async def test_metrics_count_requests_by_route_and_payments_by_outcome(watched: ServiceWorld) -> None:
    world = watched
    policy = await world.policy(maxPerTx="5")
    wallet, to = await world.wallet(policy["policy_id"], funds="10"), await world.payee()
    await world.pay(wallet, to, "1", body={"idempotencyKey": "once"})
    await world.pay(wallet, to, "1", body={"idempotencyKey": "once"})
    await world.call("POST", f"/v1/wallets/{wallet['wallet_id']}/pay", {"to": to, "amount": "2", "currency": "USDC"})
    await world.pay(wallet, to, "6")
    await world.pay(wallet, "nonsense", "1")
    await world.call("GET", f"/v1/wallets/{wallet['wallet_id']}")
    await world.call("GET", "/v1/nothing/here")
    await world.client.request("BREW", "/v1/wallets")

    metrics = await _metrics(world)

    outcomes = {labels["outcome"]: value for labels, value in metrics["agent_vault_payments_total"]}
    assert {name: value for name, value in outcomes.items() if value} == {"confirmed": 2, "blocked": 1, "refused": 1}
    requests = {
        (labels["route"], labels["status"]): value for labels, value in metrics["agent_vault_http_requests_total"]
    }
    assert requests["/v1/payments", "2xx"] == 2
    assert requests["/v1/payments", "4xx"] == 2
    assert requests["/v1/wallets/{wallet_id}/pay", "2xx"] == 1
    assert requests["/v1/wallets/{wallet_id}", "2xx"] == 1
    assert requests["/v1/wallets", "4xx"] == 1
    assert requests["unknown", "4xx"] == 1
    timed = {
        (labels["group"], labels["status"]): value
        for labels, value in metrics["agent_vault_http_request_seconds_count"]
    }
    assert timed["payments", "2xx"] == 3
    assert timed["payments", "4xx"] == 2
    assert timed["x402", "2xx"] == 0


@pytest.mark.proves("Limits: Size of /metrics")
async def test_metrics_keep_their_size_and_series_under_any_traffic(watched: ServiceWorld) -> None:
    chance, wallet = random.Random(7), await watched.wallet()
    keys = [watched.key("viewer"), watched.key("operator"), watched.key("agent", wallet["wallet_id"]), "av_unknown"]
    unusual = ["POST", "PUT", "OPTIONS", "BREW"]
    before = await _metrics(watched)

    # When requests of every kind are made, most of them unusual
    answered = Counter[int]()
    for number in range(5000):
        route = chance.choice(routes)
        method = chance.choice([*sorted(route.methods or ()), *unusual])
        path = route.path if number % 5 else f"/{chance.randbytes(6).hex()}"
        path = re.sub(r"{[^}]+}", chance.choice([wallet["wallet_id"], "x", chance.randbytes(9).hex()]), path)
        body = to_json({"agentId": f"agent-{number}", "label": f"Agent {number}", "policyId": "pol_permissive"})
        headers = {"authorization": f"Bearer {chance.choice(keys)}", "user-agent": f"agent-{number}"}
        answered[await _status(watched, method, path, body, headers)] += 1
    watched.line.lose_requests = lambda _method: True
    answered[(await watched.client.get("/readyz")).status_code] += 1
    watched.line.mend()
    for number in range(20):
        await watched.call("POST", "/v1/wallets", {"agentId": f"a{number}", "label": "A", "policyId": "pol_permissive"})
    await watched.organisation("another")

    # Then the text has the series that it had, of values that are known
    after = await _metrics(watched)
    assert _series(after) == _series(before)
    assert answered.keys() > {200, 303, 400, 401, 403, 404, 405, 503}
    assert sum(value for _, value in after["agent_vault_http_requests_total"]) > 5000
    assert len((await watched.client.get("/metrics")).content) < 150_000
    found: dict[str, set[str]] = {}
    for name, value in (one for labels in _series(after).values() for pairs in labels for one in pairs):
        found.setdefault(name, set()).add(value)
    assert found["route"] == {route.path for route in routes} | {"unknown"}
    assert found["status"] == {"2xx", "3xx", "4xx", "5xx", "enabled", "degraded"}
    assert len(found["group"]) <= 12
    assert set(found) == {"route", "status", "group", "le", "outcome", "lock", "reason", "result"}
    assert not [name for name in after if name.endswith("_created")]


@pytest.mark.proves("Limits: Renderings of /metrics")
async def test_readers_of_the_metrics_share_one_rendering_a_second(watched: ServiceWorld) -> None:
    wallet, other, metrics = await watched.wallet(), await watched.organisation("other"), watched.service.part(Metrics)
    await Gauges(watched.service).tick()
    renderings = _Renderings()
    metrics._registry.register(renderings)
    metrics.remember = 1.0
    frozen = asyncio.Event()

    async def read(port: int) -> int:
        headers = {"Authorization": f"Bearer {watched.key('viewer', org=other)}", "X-Forwarded-For": "192.0.2.1"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE) as client:
            for count in itertools.count(1):
                text = (await client.get("/metrics")).raise_for_status().text
                assert f'{{organization="other"}} {10**12}\n' in text
                assert 'organization="test"' not in text
                if frozen.is_set():
                    return count
        raise AssertionError

    # When 16 connections of another organisation read while a wallet is frozen
    began = time.monotonic()
    async with listening(watched, PATIENCE) as port, asyncio.TaskGroup() as group:
        readers = [group.create_task(read(port)) for _ in range(16)]
        await watched.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
        frozen.set()

    # Then most got the text of another, and no two were rendered at once
    reads = sum(one.result() for one in readers)
    assert 1 <= renderings.count <= time.monotonic() - began + 1
    assert renderings.most_at_once == 1
    assert reads >= 16


async def test_metrics_show_the_fee_payers_lamports(watched: ServiceWorld) -> None:
    payer = watched.service.signers.fee_payer_address
    account = await watched.service.chain.account(payer)
    assert account is not None
    assert (await _metrics(watched))["agent_vault_fee_payer_lamports"] == [({}, account.lamports)]

    await watched.localnet.airdrop(payer, 5)
    assert (await _metrics(watched))["agent_vault_fee_payer_lamports"] == [({}, account.lamports + 5)]

    # What nobody knows is not shown as it was.
    watched.line.lose_requests = lambda _method: True
    [(_, lamports)] = (await _metrics(watched))["agent_vault_fee_payer_lamports"]
    assert math.isnan(lamports)


async def test_machine_sees_the_sum_of_reserves_and_a_key_its_own(watched: ServiceWorld) -> None:
    name = "agent_vault_reserve_micro_usdc"
    assert f"{name} NaN\n" in (await watched.client.get("/metrics")).text
    other = await watched.organisation("other")
    await watched.wallet(funds="100")

    shown = (await _metrics(watched))[name]

    assert shown == [({}, 1_999_900_000_000.0)]
    for org, own in (
        (None, f'{name}{{organization="test"}} 999900000000'),
        (other, f'{name}{{organization="other"}} 1'),
    ):
        text = (await _from("192.0.2.1", watched, watched.key("viewer", org=org))).text
        [line] = [line for line in text.splitlines() if line.startswith(name)]
        assert line.startswith(own)


async def test_metrics_show_the_requests_that_wait(watched: ServiceWorld) -> None:
    wallet, to = await watched.wallet(), await watched.payee()
    go_on = asyncio.Event()
    watched.line.hold = lambda method: go_on.wait() if method == "simulateTransaction" else None
    payments = [asyncio.create_task(watched.pay(wallet, to, "1")) for _ in range(5)]
    sending = ({"lock": "wallet_sending"}, 4.0)

    async with asyncio.timeout(PATIENCE):
        while sending not in (await _metrics(watched))["agent_vault_waiting_requests"]:  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.gather(*payments)

    assert {value for _, value in (await _metrics(watched))["agent_vault_waiting_requests"]} == {0.0}


async def test_metrics_show_the_webhook_backlog(watched: ServiceWorld) -> None:
    await watched.restart(webhooks=False)
    hook = await watched.ok("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/", "events": ["wallet.created"]})
    await watched.wallet(funds=None)
    await watched.wallet(funds=None)
    unqueued = await _metrics(watched)

    def queue(conn: Connection) -> None:
        deliveries.queue_new_events(conn, lambda _event: "{}", now_ms() - 60_000, limit=100)

    await watched.service.db.write(queue)
    queued = await _metrics(watched)

    assert unqueued["agent_vault_webhook_unqueued_events"] == [({}, 2.0)]
    assert queued["agent_vault_webhook_unqueued_events"] == [({}, 0.0)]
    assert queued["agent_vault_webhook_backlog"] == [({"status": "enabled"}, 2.0), ({"status": "degraded"}, 0.0)]
    [(_, overdue)] = queued["agent_vault_webhook_overdue_seconds"]
    assert 60 <= overdue < 60 + PATIENCE

    await watched.service.db.write(lambda conn: mark_degraded(conn, hook["webhook_id"], now_ms()))
    given_up = await _metrics(watched)
    assert given_up["agent_vault_webhook_backlog"] == [({"status": "enabled"}, 0.0), ({"status": "degraded"}, 2.0)]
    assert given_up["agent_vault_webhook_overdue_seconds"] == [({}, 0.0)]


async def test_metrics_count_the_keepers_errors(watched: ServiceWorld) -> None:
    poisoned, good, timer = await expiring(watched), await expiring(watched), Clock()
    policy = watched.wallet_record(good["wallet_id"]).policy.address

    async def spoil(**values: str) -> None:
        mine = update(wallets).where(wallets.c.wallet_id == poisoned["wallet_id"])
        await watched.service.db.write(lambda conn: conn.execute(mine.values(**values)))

    await spoil(policy=policy)
    await watched.later(HOUR + 1)
    keeper = watched.keeper(timer=timer)

    async def errors() -> dict[str, float]:
        shown = (await _metrics(watched))["agent_vault_keeper_errors_total"]
        return {labels["reason"]: value for labels, value in shown if value}

    # Given a job that the program refuses: once may be somebody else's luck
    await keeper.tick()
    await watched.catch_up()
    assert await errors() == {}
    timer.ahead += 60
    await keeper.tick()
    assert await errors() == {"refused": 1.0}
    # And one that cannot even be made
    await spoil(vault="no address")
    timer.ahead += 600
    await keeper.tick()
    assert await errors() == {"refused": 1.0, "failed": 1.0}


async def test_metrics_count_the_rounds_that_the_chain_cost_the_keeper(watched: ServiceWorld) -> None:
    await expiring(watched)
    await watched.later(HOUR + 1)
    watched.line.lose_requests = lambda method: method == "sendTransaction"

    with pytest.raises(ChainUnavailable):
        await watched.keeper().tick()

    shown = (await _metrics(watched))["agent_vault_keeper_errors_total"]
    assert ({"reason": "chain_unavailable"}, 1.0) in shown


async def test_metrics_show_the_last_reconciliation(watched: ServiceWorld) -> None:
    wallet, began = await watched.wallet(), time.time()
    reconciliation = Reconciliation(watched.service, pace=0, second_look=0)
    before = await _metrics(watched)
    assert math.isnan(before["agent_vault_reconciliation_timestamp_seconds"][0][1])
    assert {value for _, value in before["agent_vault_reconciliation_result"]} == {0.0}

    async def shown() -> tuple[list[str], float, float]:
        metrics = await _metrics(watched)
        results = [labels["result"] for labels, value in metrics["agent_vault_reconciliation_result"] if value]
        [(_, differences)] = metrics["agent_vault_reconciliation_differences"]
        [(_, at)] = metrics["agent_vault_reconciliation_timestamp_seconds"]
        return results, differences, at

    await reconciliation.tick()
    results, differences, ended = await shown()
    assert (results, differences) == (["clean"], 0)
    assert began <= ended <= time.time()
    await watched.service.db.write(
        lambda conn: conn.execute(update(wallets).where(wallets.c.wallet_id == wallet["wallet_id"]).values(frozen=1))
    )
    await reconciliation.tick()
    assert (await shown())[:2] == (["differences"], 1)
    watched.line.lose_requests = lambda _method: True
    with pytest.raises(ChainUnavailable):
        await reconciliation.tick()
    assert (await shown())[:2] == (["incomplete"], 1)


@pytest.mark.proves("Limits: Interval at which /metrics reads the chain and the database")
async def test_metrics_ask_neither_the_chain_nor_the_database(
    watched: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Gauges(watched.service).tick()

    def fail(*_arguments: object) -> None:
        raise RuntimeError("asked")

    for name in ("_accounts", "_read", "call"):
        monkeypatch.setattr(watched.service.chain, name, fail)
    for name in ("read_now", "write"):
        monkeypatch.setattr(watched.service.db, name, fail)

    assert (await watched.client.get("/metrics")).status_code == 200


async def test_queries_of_the_gauges_use_indexes(world: ServiceWorld) -> None:
    await world.ok("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/", "events": ["export.ready"]})
    with queries_of(world.service) as queries:
        await Gauges(world.service).tick()

    def plans(conn: Connection) -> list[str]:
        explained = (conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {one}", (None,) * one.count("?")) for one in queries)
        return [str(row.detail) for rows in explained for row in rows]

    # A scan is only of what has a row for each organisation, webhook or reported difference, or of given values.
    scanned = {one.split(" USING")[0] for one in world.service.db.read_now(plans) if one.startswith("SCAN")}
    assert len(queries) > 5
    assert scanned <= {"SCAN organisations", "SCAN webhooks", "SCAN differences", "SCAN anon_1", "SCAN CONSTANT ROW"}


async def test_metrics_need_no_key_locally_and_a_readers_key_elsewhere(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)

    for local in ("127.0.0.1", "::1"):
        assert (await _from(local, world)).status_code == 200
    error_of(await _from("192.0.2.1", world), 401, "authentication_failed")
    error_of(await _from("a socket", world), 401, "authentication_failed")
    # A proxy on the same machine forwards for another, also if the settings do not name it.
    for forwarded in (
        {"X-Forwarded-For": "192.0.2.1"},
        {"X-Forwarded-Host": "vault.example.com"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-IP": "192.0.2.1"},
        {"Forwarded": "for=192.0.2.1"},
        {"Via": "1.1 proxy"},
    ):
        error_of(await _from("127.0.0.1", world, **forwarded), 401, "authentication_failed")
    error_of(await _from("192.0.2.1", world, world.key("agent", wallet["wallet_id"])), 403, "insufficient_permissions")
    assert (await _from("192.0.2.1", world, world.key("viewer"))).status_code == 200
    # The machine's own requests are judged by the key that they bring.
    await Gauges(world.service).tick()
    assert 'micro_usdc{organization="test"}' in (await _from("::1", world, world.key("viewer"))).text
    error_of(await _from("::1", world, "avk_unknown"), 401, "authentication_failed")


@pytest.fixture(name="log")
def _log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What `agent-vault --log-level debug` would write."""
    written = io.StringIO()
    monkeypatch.setattr(logging.root, "handlers", [])
    logs.configure("debug", written)
    return written


async def test_no_line_of_a_whole_flow_holds_a_secret(
    own_world: ServiceWorld, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    # Given every secret that goes over the wire, in its place and where it does not belong
    policy = await world.policy(maxPerTx="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    agent = await world.ok("POST", "/v1/keys", {"role": "agent", "walletId": wallet["wallet_id"]})
    session = await world.session(wallet)
    await world.pay(wallet, to, "1", session=session, key=agent["key"])
    await world.pay(wallet, to, "6", session=session, key=agent["key"])
    rotated = await world.ok("POST", f"/v1/keys/{agent['key_id']}/rotate", {})
    renewed = await world.session(wallet)
    await world.pay(wallet, to, "1", session=session, key=rotated["key"])
    await world.call("GET", f"/v1/wallets/{rotated['key']}")
    await world.call("GET", f"/v1/wallets/{renewed}?token={renewed}")
    await world.client.post("/v1/payments", content=f'{{"{renewed}": "{rotated["key"]}', headers={"Session-Token": "x"})
    world.line.lose_requests = lambda method: method == "simulateTransaction"
    await world.pay(wallet, to, "1", session=renewed, key=rotated["key"])
    world.line.mend()

    def fail(*_arguments: object) -> None:
        raise RuntimeError(f"no use for {rotated['key']} and {renewed}")

    monkeypatch.setattr("app.wallets.routes.wallets.page", fail)
    assert (await world.call("GET", "/v1/wallets", key=rotated["key"])).status_code == 500
    logging.getLogger("a.library").warning("it got %s", rotated["key"])
    await world.ok("PATCH", path, {"status": "frozen"})

    # Then the log has a line for each of these
    written = log.getvalue()
    lines = [json.loads(line) for line in written.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert {200, 402, 401, 404, 400, 500, 503} <= {line["status"] for line in requests}
    assert any(line["event"] == "internal_error" and "RuntimeError" in line["exception"] for line in lines)
    assert any(line["event"].startswith("it got avk_test_…") for line in lines)
    # And contains none of the secrets
    secrets = [world.keys["admin"], agent["key"], rotated["key"], session, renewed]
    secrets += [file.read_text().strip() for file in (world.settings.data_dir / "keys").iterdir()]
    for secret in secrets:
        assert secret not in written
        assert secret[12:30] not in written


@pytest.mark.proves("Conventions: Request id")
async def test_every_line_of_a_request_carries_its_id(
    world: ServiceWorld, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        logging.getLogger("a.library").warning("about to fail")
        raise RuntimeError("failed")

    monkeypatch.setattr("app.wallets.routes.wallets.page", fail)

    answers = await asyncio.gather(*(world.call("GET", "/v1/wallets") for _ in range(3)))

    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    for answer in answers:
        mine = [line["event"] for line in lines if line.get("request_id") == answer.headers["request-id"]]
        assert mine == ["about to fail", "internal_error", "request"]
    assert all({"timestamp", "level", "event"} <= set(line) for line in lines)


async def test_line_of_a_request_says_status_code_wallet_and_duration(world: ServiceWorld, log: io.StringIO) -> None:
    wallet, to = await world.wallet(), await world.payee()
    identifier = wallet["wallet_id"]
    lock = {"fromWallet": identifier, "toWallet": to, "amount": "9999999", "currency": "USDC", "taskDescription": "x"}
    answers = [
        await world.pay(wallet, to, "1"),
        await world.pay(wallet, to, "9999999"),
        await world.call("POST", "/v1/payments/a2a", lock),
        await world.call("GET", f"/v1/wallets/{identifier}"),
        await world.call("GET", "/v1/payments/tx_unknown", key=world.key("agent", identifier)),
        await world.call("PATCH", f"/v1/wallets/{identifier}", {"label": "x"}, key=world.key("viewer")),
        await world.call("GET", "/v1/wallets", key="nonsense"),
    ]

    found = [json.loads(line) for line in log.getvalue().splitlines()]
    lines = {line["request_id"]: line for line in found if line["event"] == "request"}
    shown = [lines[answer.headers["request-id"]] for answer in answers]
    assert [(line["status"], line["code"], line["wallet_id"]) for line in shown] == [
        (200, None, identifier),
        (402, "policy_violation", identifier),
        (402, "policy_violation", identifier),
        (200, None, identifier),
        (404, "transaction_not_found", identifier),
        (403, "insufficient_permissions", identifier),
        (401, "authentication_failed", None),
    ]
    assert all(line["level"] == "info" and line["seconds"] > 0 for line in shown)


async def test_log_that_cannot_be_written_stops_no_work(tmp_path: Path) -> None:
    # Given a service whose log is on a full disk
    async with serving(tmp_path / "data", WITH_LOG, "/dev/full") as serve:
        policy = (await serve.client.post("/v1/policies", json={"name": "Any"})).json()["policy_id"]
        new = {"agentId": "agent", "label": "Agent", "policyId": policy}
        wallet = f"/v1/wallets/{(await serve.client.post('/v1/wallets', json=new)).json()['wallet_id']}"

        # Then it serves, and what it does in the background goes on
        for _ in range(3):
            assert (await serve.client.post("/v1/payments", json={})).status_code == 400
        frozen = await serve.client.patch(wallet, json={"status": "frozen"})
        assert (frozen.status_code, frozen.json()["status"]) == (200, "frozen")
        assert (await serve.client.get("/readyz")).status_code == 200
