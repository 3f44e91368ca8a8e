"""Claims: what several nodes do at the same time, such as sending to webhooks, each node does with what it claims.

A claim holds for as long as its node lives. Where one process serves, nothing has to be claimed.
"""

from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Select,
    String,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from app.database.columns import metadata
from app.database.leases import node_is_alive

table = Table(
    "claims",
    metadata,
    Column("kind", String, primary_key=True, comment="the table that has the row"),
    Column("id", String, primary_key=True, comment="of the row there"),
    Column("node", String, nullable=False),
)

_MINE = (table.c.kind == bindparam("in_table"), table.c.id == bindparam("of"), table.c.node == bindparam("by"))
_HELD = select(exists().where(*_MINE))
_RELEASE = delete(table).where(*_MINE)


def claim(connection: Connection, key: Column[str], due: Select[Any], node: str) -> list[str]:
    """Claim the rows of `due`, a query of keys, that no other living node has; returns their keys.

    Rows that another node is claiming at this moment are passed over. Those that the node has already are among them.
    """
    kind = key.table.name
    other = and_(table.c.kind == kind, table.c.id == key, table.c.node != node, node_is_alive(table.c.node))
    chosen = due.where(~exists().where(other)).with_for_update(skip_locked=True, of=key.table).subquery()
    rows = insert(table).from_select(["kind", "id", "node"], select(literal(kind), chosen.c[0], literal(node)))
    taken = rows.on_conflict_do_update(
        index_elements=["kind", "id"],
        set_={"node": rows.excluded.node},
        # Asked again of the newest row: another may have claimed it after this statement began.
        # As a text, because SQLAlchemy would look through all claims: it relates no subquery to the table of an INSERT.
        where=(table.c.node == node) | ~node_is_alive(literal_column("claims.node", String)),
    )
    return list(connection.scalars(taken.returning(table.c.id)))


def holds(connection: Connection, kind: str, key: str, node: str) -> bool:
    """Return whether a node has a claim."""
    return bool(connection.scalar(_HELD, {"in_table": kind, "of": key, "by": node}))


def release(connection: Connection, kind: str, key: str, node: str) -> None:
    """Release a claim of a node."""
    connection.execute(_RELEASE, {"in_table": kind, "of": key, "by": node})


def delete_claims_of_dead_nodes(connection: Connection) -> None:
    """Delete the claims of dead nodes."""
    connection.execute(delete(table).where(~node_is_alive(table.c.node)))
