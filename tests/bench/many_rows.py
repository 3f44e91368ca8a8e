"""Compares an empty service with one of 100,000 wallets and a million transactions, on PostgreSQL.

By hand: `python -m tests.bench.many_rows [--wallets N] [--transactions N]`. SQL inserts the rows, no payment. For a
payment and for some reads: the different statements, with those of work that runs beside; the most rows of a table that
one of them looks at (by `EXPLAIN ANALYZE`, so a scan shows); and the median milliseconds, chain and client in the same
process.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress

import click
import structlog
from pydantic import SecretStr
from sqlalchemy import Connection, Engine, Table, text
from sqlalchemy.exc import IntegrityError

from app.database.postgres.engine import engine_of
from app.store.read_tables import transactions, wallets
from app.store.state_tables import wallet_details
from tests.bench.cluster import own_cluster
from tests.bench.tables import table
from tests.support.plans import recorded, rows_read_on_postgresql
from tests.support.service_world import Json, ServiceWorld

_TIMES = 15
_UNDER_NAMES = {"wallet_id", "vault", "tokens", "tx_id", "signature", "label", "agent_id"}
"""Columns in which each row has a text of its own."""


@contextmanager
def without_indexes(connection: Connection, kind: Table) -> Iterator[None]:
    """Drop the indexes of a table but for its key, and make them again once it is filled, which takes less time."""
    for index in kind.indexes:
        index.drop(connection)
    yield
    connection.execute(text("SET LOCAL maintenance_work_mem = '1GB'"))
    for index in kind.indexes:
        index.create(connection)


def fill(connection: Connection, kind: Table, rows: int, own: Mapping[str, str]) -> None:
    """Multiply a row of a table; `own` has expressions of the number `g` for further columns."""
    columns = [column.name for column in kind.columns]
    values = [own.get(name) or (_named(name, "g") if name in _UNDER_NAMES else f'"{name}"') for name in columns]
    names = ", ".join(f'"{name}"' for name in columns)
    source = f"(SELECT * FROM {kind.name} ORDER BY {kind.primary_key.columns[0].name} LIMIT 1) one"
    made = f"SELECT {', '.join(values)} FROM {source}, generate_series(1, {rows}) g"
    with without_indexes(connection, kind):
        connection.execute(text(f"INSERT INTO {kind.name} ({names}) {made} ON CONFLICT DO NOTHING"))


def _named(column: str, number: str) -> str:
    # Numbers of one length come in the order of the key.
    return f"{column} || '-' || to_char({number}, 'FM00000000')"


async def measured(
    engine: Engine, operations: Mapping[str, Callable[[], Awaitable[object]]]
) -> dict[str, tuple[int, int, float]]:
    """Return of each operation its different statements, the most rows that one looks at, and its milliseconds."""
    found = {}
    for name, operation in operations.items():
        with recorded("postgresql") as asked:
            await operation()
        most = 0
        with engine.begin() as connection:
            for one in asked.values():
                with connection.begin_nested() as undone:
                    # What is stored already is found by its key.
                    with suppress(IntegrityError):
                        most = max(most, *rows_read_on_postgresql(connection, one).values(), 0)
                    undone.rollback()
        times = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            await operation()
            times.append((time.perf_counter() - began) * 1000)
        found[name] = (len(asked), most, statistics.median(times))
    return found


def _operations(world: ServiceWorld, wallet: Json, payee: str) -> dict[str, Callable[[], Awaitable[object]]]:
    own = f"/v1/wallets/{wallet['wallet_id']}"
    paths = ("/v1/wallets?limit=100", own, f"{own}/transactions", "/v1/transactions?limit=100", "/v1/events")
    filtered = ("/v1/wallets?status=active", "/v1/transactions?type=payment&status=confirmed")

    def reading(path: str) -> Callable[[], Awaitable[object]]:
        return lambda: world.ok("GET", path)

    reads = {path.replace(wallet["wallet_id"], "ID"): reading(path) for path in (*paths, *filtered)}
    return {"payment": lambda: world.pay(wallet, payee, "0.001"), **reads}


async def run(count: int, paid: int) -> None:
    """Measure, fill, measure again, and print."""
    async with AsyncExitStack() as stack:
        cluster, folder = stack.enter_context(own_cluster())
        url = cluster.url(cluster.database(cluster.upgraded()))
        world = await stack.enter_async_context(ServiceWorld(folder, database_url=SecretStr(url)))
        engine = engine_of(url)
        stack.callback(engine.dispose)
        wallet, payee = await world.wallet(), await world.payee()
        await world.pay(wallet, payee, "1")
        operations = _operations(world, wallet, payee)
        empty = await measured(engine, operations)
        began = time.perf_counter()
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))  # checks no foreign keys
            fill(connection, wallet_details, count, {})
            fill(connection, wallets, count, {})
            spread = {"wallet_id": _named("wallet_id", f"1 + g % {count}"), "timestamp": "timestamp - g * 100"}
            fill(connection, transactions, paid, spread)
            connection.execute(text("ANALYZE"))
        sys.stdout.write(f"Filled in {time.perf_counter() - began:.0f} s.\n\n")
        full = await measured(engine, operations)
    rows = []
    for name in operations:
        cells = [f"{value:.1f}" if isinstance(value, float) else str(value) for value in (*empty[name], *full[name])]
        rows.append([name, *cells])
    heads = ["", *("empty: statements", "most rows", "ms"), f"{count} wallets: statements", "most rows", "ms"]
    sys.stdout.write(table(heads, rows))


@click.command()
@click.option("--wallets", "count", default=100_000, show_default=True, help="Wallets to insert.")
@click.option("--transactions", "paid", default=1_000_000, show_default=True, help="Transactions to insert.")
def main(count: int, paid: int) -> None:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asyncio.run(run(count, paid))


if __name__ == "__main__":
    main()
