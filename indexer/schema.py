"""The indexer's tables. They are the same in its own file and in the service's PostgreSQL database."""

import json
import time
from typing import Any

from solders.pubkey import Pubkey
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Index,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    column,
    func,
    insert,
    literal_column,
    table,
    text,
    update,
)
from sqlalchemy.types import TypeDecorator

from app.database.columns import SERIAL
from app.database.statements import execute

VERSION = 3
"""The schema's version. A file with another version is emptied, because the chain has all of its contents."""
NO, YES = literal_column("0", BigInteger), literal_column("1", BigInteger)
"""Values of flags as literals in a statement. With parameters, the databases would not use partial indexes."""

metadata = MetaData()


class _Json(TypeDecorator[dict[str, Any]]):
    """A dictionary as JSON, with addresses as base58 and other bytes as hex."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        """Return the JSON text of a dictionary."""
        return json.dumps(value, default=_plain, separators=(",", ":"))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        """Return the dictionary in a JSON text."""
        return json.loads(value)


def _plain(value: Any) -> str:
    if isinstance(value, Pubkey):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"an event cannot hold a {type(value).__name__}")


def _text(name: str, **options: Any) -> Column[str]:
    return Column(name, Text, **{"nullable": False, **options})


def _number(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, **{"nullable": False, **options})


def _flag(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def _partial(name: str, condition: ColumnElement[bool], *columns: Column[Any]) -> None:
    Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


transactions = Table(
    "chain_transactions",
    metadata,
    _text("signature", primary_key=True),
    _number("slot"),
    _number("block_time"),
    _text("fee_payer"),
    _text("message_hash"),
    _flag("finalized"),
)
_of = transactions.c
_partial("chain_transactions_to_finalize", _of.finalized == NO, _of.slot, _of.signature)
_partial("chain_transactions_final", _of.finalized == YES, _of.slot)
# Only services with several nodes search by message hash.
Index("chain_transactions_by_message", _of.message_hash).ddl_if(dialect="postgresql")

# `id` grows in the order of storing, so readers use it as their cursor. A row with `instruction` -1 is not an event of
# the program. It is a deposit, an observed balance, the outflow of a settled allowance, or the removal of a transaction
# that was rolled back or is stored again.
events = Table(
    "chain_events",
    metadata,
    Column("id", SERIAL, primary_key=True),
    _text("signature"),
    _number("instruction"),
    _number("inner"),
    _number("slot"),
    _text("name"),
    _text("org", nullable=True),
    Column("data", _Json, nullable=False),
    UniqueConstraint("signature", "instruction", "inner"),
    sqlite_autoincrement=True,
)

# Vaults and organisations number their events from 1. If `last` differs from `count`, an event is missing.
streams = Table("chain_streams", metadata, _text("stream", primary_key=True), _number("last"), _number("count"))
_partial("chain_streams_with_gaps", streams.c.last != streams.c.count, streams.c.stream)

cursors = Table("chain_cursors", metadata, _text("name", primary_key=True), _text("signature"))

# Parts of the program's history that no node has served: the last transaction before the part that is stored or
# unreadable, its slot, and the slot where the history continues.
holes = Table("chain_holes", metadata, _text("after", primary_key=True), _number("after_slot"), _number("before_slot"))

# Unreadable transactions of the program; `since` and `retry_at` are Unix seconds.
transaction_holes = Table(
    "chain_transaction_holes",
    metadata,
    _text("signature", primary_key=True),
    _number("slot"),
    _text("reason"),
    _number("since"),
    _number("retry_at"),
    Index("chain_transaction_holes_due", "retry_at"),
    Index("chain_transaction_holes_by_age", "since", "signature"),
)

# Token accounts of vaults and reserves (`vault` is null). A `suspect` account may lack transactions.
token_accounts = Table(
    "chain_token_accounts",
    metadata,
    _text("address", primary_key=True),
    _text("org"),
    _text("vault", nullable=True),
    _number("balance", nullable=True),
    _number("slot"),
    _flag("suspect"),
    Index("chain_token_accounts_by_vault", "vault"),
    Index("chain_token_accounts_by_org", "org"),
)
_partial("chain_token_accounts_suspect", token_accounts.c.suspect == YES, token_accounts.c.address)

allowances = Table(
    "chain_allowances",
    metadata,
    _text("address", primary_key=True),
    _text("tokens"),
    _text("granted"),
    Index("chain_allowances_by_tokens", "tokens"),
)

# Settlements of allowances, by their place in a transaction, until the token account has been read.
unread_allowances = Table(
    "chain_unread_allowances",
    metadata,
    _text("signature", primary_key=True),
    _number("instruction", primary_key=True),
    _number("inner", primary_key=True),
)

_last_ids = table("sqlite_sequence", column("name", Text), column("seq", BigInteger))


def prepare(connection: Connection) -> None:
    """Create the tables of a SQLite file, within a transaction, and drop the tables of another version."""
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if version != VERSION:
        old = MetaData()
        old.reflect(connection)
        old.drop_all(connection)
        metadata.create_all(connection)
        connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")
    # New ids must exceed all earlier ones, even from a deleted file or from commits lost in a crash. Then a reader that
    # remembers an id sees restored rows as new.
    now = time.time_ns() // 1000
    of_events = _last_ids.c.name == events.name
    if not execute(connection, update(_last_ids).where(of_events).values(seq=func.max(_last_ids.c.seq, now)), {}):
        execute(connection, insert(_last_ids), {"name": events.name, "seq": now})
