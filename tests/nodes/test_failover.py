"""A standby is promoted under load. With `--full` four times the clients, for twice as long."""

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from solders.keypair import Keypair

from app.core.money import parse_usdc
from tests.nodes.nodes import Nodes, nodes_on
from tests.support import postgres
from tests.support.postgres import SUPERUSER, Cluster
from tests.support.processes import PATIENCE, command
from tests.support.service_world import error_of

_LAG = 2.0
_CLIENTS = 8


@dataclass
class Load:
    """Clients that pay, each order another amount, and that repeat it under its key until the answer is final."""

    nodes: Nodes
    wallets: list[dict[str, Any]]
    payee: str = field(default_factory=lambda: str(Keypair().pubkey()))
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, httpx.Response] = field(default_factory=dict)
    working: bool = True

    async def work(self, clients: int) -> None:
        """Pay until `working` is false, and end what has begun."""
        await asyncio.gather(*(self._client(at) for at in range(clients)))

    async def _client(self, at: int) -> None:
        while self.working:
            number = len(self.orders) + 1
            key = f"order-{number}"
            wallet = self.wallets[at % len(self.wallets)]["wallet_id"]
            amount = {"amount": f"{number / 1_000_000:.6f}", "currency": "USDC"}
            self.orders[key] = {"walletId": wallet, "to": self.payee, **amount}
            self.answers[key] = await self.settle(key, at)

    async def settle(self, key: str, at: int = 0) -> httpx.Response:
        """Repeat an order on one node after the other until the answer is final."""
        async with asyncio.timeout(120):
            while True:
                at += 1
                client = list(self.nodes.clients.values())[at % len(self.nodes.clients)]
                with contextlib.suppress(httpx.HTTPError):
                    answer = await self.ask(client, key)
                    code = answer.json().get("error", {}).get("code")
                    if answer.status_code == 409 and code == "restore_unacknowledged":
                        return answer
                    if answer.status_code == 200 and answer.json()["status"] == "confirmed":
                        return answer
                    assert answer.status_code in {200, 503} or code == "idempotency_in_progress", answer.text
                await asyncio.sleep(0.05)

    async def ask(self, client: httpx.AsyncClient, key: str) -> httpx.Response:
        """Send an order once."""
        return await client.post("/v1/payments", json=self.orders[key], headers={"Idempotency-Key": key})


@dataclass
class Pair:
    """A primary and its standby, the address that leads to the primary, and two nodes."""

    primary: Cluster
    standby: Cluster
    nodes: Nodes
    load: Load

    def fail_over(self) -> None:
        """Kill the primary, and let the standby take its place at the address."""
        self.primary.stop(signal.SIGKILL)
        address = self.nodes.folder / "address"
        address.unlink()
        address.symlink_to(self.standby.folder)
        self.standby.promote()

    def rows(self, query: str) -> set[Any]:
        """The first column of a query's rows, on the promoted server."""
        return {row[0] for row in self.standby.execute(query, self.nodes.database)}

    async def events(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = await self.nodes.ok("GET", f"/v1/events?type={kind}&limit=50{cursor}")
            found += page["data"]
            if not page["has_more"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    async def guarded(self, state: str | None) -> None:
        """Wait until `/readyz` of each node says so about the guard."""
        async with asyncio.timeout(PATIENCE):
            for client in self.nodes.clients.values():
                while True:
                    answer = await client.get("/readyz")
                    if answer.status_code == 200 and answer.json().get("guard") == state:
                        break
                    await asyncio.sleep(0.05)


@pytest_asyncio.fixture(name="pair")
async def _pair(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Pair]:
    # The fixture of the session skips where there is no server; this one is killed, so it is another.
    del cluster
    binaries = postgres.programs()
    assert binaries is not None
    with postgres.running(binaries) as primary:
        async with nodes_on(primary, primary.upgraded(), tmp_path, usdc=1_000) as nodes:
            (tmp_path / "address").symlink_to(primary.folder)
            nodes.database_url = f"postgresql://{SUPERUSER}@/{nodes.database}?host={tmp_path / 'address'}"
            standby = primary.standby()
            try:
                await asyncio.gather(nodes.start("one"), nodes.start("two"))
                body = {"label": "A", "policyId": "pol_permissive"}
                wallets = [await nodes.ok("POST", "/v1/wallets", {"agentId": f"agent-{n}", **body}) for n in range(4)]
                for one in wallets:
                    await nodes.ok("POST", f"/v1/wallets/{one['wallet_id']}/fund", {"amount": "100"})
                yield Pair(primary, standby, nodes, Load(nodes, wallets))
                await nodes.close()
            finally:
                standby.stop()
                shutil.rmtree(standby.folder, ignore_errors=True)


@pytest.mark.proves("error restore_unacknowledged", "event database.commits_lost", "event transaction.forgotten")
async def test_forgotten_payments_are_not_repeated_after_a_failover(pair: Pair, request: pytest.FixtureRequest) -> None:
    nodes, load, full = pair.nodes, pair.load, request.config.getoption("--full")
    working = asyncio.create_task(load.work(_CLIENTS * (4 if full else 1)))
    await asyncio.sleep(2.0)
    await asyncio.to_thread(pair.standby.stop_receiving)
    await asyncio.sleep(_LAG * (2 if full else 1))
    answered = {key for key, answer in load.answers.items() if answer.status_code == 200}
    await asyncio.to_thread(pair.fail_over)
    promoted = time.monotonic()
    await pair.guarded("unacknowledged")
    raised = time.monotonic() - promoted
    load.working = False
    await working

    # Whatever was answered before, every key is asked for again, on both nodes
    for at in range(2):
        await asyncio.gather(*(load.settle(key, at) for key in load.orders))
    amounts = [parse_usdc(one["amount"]) for one in await _payments(nodes) if one["status"] == "confirmed"]
    assert len(amounts) == len(set(amounts)), "an order was paid twice"

    # The list has exactly the payments that the database lacks
    known = pair.rows("SELECT tx_id FROM attempts")
    landed = pair.rows("SELECT tx_id FROM transactions WHERE type = 'payment' AND status = 'confirmed'")
    listed = await pair.events("transaction.forgotten")
    assert {one["tx_id"] for one in listed} == landed - known
    assert len(listed) == len(landed - known) > 0
    assert await pair.events("database.commits_lost") != []

    # Nothing new moves on any node until the operator has looked
    load.orders["new"] = {**load.orders["order-1"], "amount": "0.5"}
    for client in nodes.clients.values():
        error_of(await load.ask(client, "new"), 409, "restore_unacknowledged")
    said = await command("restore", "--gap-checked", "--data-dir", str(nodes.folder / "one"), **nodes.environment)
    assert all(one["tx_signature"] in said for one in listed)
    await pair.guarded(None)
    for client in nodes.clients.values():
        assert (await load.ask(client, "new")).json()["status"] == "confirmed"

    # A node that starts again knows that the loss was checked
    await nodes.start("one")
    await pair.guarded(None)
    print(
        f"{len(load.orders)} orders, {len(answered)} answered before the failover, {len(listed)} forgotten, "
        f"guard on both nodes {raised:.1f} s after the promotion"
    )


async def test_failover_to_a_synchronous_standby_raises_no_guard(pair: Pair, request: pytest.FixtureRequest) -> None:
    nodes, load, full = pair.nodes, pair.load, request.config.getoption("--full")
    pair.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    pair.primary.execute("SELECT pg_reload_conf()")
    working = asyncio.create_task(load.work(_CLIENTS * (4 if full else 1)))
    await asyncio.sleep(4.0 if full else 2.0)
    await asyncio.to_thread(pair.fail_over)
    promoted, before = time.monotonic(), len(load.answers)
    while len(load.answers) < before + 2 * _CLIENTS:  # noqa: ASYNC110 - other processes
        await asyncio.sleep(0.05)
    earlier_outcome = time.monotonic() - promoted
    load.working = False
    await working
    assert all(answer.status_code == 200 for answer in load.answers.values())
    paid = [one["amount"] for one in await _payments(nodes)]
    assert len(paid) == len(set(paid)) == len(load.orders)
    await pair.guarded(None)
    assert await pair.events("database.commits_lost") == await pair.events("transaction.forgotten") == []
    # Neither does a restart of the server
    await asyncio.to_thread(pair.standby.restart)
    load.orders["new"] = {**load.orders["order-1"], "amount": "0.5"}
    for at in range(2):
        assert (await load.settle("new", at)).status_code == 200
    await pair.guarded(None)
    assert await pair.events("database.commits_lost") == []
    print(f"{len(load.orders)} orders, payments went on {earlier_outcome:.1f} s after the promotion")


async def _payments(nodes: Nodes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await nodes.ok("GET", f"/v1/transactions?type=payment&limit=50{cursor}")
        found += page["data"]
        if not page["has_more"]:
            return found
        cursor = f"&cursor={page['next_cursor']}"
