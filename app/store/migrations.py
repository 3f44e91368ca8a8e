"""Brings a database to the schema of this version."""

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, String, Table, insert, inspect, select
from sqlalchemy.schema import CreateColumn

from app.store import (
    alert_mails,
    alerts,
    approval_requests,
    deliveries,
    delivery_attempts,
    exports,
    keys,
    read_tables,
    state_tables,
    topups,
    webhooks,
)
from app.store.columns import metadata

applied_migrations = Table(
    "applied_migrations",
    metadata,
    Column("name", String, primary_key=True),
    Column("applied_at", BigInteger, nullable=False),
)

Migration = Callable[[Connection], None]


def _add_columns(connection: Connection, *columns: Column[Any]) -> None:
    """Add columns that are not there yet: an earlier migration makes its tables as they are now."""
    for column in columns:
        if column.name not in {one["name"] for one in inspect(connection).get_columns(column.table.name)}:
            definition = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {definition}")


def _add_indexes(connection: Connection, table: Table) -> None:
    """Add a table's indexes that are not there yet."""
    for index in table.indexes:
        index.create(connection, checkfirst=True)


def _escrows(connection: Connection) -> None:
    read_tables.escrows.create(connection)
    state_tables.escrow_details.create(connection)
    _add_columns(connection, read_tables.wallets.c.escrow_counter, read_tables.feed.c.other_wallet_id)
    _add_indexes(connection, read_tables.feed)


def _webhooks(connection: Connection) -> None:
    for table in (webhooks.table, deliveries.table, delivery_attempts.table):
        table.create(connection)


def _alerts(connection: Connection) -> None:
    for table in (alerts.rules, alerts.marks, alert_mails.table):
        table.create(connection)


def _kinds_of_approvals(connection: Connection) -> None:
    _add_columns(connection, approval_requests.approval_requests.c.for_escrow, read_tables.approvals.c.for_escrow)


def _output_commitments(connection: Connection) -> None:
    _add_columns(connection, read_tables.escrows.c.output_commitment, state_tables.escrow_details.c.expected_output)


def _exports_by_end(connection: Connection) -> None:
    _add_columns(connection, exports.exports.c.created_under)
    _add_indexes(connection, exports.exports)


def _undecided_requests(connection: Connection) -> None:
    (index,) = (one for one in approval_requests.table.indexes if one.name == "approval_requests_undecided")
    index.create(connection, checkfirst=True)


def _escrows_by_wallet_and_status(connection: Connection) -> None:
    for index in read_tables.escrows.indexes:
        if index.name in {"escrows_by_wallet_status", "escrows_by_receiver_status"}:
            index.create(connection, checkfirst=True)


def _mails_by_organisation(connection: Connection) -> None:
    _add_columns(connection, alert_mails.table.c.org, alert_mails.table.c.type)
    connection.exec_driver_sql("DROP INDEX IF EXISTS alert_mails_by_recipient")
    _add_indexes(connection, alert_mails.table)


def _merged_lists(connection: Connection) -> None:
    # `transactions_by_recipient` is another one now, of the same name.
    replaced = (
        *(f"transactions_by_{name}" for name in ("status", "type", "recipient", "recipient_address")),
        *(f"feed_by_{name}" for name in ("type", "severity", "other_wallet")),
    )
    for name in replaced:
        connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
    for table in (read_tables.transactions, read_tables.feed):
        _add_indexes(connection, table)


def _tags_by_wallet(connection: Connection) -> None:
    connection.exec_driver_sql("DROP INDEX IF EXISTS wallet_tags_by_tag")


MIGRATIONS: dict[str, Migration] = {
    "topup_rules": topups.topup_rules.create,
    "approval_requests": approval_requests.approval_requests.create,
    "escrows": _escrows,
    "exports": exports.exports.create,
    "webhooks": _webhooks,
    "alerts": _alerts,
    "made_keys": keys.made_keys.create,
    "undecided_requests": _undecided_requests,
    "escrows_by_wallet_and_status": _escrows_by_wallet_and_status,
    "kinds_of_approvals": _kinds_of_approvals,
    "output_commitments": _output_commitments,
    "exports_by_end": _exports_by_end,
    "mails_by_organisation": _mails_by_organisation,
    "merged_lists": _merged_lists,
    "tags_by_wallet": _tags_by_wallet,
}
"""Changes since the first schema, oldest first. Each runs once, in the transaction that records it."""

TABLES = (
    state_tables,
    read_tables,
    topups,
    approval_requests,
    exports,
    webhooks,
    deliveries,
    delivery_attempts,
    alerts,
    alert_mails,
    keys,
)
"""The modules whose tables make up the newest schema."""


def migrate(connection: Connection, migrations: dict[str, Migration] | None = None) -> list[str]:
    """Create the newest schema in an empty database, or apply to an older one what it lacks.

    Returns the names of the migrations that ran.
    """
    wanted = MIGRATIONS if migrations is None else migrations
    if not inspect(connection).has_table(applied_migrations.name):
        metadata.create_all(connection)
        _record(connection, list(wanted))
        return []
    done = set(connection.scalars(select(applied_migrations.c.name)))
    missing = [name for name in wanted if name not in done]
    for name in missing:
        wanted[name](connection)
        _record(connection, [name])
    return missing


def _record(connection: Connection, names: list[str]) -> None:
    rows = [{"name": name, "applied_at": int(time.time() * 1000)} for name in names]
    if rows:
        connection.execute(insert(applied_migrations), rows)
