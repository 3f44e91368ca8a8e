"""Faults of the database under a serving node: requests are answered with 503, and it goes on by itself after them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import select

from app.core.errors import StorageUnavailableError
from app.core.timestamps import now_ms
from app.database import leases
from app.exports.files import write
from tests.nodes.wire import Wire
from tests.support.postgres import Cluster
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'agent-vault%'"
_PATIENCE = 3.0
"""Seconds after which a call of the database is given up here; by default it is 20, also more than a renewal has."""
_MENDED = 20.0
"""Seconds in which everything goes on after a fault."""


@pytest.fixture(scope="module", name="wire")
def _wire(cluster: Cluster) -> Iterator[Wire]:
    with Wire(cluster) as wire:
        yield wire


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="node")
async def _node(
    cluster: Cluster, template: str, wire: Wire, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceWorld]:
    """A node whose database is at the other end of the wire."""
    url = wire.url(cluster.url(cluster.database(template)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.database.postgres._calls.PATIENCE", _PATIENCE)
        patch.setattr("app.database.postgres.database.PATIENCE", _PATIENCE)
        async with ServiceWorld(tmp_path_factory.mktemp("service"), database_url=url) as opened:
            yield opened
            wire.mend()


async def _settled(node: ServiceWorld, wallet: Json, to: str, key: str) -> httpx.Response:
    """Make a payment of one USDC and repeat it under its key until it has an outcome; all else must be a 503."""
    async with asyncio.timeout(60):
        while True:
            answer = await node.pay(wallet, to, "1", headers={"Idempotency-Key": key})
            if answer.status_code == 200 and answer.json()["status"] == "confirmed":
                return answer
            if answer.status_code != 200 and answer.json()["error"]["code"] != "idempotency_in_progress":
                error = error_of(answer, 503, answer.json()["error"]["code"])
                assert error["code"] in {"storage_unavailable", "chain_unavailable"}, error
                assert answer.headers["retry-after"]
            await asyncio.sleep(0.05)


async def _goes_on(node: ServiceWorld, wallet: Json, to: str) -> None:
    """Check that the node renews its leases from now on, is ready and pays, all without a restart."""
    # By the database's clock, which is this machine's.
    later = now_ms() + leases.LIFETIME
    own = select(leases.table.c.name).where(
        leases.table.c.holder == node.service.db.node, leases.table.c.expires_at > later
    )
    async with asyncio.timeout(_MENDED):
        while True:
            answers = await asyncio.gather(node.call("GET", "/readyz"), node.call("GET", "/v1/wallets"))
            with contextlib.suppress(StorageUnavailableError):
                renewed = await node.service.db.read(lambda conn: set(conn.scalars(own)))
                if renewed >= {"indexer", "worker"} and all(one.status_code == 200 for one in answers):
                    break
            await asyncio.sleep(0.1)
        await _settled(node, wallet, to, f"goes on {to}")


async def test_terminated_connections_lose_and_double_no_payment(node: ServiceWorld, cluster: Cluster) -> None:
    wallet, to = await node.wallet(), await node.payee()
    paying = [asyncio.create_task(_settled(node, wallet, to, f"terminated {number}")) for number in range(24)]
    for done in range(1, 4):
        while sum(one.done() for one in paying) < 6 * done:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await asyncio.to_thread(cluster.execute, _TERMINATE)
    paid = await asyncio.gather(*paying)

    assert len({one.json()["tx_id"] for one in paid}) == 24
    assert await node.balance(to) == 24_000_000
    await _goes_on(node, wallet, to)


async def test_export_that_meets_an_outage_is_written_after_it(
    node: ServiceWorld, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = 3  # one more than a reading is repeated by itself

    def write_cut(*given: Any) -> tuple[int, str | None]:
        nonlocal cuts
        if cuts:
            cuts -= 1
            cluster.execute(_TERMINATE)
        return write(*given)

    monkeypatch.setattr("app.exports.exporter.write", write_cut)
    made = await node.ok("POST", "/v1/transactions/export", {"format": "csv"})
    async with asyncio.timeout(_MENDED):
        while (found := await node.call("GET", f"/v1/transactions/exports/{made['export_id']}")).status_code != 200 or (  # noqa: ASYNC110
            found.json()["status"] == "processing"
        ):
            await asyncio.sleep(0.1)
    assert (found.json()["status"], cuts) == ("ready", 0)


async def test_network_that_hangs_is_503_until_it_is_back(node: ServiceWorld, wire: Wire) -> None:
    wallet, to = await node.wallet(), await node.payee()
    paying = [asyncio.create_task(_settled(node, wallet, to, f"hanging {number}")) for number in range(12)]
    while sum(one.done() for one in paying) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    wire.hang()
    began = time.monotonic()
    error_of(await node.call("GET", "/v1/wallets"), 503, "storage_unavailable")
    error_of(await node.call("POST", "/v1/policies", {"name": "Lost"}), 503, "storage_unavailable")
    assert time.monotonic() - began < 15
    assert "database" in error_of(await node.call("GET", "/readyz"), 503, "not_ready")["reasons"]
    wire.mend()

    paid = await asyncio.gather(*paying)
    assert len({one.json()["tx_id"] for one in paid}) == 12
    assert await node.balance(to) == 12_000_000
    await _goes_on(node, wallet, to)


async def test_hanging_database_costs_no_request_more_than_its_patience(
    node: ServiceWorld, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await node.wallet(), await node.payee()
    policy = await node.policy()
    monkeypatch.setattr("app.server.application.REQUEST_PATIENCE", 2.0)
    # Given calls that nothing else ends in time
    monkeypatch.setattr("app.database.postgres._calls.PATIENCE", 60.0)
    requests: list[tuple[str, str, Json | None]] = [
        ("GET", "/v1/wallets", None),
        ("GET", f"/v1/policies/{policy['policy_id']}/audit-log", None),
        ("POST", "/v1/policies", {"name": "Lost"}),
        ("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"label": "Lost"}),
        ("POST", "/v1/payments", {"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"}),
    ]

    async def took(number: int) -> float:
        method, where, body = requests[number % len(requests)]
        began = time.monotonic()
        answer = await node.call(method, where, body, headers={"Idempotency-Key": f"hanging in all {number}"})
        assert answer.status_code == 503, (where, answer.text)
        return time.monotonic() - began

    wire.hang()
    try:
        slowest = max(await asyncio.gather(*(took(number) for number in range(40))))
    finally:
        wire.mend()
    # Each call after the first may wait half a second
    assert slowest < 8
    await _goes_on(node, wallet, to)


async def test_connections_that_never_answer_again_are_replaced(node: ServiceWorld, wire: Wire) -> None:
    """Such as those through a firewall that has forgotten them; what waits for one must not wait for ever."""
    wallet, to = await node.wallet(), await node.payee()
    await asyncio.gather(*(node.call("GET", "/v1/wallets") for _ in range(8)))
    wire.hang(new=False)
    await _goes_on(node, wallet, to)
    wire.mend()
