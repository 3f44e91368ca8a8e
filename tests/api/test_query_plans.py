"""Every query by index: what the service asks, and what the databases make of it when the tables are large.

All is used over HTTP, as clients and people do, while each statement is noted; the rows are multiplied afterwards. On
PostgreSQL the statements then run again, and the rows count that they look at. SQLite, which keeps no statistics, says
beforehand what it will scan, in the service's file and in the indexer's.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from app.database.columns import metadata
from app.database.postgres.engine import engine_of
from app.server.application import operations
from app.server.gauges import Gauges
from indexer import schema
from tests.dashboard.browsing import Crafted, sign_in
from tests.dashboard.estate import furnish
from tests.dashboard.every_page import PAGES
from tests.support.escrows import A2A, agent
from tests.support.plans import SMALL, Asked, recorded, rows_read_on_postgresql, scans_on_sqlite
from tests.support.postgres import Cluster
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DONE: Mapping[str, Mapping[str, str]] = {
    "attempts": {"status": "'confirmed'"},
    "webhook_deliveries": {"status": "'delivered'"},
    "alert_mails": {"status": "'sent'"},
    "exports": {"status": "'expired'"},
    "escrows": {"status": "'released'", "due_at": "NULL", "receiver_owed": "false", "vault_owed": "false"},
    "allowances": {"status": "'settled'", "due_at": "NULL"},
    "approval_requests": {"decided_at": "created_at"},
    "approvals": {"state": "'used'"},
    "x402_payloads": {"closed_at": "1"},
    "topup_rules": {"enabled": "false"},
    "idempotency": {"state": "'done'", "expires_at": "created_at + 86400000"},
    "chain_transactions": {"finalized": "1"},
    "chain_token_accounts": {"vault": "'vault-' || g", "suspect": "0"},
}
"""What most rows of a long history have: it is done."""
_FAST = ("keeper_interval", "recovery_interval", "housekeeping_interval", "webhook_interval", "reconciliation_interval")
_CLONES = 10_000
_MOST = 1_000
"""Rows of a table that a statement may look at, a tenth of what is there."""
_IN_THE_BACKGROUND = ("policies.expiry <", "topup_rules", "escrows.due_at <=", "FROM request_log WHERE")
"""Parts of what the keeper and the housekeeping ask: once they have, their rounds were done."""
_EXCEPTIONS = {
    r"FROM wallets WHERE wallets\.org IN \(SELECT": "the reconciliation compares every wallet",
    r"LEFT OUTER JOIN alert_marks": "each wallet has thresholds of its own",
    r"count\(\*\) AS count_1 FROM transactions WHERE transactions\.org": "an export reads all that it counts",
    r"INSERT INTO (transaction_labels|spending) .*transactions\.org = ANY": "a database counts the rows of a day once",
    r"FROM request_log WHERE": "the log is short: a day, and so many requests of an organisation",
    r"FROM feed WHERE feed\.position >": "whoever follows the feed reads on from where it was",
    r"FROM approval_requests LEFT OUTER JOIN approvals .* = CASE": "a request's status follows from the time",
    r"FROM wallets .* = CASE WHEN wallets\.archived": "a wallet's status follows from the time",
    r"= \(SELECT count\(\*\) AS count_1 FROM wallet_tags": "several tags of a wallet are counted, newest wallet first",
    r"FROM policies LEFT OUTER JOIN policy_details .* NOT policies\.closed": "the list has all policies",
    r"count\(\*\) AS wallets, coalesce\(sum": "the dashboard adds up all wallets",
    r"FROM wallets .*ORDER BY .*wallets\.balance": "the dashboard sorts all wallets",
    r"FROM wallets .*wallet_details\.label ILIKE": "the dashboard searches all names of wallets",
}
"""Statements that look at many rows of a table, and why."""


def _growing() -> frozenset[str]:
    return frozenset({*metadata.tables, *schema.metadata.tables} - SMALL)


async def _use(world: ServiceWorld) -> None:
    """Use everything: each page, each list under each filter, and the work that is due without a request."""
    places = await furnish(world, ["one", "two"])
    paying, receiving = await agent(world), await agent(world)
    locked = await paying.lock(receiving)
    proof = {"proofType": "output_hash", "proof": f"sha256:{'0' * 64}"}
    await receiving.call("POST", f"{A2A}/{locked['escrow_id']}/complete", proof)
    path = f"/v1/wallets/{places['wallet_id']}"
    await world.ok("PUT", f"{path}/auto-topup", {"enabled": True, "triggerBelow": "1", "topupAmount": "2"})
    rules = {"balanceLow": {"threshold": "500", "emails": ["finance@example.com"]}, "velocitySpike": {"threshold": 15}}
    await world.ok("PUT", "/v1/alerts", rules)
    export = await world.ok("POST", "/v1/transactions/export", {"format": "json"})
    await world.ok("POST", f"/v1/policies/{places['policy_id']}/preview", {"maxPerTx": "1"})
    await world.ok("PATCH", f"/v1/policies/{places['policy_id']}", {"maxPerTx": "70"})
    payee = await world.payee()
    headers = {"Idempotency-Key": "once"}
    paid = (await world.pay(paying.wallet, payee, "1", headers=headers)).json()
    await world.pay(paying.wallet, payee, "1", headers=headers)
    known = {**places, "escrow_id": locked["escrow_id"], "export_id": export["export_id"], "tx_id": paid["tx_id"]}
    for name, listed in (("approval_id", "/v1/approvals"), ("recipient", "/v1/recipients")):
        found = (await world.ok("GET", listed))["data"]
        known[name] = next(iter(found[0].values())) if found else "none"
    document = (await world.client.get("/openapi.json")).json()
    for route in operations:
        if "GET" in (route.methods or ()):
            await _read(world, route.path.format_map(known), document["paths"][route.path]["get"], known)
    await world.ok("PATCH", f"/v1/wallets/{receiving.id}", {"status": "frozen"})
    await world.ok("POST", "/v1/organization/pause", {"paused": True})
    browser = Crafted(world, sign_in(world, "admin"))
    for page in PAGES:
        await browser.client.get("/dashboard" + page.path(places))
    for sought in (paid["tx_id"], payee, "example"):
        await browser.client.get(f"/dashboard?q={sought}")
    await Gauges(world.service).tick()


async def _read(world: ServiceWorld, path: str, described: Json, known: Mapping[str, str]) -> None:
    """Read a path: plainly, page after page, under each of its filters, and under all of them."""
    await world.call("GET", path)
    filters = {
        one["name"]: _value(one["name"], one["schema"], known)
        for one in described.get("parameters", ())
        if one["in"] == "query" and one["name"] not in {"limit", "cursor"}
    }
    for asked in (*([one] for one in filters.items()), list(filters.items())):
        query = "&".join(f"{name}={value}" for name, value in asked)
        page = (await world.call("GET", f"{path}?{query}&limit=1")).json()
        if page.get("next_cursor"):
            await world.call("GET", f"{path}?{query}&limit=1&cursor={page['next_cursor']}")


def _value(name: str, schema: Json, known: Mapping[str, str]) -> str:
    own = re.sub("([A-Z])", r"_\1", name).lower()
    values = schema.get("enum") or [one for part in schema.get("anyOf", ()) for one in part.get("enum", ())]
    if schema.get("type") == "boolean":
        values = ["true"]
    examples = [*schema.get("examples", ()), *([schema["example"]] if "example" in schema else [])]
    return str(known.get(own) or next(iter([*values, *examples]), "2026-01-01T00:00:00Z"))


def _fill(connection: Connection) -> None:
    """Multiply the rows of the tables that grow, each under names of its own."""
    found = inspect(connection)
    connection.execute(text("SET LOCAL session_replication_role = replica"))  # checks no foreign keys
    for table in sorted(_growing()):
        unique = {one for names in found.get_unique_constraints(table) for one in names["column_names"]}
        unique |= set(found.get_pk_constraint(table)["constrained_columns"])
        columns = [one for one in found.get_columns(table) if not (one["default"] or "").startswith("nextval")]
        done = _DONE.get(table, {})
        values = [done.get(one["name"]) or _clone(one["name"], str(one["type"]), unique) for one in columns]
        names = ", ".join(f'"{one["name"]}"' for one in columns)
        if not connection.scalar(text(f"SELECT EXISTS (SELECT FROM {table})")):
            made = ", ".join(_made(str(one["type"]), one["name"]) for one in columns)
            connection.execute(text(f"INSERT INTO {table} ({names}) SELECT {made}"))
        connection.execute(
            text(
                f"INSERT INTO {table} ({names}) SELECT {', '.join(values)} FROM (SELECT * FROM {table} LIMIT 20) s,"
                f" generate_series(1, {_CLONES} / greatest(1, (SELECT least(20, count(*)) FROM {table}))) g"
                " ON CONFLICT DO NOTHING"
            )
        )
    connection.execute(text("ANALYZE"))


def _made(kind: str, name: str) -> str:
    if name == "org":
        return "(SELECT org FROM organisations LIMIT 1)"
    if kind.startswith(("VARCHAR", "TEXT")):
        return f"'{name}'"
    return {"JSON": "'{}'::json", "BOOLEAN": "false", "BYTEA": "''::bytea"}.get(kind, "0")


def _clone(name: str, kind: str, unique: set[str]) -> str:
    if name in {"org", "log", "status", "type", "action", "severity", "role", "state"}:
        return f'"{name}"'
    if kind.startswith(("VARCHAR", "TEXT")):
        return f"\"{name}\" || '-' || g" + ("" if name in unique else " % 4000")
    if kind.startswith(("BIGINT", "INTEGER")):
        return (
            f'"{name}" + 1000000 + g'
            if name in unique
            else f'"{name}" - g * 100'
            if name.endswith("_at") or name == "timestamp"
            else f'"{name}"'
        )
    return f'"{name}"'


@asynccontextmanager
async def _used(folder: Path, dialect: str, **settings: Any) -> AsyncIterator[tuple[ServiceWorld, dict[str, Asked]]]:
    """A service of which everything was used, and what it asked its database."""
    fast: dict[str, Any] = {**dict.fromkeys(_FAST, 0.3), "keeper": True, "alerts": True, "reconciliation": True}
    mail = {"smtp_host": "127.0.0.1", "smtp_from": "vault@example.com"}
    with recorded(dialect) as asked:
        async with ServiceWorld(folder, **fast, **mail, **settings) as world:
            await _use(world)
            async with asyncio.timeout(30):
                while not all(any(part in one for one in asked) for part in _IN_THE_BACKGROUND):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            yield world, dict(asked)


def _unexplained(found: Mapping[str, Collection[str]]) -> list[str]:
    """The statements that read a whole table, and that no exception names."""
    return [
        f"{sorted(tables)}: {sql}"
        for sql, tables in found.items()
        if tables and not any(re.search(pattern, sql) for pattern in _EXCEPTIONS)
    ]


async def test_no_query_reads_a_whole_table_on_postgresql(cluster: Cluster, template: str, tmp_path: Path) -> None:
    url = cluster.url(cluster.database(template))
    async with _used(tmp_path, "postgresql", database_url=SecretStr(url)) as (_, asked):
        pass
    engine, found = engine_of(url), dict[str, set[str]]()
    with engine.begin() as connection:
        _fill(connection)
        for one in asked.values():
            with connection.begin_nested() as undone:
                # A row that is stored already is found by its key.
                with contextlib.suppress(IntegrityError):
                    read = rows_read_on_postgresql(connection, one)
                    sql = " ".join(one.sql.split())
                    found[sql] = {table for table, rows in read.items() if rows > _MOST and table in _growing()}
                undone.rollback()
    engine.dispose()

    assert len(asked) > 250
    assert not (left := _unexplained(found)), "\n".join(left)


@pytest.mark.sqlite("asks SQLite for its plans")
async def test_no_query_reads_a_whole_table_on_sqlite(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    async with _used(tmp_path, "sqlite") as (world, asked):
        for one in asked.values():
            scan = partial(scans_on_sqlite, asked=one, tables=_growing())
            own = world.service.indexer.store._connection if "chain_" in one.sql else None
            found[" ".join(one.sql.split())] = scan(own) if own else world.service.db.read_now(scan)

    assert len(asked) > 200
    assert not (left := _unexplained(found)), "\n".join(left)
