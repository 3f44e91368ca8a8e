"""The service's database statements, and their query plans on large tables."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from app.database.postgres._statements import Sender, StatementResult
from app.database.statements import CompiledQuery, Prepared, run_numbered

_READS = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b(?!.*\bpg_(?:catalog|advisory))", re.DOTALL)
_VALUE = r"(?:\?|%\(\w+\)s(?:::\w+)?|\$\d+(?:::\w+)?)"
_VALUES = re.compile(rf"(?:, )?{_VALUE}(?:, {_VALUE})+")
_SCAN = re.compile(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?")
_PARTIAL = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
_ALIAS = re.compile(r'(?:FROM|JOIN|UPDATE|INTO)\s+"?(\w+)"?(?:\s+AS)?\s+(\w+)')


SMALL = frozenset(
    {
        # Each organisation, or each of its people, webhooks or rules, has one row or a few in these tables.
        *("organisations", "reserves", "projection", "brakes", "setting_values", "webhooks", "domains", "leases"),
        "slack_channels",
        *("people", "passkeys", "identities", "challenges", "openid_requests", "invitations", "browser_sessions"),
        *("alert_rules", "audit_heads", "differences", "claims", "x402_facilitators", "api_keys", "schema_versions"),
        *("budgets", "budget_details", "chain_cursors", "chain_holes", "chain_unread_allowances", "alembic_version"),
        "export_chunks",
    }
)
"""Tables that do not grow with wallets, payments and time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A statement and the values of one execution of it."""

    sql: str
    values: Any
    numbered: bool = False
    """True if the statement has numbered placeholders, such as `$1`, because it bypasses SQLAlchemy."""


@contextmanager
def recorded(dialect: str) -> Iterator[dict[str, Asked]]:
    """Collect each distinct statement on tables inside the context, including statements that bypass SQLAlchemy."""
    found: dict[str, Asked] = {}

    def note(asked: Asked) -> None:
        if _READS.match(asked.sql):
            # Statements that differ only in the length of a list of values count as the same.
            found[_VALUES.sub("?, ?", asked.sql)] = asked

    def listen(conn: Connection, sql: str, values: Any) -> None:
        if conn.dialect.name == dialect:
            note(Asked(sql, values))

    run = Sender.run

    def sent(self: Sender, sql: str, values: Sequence[Any] = ()) -> StatementResult:
        if dialect == "postgresql":
            note(Asked(sql, values, numbered=True))
        return run(self, sql, values)

    with pytest.MonkeyPatch.context() as patch, listening(listen):
        patch.setattr(Sender, "run", sent)
        yield found


@contextmanager
def listening(note: Callable[[Connection, str, Any], object]) -> Iterator[None]:
    """Call `note` before each statement runs, with the connection, the statement and its first row of values.

    Covers statements run by SQLAlchemy and by SQLite's driver.
    """
    execute, returned, read = Prepared.execute, Prepared.returned, CompiledQuery.rows

    def listen(conn: Connection, _cursor: Any, sql: str, values: Any, _context: Any, many: bool) -> None:
        note(conn, sql, values[0] if many else values)

    def noting(run: Callable[..., Any]) -> Callable[..., Any]:
        def executed(self: Prepared, connection: Connection, rows: Sequence[Any]) -> Any:
            if connection.dialect.name == "sqlite":
                note(connection, self._sql, self._values(rows[0]))
            return run(self, connection, rows)

        return executed

    def queried(self: CompiledQuery, connection: Connection, row: Any) -> Any:
        if connection.dialect.name == "sqlite":
            note(connection, self._sql, self._values(row))
        return read(self, connection, row)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Prepared, "execute", noting(execute))
            patch.setattr(Prepared, "returned", noting(returned))
            patch.setattr(CompiledQuery, "rows", queried)
            yield
    finally:
        event.remove(Engine, "before_cursor_execute", listen)


def explained(connection: Connection, work: Callable[[], object]) -> list[str]:
    """Return SQLite's plans for the statements that `work` runs on a connection."""
    plans: list[str] = []

    def note(_conn: Connection, statement: str, values: Any) -> None:
        cursor = connection.connection.cursor()
        plans.extend(str(one[3]) for one in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values))

    with listening(note):
        work()
    return plans


def rows_read_on_postgresql(connection: Connection, asked: Asked) -> dict[str, int]:
    """Run a statement that the caller rolls back, and return the number of rows that PostgreSQL read from each table.

    With sequential scans disabled, PostgreSQL reads a whole table only if an index is missing.
    """
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    explain = f"EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) {asked.sql}"
    if asked.numbered:
        rows = run_numbered(connection, explain, asked.values).fetchone()[0]
    else:
        rows = connection.exec_driver_sql(explain, asked.values).scalar()
    found: dict[str, int] = {}
    for table, count in _read(json.loads(str(rows)) if isinstance(rows, str) else rows[0]["Plan"]):
        found[table] = max(found.get(table, 0), count)
    return found


def _read(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    if "Relation Name" in node and node["Node Type"] != "ModifyTable":
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield node["Relation Name"], int((node["Actual Rows"] + removed) * node["Actual Loops"])
    for one in node.get("Plans", ()):
        yield from _read(one)


def scans_on_sqlite(connection: Connection, asked: Asked, tables: frozenset[str]) -> set[str]:
    """Return the members of `tables` that SQLite plans to read completely.

    Ordered scans with a LIMIT and scans of a partial index do not count.
    """
    partial = set(connection.exec_driver_sql(_PARTIAL).scalars())
    aliases = {alias: table for table, alias in _ALIAS.findall(asked.sql)}
    found = set()
    for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked.sql}", asked.values):
        if (scan := _SCAN.match(str(row[3]))) is None:
            continue
        in_order = scan[2] is not None and " LIMIT " in re.sub(r"\s", " ", asked.sql)
        table = scan[1] if scan[1] in tables else aliases.get(scan[1], scan[1])
        if table in tables and not in_order and scan[2] not in partial:
            found.add(table)
    return found
