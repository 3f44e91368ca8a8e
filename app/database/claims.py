"""Claims divide shared work, such as webhook deliveries, among nodes. Each node processes only its claimed rows.

A claim is valid while its node is alive. If only one process serves, no claims are needed.
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
    Column("kind", String, primary_key=True, doc="the name of the claimed row's table"),
    Column("id", String, primary_key=True, doc="the key of the claimed row"),
    Column("node", String, nullable=False),
)

_MINE = (table.c.kind == bindparam("in_table"), table.c.id == bindparam("of"), table.c.node == bindparam("by"))
_HELD = select(exists().where(*_MINE))
_RELEASE = delete(table).where(*_MINE)


def claim(connection: Connection, key: Column[str], due: Select[Any], node: str) -> list[str]:
    """Claim the due rows that no other living node has claimed, and return their keys.

    `due` is the query for the keys of the due rows. Rows that another node is claiming at the same time are skipped.
    Rows that this node has claimed earlier are included.
    """
    kind = key.table.name
    other = and_(table.c.kind == kind, table.c.id == key, table.c.node != node, node_is_alive(table.c.node))
    chosen = due.where(~exists().where(other)).with_for_update(skip_locked=True, of=key.table).subquery()
    rows = insert(table).from_select(["kind", "id", "node"], select(literal(kind), chosen.c[0], literal(node)))
    taken = rows.on_conflict_do_update(
        index_elements=["kind", "id"],
        set_={"node": rows.excluded.node},
        # Check again on the newest version of the claim, because another node may have claimed the row after this
        # statement began. The column is written as SQL text, because SQLAlchemy does not correlate a subquery with the
        # table of an INSERT. The subquery would otherwise search all claims.
        where=(table.c.node == node) | ~node_is_alive(literal_column("claims.node", String)),
    )
    return list(connection.scalars(taken.returning(table.c.id)))


def holds(connection: Connection, kind: str, key: str, node: str) -> bool:
    """Return True if the node has claimed the row with this key in the table `kind`."""
    return bool(connection.scalar(_HELD, {"in_table": kind, "of": key, "by": node}))


def release(connection: Connection, kind: str, key: str, node: str) -> None:
    """Release a node's claim of the row with this key in the table `kind`."""
    connection.execute(_RELEASE, {"in_table": kind, "of": key, "by": node})


def delete_claims_of_dead_nodes(connection: Connection) -> None:
    """Delete the claims of dead nodes."""
    connection.execute(delete(table).where(~node_is_alive(table.c.node)))
