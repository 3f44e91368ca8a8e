"""Two versions of the schema: an upgrade while the old version serves, and the new version next to it."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, inspect
from sqlalchemy.schema import CreateColumn

from app.commands.main import main
from app.core.money import parse_usdc
from app.core.paths import ConfigurationError
from app.database.migrations import REVISIONS
from app.database.postgres.database import PostgresDatabase
from app.database.postgres.engine import engine_of
from app.store.schema import tables
from tests.support.old_databases import create_old
from tests.support.postgres import Cluster
from tests.support.processes import free_ports, running, serving
from tests.support.warm import COMMAND_LINE

_OLD_CODE = f"""
from app.database import migrations
migrations.REVISIONS = migrations.REVISIONS[:-1]
{COMMAND_LINE}
"""
"""Runs the command line as the version before the newest revision."""
_CLIENTS = 2
_PACE = 0.1
"""Seconds between two payments of a client: the load is there all the time, without keeping the next start waiting."""
_REFUSAL = f"its schema is {REVISIONS[-2]}; this version needs {REVISIONS[-1]}: run `agent-vault db upgrade`"


class Orders:
    """Payments of a cent under keys of their own, made by several clients through any node until told to stop."""

    def __init__(self, wallet_id: str, payee: str) -> None:
        self._body = {"walletId": wallet_id, "to": payee, "amount": "0.01", "currency": "USDC"}
        self.nodes: list[httpx.AsyncClient] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.stopped = False

    async def run(self, client: int) -> None:
        number = 0
        while not self.stopped:
            number += 1
            key = f"{client}/{number}"
            self.answers[key] = await self.pay(key, number)
            await asyncio.sleep(_PACE)

    async def pay(self, key: str, at: int) -> dict[str, Any]:
        """Pay, again as long as the service cannot tell."""
        async with asyncio.timeout(30):
            while True:
                node = self.nodes[at % len(self.nodes)]
                answer = await node.post("/v1/payments", json=self._body, headers={"Idempotency-Key": key})
                found: dict[str, Any] = answer.json()
                if answer.status_code == 200 and found["status"] == "confirmed":
                    return found
                assert answer.status_code in {200, 409, 503}, answer.text
                await asyncio.sleep(0.05)

    async def more(self, count: int) -> None:
        """Wait until so many further payments were answered."""
        wanted = len(self.answers) + count
        async with asyncio.timeout(30):
            while len(self.answers) < wanted:  # noqa: ASYNC110 - the clients only note their answers
                await asyncio.sleep(0.02)


def _add_newest_schema(connection: Connection) -> None:
    """Add the newest revision's tables and columns, because the code of this version plays the old one."""
    found = inspect(connection)
    for table in tables().sorted_tables:
        if found.has_table(table.name):
            stored = {one["name"] for one in found.get_columns(table.name)}
            for column in table.columns:
                if column.name not in stored:
                    added = CreateColumn(column).compile(dialect=connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {added}")
        else:
            table.create(connection)


async def _listed(client: httpx.AsyncClient) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        page = (await client.get(f"/v1/transactions?type=payment&limit=100{cursor}")).json()
        found += [one["tx_id"] for one in page["data"]]
        if not page["has_more"]:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def test_upgrade_under_load_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    # Given a database of the version before, on which the new version refuses to serve
    name = cluster.database()
    given = {"AGENT_VAULT_DATABASE_URL": cluster.url(name), "AGENT_VAULT_RATE_LIMIT": "0"}
    engine = engine_of(cluster.url(name))
    with engine.begin() as connection:
        create_old(connection, REVISIONS[-2])
        _add_newest_schema(connection)
    engine.dispose()
    with pytest.raises(ConfigurationError, match=_REFUSAL):
        PostgresDatabase(cluster.url(name))

    async with contextlib.AsyncExitStack() as stack:
        # And the old version, which answers payments
        old = await stack.enter_async_context(serving(tmp_path / "old", _OLD_CODE, **given))
        payer, payee = [
            (
                await old.client.post("/v1/wallets", json={"agentId": one, "label": one, "policyId": "pol_permissive"})
            ).json()
            for one in ("payer", "payee")
        ]
        funding = await old.client.post(f"/v1/wallets/{payer['wallet_id']}/fund", json={"amount": "50"})
        assert funding.status_code == 200, funding.text
        before = len(await _listed(old.client))
        orders = Orders(payer["wallet_id"], payee["chain_address"])
        orders.nodes = [old.client]
        async with asyncio.TaskGroup() as clients:
            for number in range(_CLIENTS):
                clients.create_task(orders.run(number))
            await orders.more(8)

            # When the schema is upgraded meanwhile, and the new version starts next to the old one
            said = await asyncio.to_thread(CliRunner().invoke, main, ["db", "upgrade"], env=given)
            assert f"the schema is now {REVISIONS[-1]}, it was {REVISIONS[-2]}" in said.output
            await orders.more(8)
            port, _ = free_ports()
            keys = {"AGENT_VAULT_KEYS_DIR": str(tmp_path / "old" / "keys"), **given}
            options = ("serve", "--data-dir", str(tmp_path / "new"), "--rpc-url", old.rpc, "--port", str(port))
            await stack.enter_async_context(running(COMMAND_LINE, *options, until=b"Agent Vault serves", **keys))
            headers = dict(old.client.headers)
            new = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20)
            )
            orders.nodes = [old.client, new]
            await orders.more(8)
            orders.stopped = True

        # Then each order was paid once, whichever version is asked, and all of it is in the books
        paid = {one["tx_id"] for one in orders.answers.values()}
        assert len(paid) == len(orders.answers) >= 24
        for at, (key, answer) in enumerate(orders.answers.items()):
            assert (await orders.pay(key, at))["tx_id"] == answer["tx_id"]
        for client in orders.nodes:
            listed = await _listed(client)
            assert len(listed) == len(set(listed)) == before + len(paid)
            assert paid <= set(listed)
            spent = await client.get(f"/v1/wallets/{payer['wallet_id']}")
            assert parse_usdc(spent.json()["usdc_balance"]) == parse_usdc("50") - len(paid) * parse_usdc("0.01")
    columns = "SELECT table_name FROM information_schema.columns WHERE column_name = 'invited_by'"
    assert cluster.execute(columns, name) == [("invitations",)]
