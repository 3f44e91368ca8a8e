"""Brakes: local stops on a wallet's or organisation's transactions, kept until the chain itself refuses them."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import BigInteger, Connection, bindparam, delete, literal, select, union_all

from app.core.actors import Actor
from app.database.columns import upsert
from app.database.leases import node_is_alive
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all
from app.database.statements import rows
from app.store.keys import table as api_keys

BrakeKind = Literal["freeze", "pause", "session"]

REVOKED = "key"
"""Used in place of a brake's kind for a revoked API key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeRow:
    """A brake that `actor` requested at the Unix millisecond `since`.

    `node` is the node of the request, or the node that took the brake over. `scope` is the wallet's id or, for a whole
    organisation, the address of its Org account.
    """

    scope: str
    """A wallet's id, or the address of an Org account."""
    kind: BrakeKind
    """Kind of the brake: `freeze`, `pause` or `session`."""
    node: str = ""
    """Node that received the request or took the brake over; empty on SQLite."""
    org: str
    actor: Actor
    """Actor who requested the brake."""
    since: int


table = table_of(
    "brakes",
    BrakeRow,
    key=["scope", "kind", "node"],
)

# Built once: every payment runs it.
_KINDS = union_all(
    select(table.c.scope, table.c.kind).where(table.c.scope.in_((bindparam("org"), bindparam("wallet")))),
    select(api_keys.c.key_id, literal(REVOKED)).where(
        api_keys.c.key_id == bindparam("key"), api_keys.c.revoked_at <= bindparam("now", type_=BigInteger)
    ),
)


_ORPHANED = select(table).where(table.c.node != bindparam("by"), ~node_is_alive(table.c.node)).order_by(table.c.since)


def put_brake(connection: Connection, brake: BrakeRow) -> None:
    """Store a brake. It replaces a stored brake with the same scope, kind and node."""
    upsert(connection, table, columns_of(brake), keys=["scope", "kind", "node"])


def delete_brake(connection: Connection, brake: BrakeRow) -> None:
    """Delete the row that the brake's own node stored. The rows of other nodes for the same scope and kind stay."""
    mine = (table.c.scope == brake.scope, table.c.kind == brake.kind, table.c.node == brake.node)
    connection.execute(delete(table).where(*mine))


def orphaned_brakes(connection: Connection, node: str) -> list[BrakeRow]:
    """Return the brakes of dead nodes, oldest first; `node` is the calling node."""
    return fetch_all(connection, BrakeRow, _ORPHANED, {"by": node})


def all_brakes(connection: Connection) -> list[BrakeRow]:
    """Return every brake, oldest first."""
    return fetch_all(connection, BrakeRow, select(table).order_by(table.c.since))


def brakes_on(connection: Connection, org: str, wallet_id: str | None, key_id: str, now: int) -> set[tuple[str, str]]:
    """Return the scope and kind of each brake on an organisation and on one of its wallets.

    If the API key with this id is revoked at the Unix millisecond ``now``, it is included with the kind `REVOKED`. A
    `key_id` that belongs to no key adds nothing.
    """
    _, found = rows(connection, _KINDS, {"org": org, "wallet": wallet_id or org, "key": key_id, "now": now})
    return {(scope, kind) for scope, kind in found}
