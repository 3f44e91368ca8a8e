"""Leases. A lease is one node's right to run a job, with an expiry and a fencing number that protects writes.

Times are Unix milliseconds of the database's clock, so that the clocks of the nodes need not agree.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Select,
    String,
    Table,
    bindparam,
    cast,
    delete,
    exists,
    extract,
    false,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from app.core.errors import StorageUnavailableError
from app.database.columns import metadata
from app.database.statements import rows

LIFETIME = 6_000
"""Milliseconds that a lease lasts after it was taken or renewed."""
NODE = "node/"
"""Prefix of the name of the lease that a node holds on itself while it is alive."""

API = "api/"
"""Prefix of the name of a second lease that a node holds on itself if it serves the API."""

table = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True, doc="a job that one node runs, or a living node"),
    Column("holder", String, nullable=False, doc="the node's id"),
    Column("fencing", BigInteger, nullable=False, doc="increases with each holder"),
    Column("expires_at", BigInteger, nullable=False, doc="by the database's clock"),
)

_NOW = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease with the holder and fencing number that its holder knows."""

    name: str
    holder: str
    fencing: int

    @property
    def term(self) -> str:
        """The name and fencing number, which together are unique: a later holder gets a higher fencing number."""
        return f"{self.name} {self.fencing}"


class LeaseLostError(StorageUnavailableError):
    """Another node has taken the lease that a write needs. Nothing was written."""


_held: ContextVar[Lease | None] = ContextVar("lease", default=None)


@contextmanager
def fenced_by(lease: Lease) -> Iterator[None]:
    """Refuse the writes of this context, and of the tasks that it starts, once another node has taken the lease.

    Statements of `Database.write_unordered` are not refused.
    """
    token = _held.set(lease)
    try:
        yield
    finally:
        _held.reset(token)


def required() -> Lease | None:
    """Return the lease that the writes of this context need, or None if they need none.

    A lease gets a new holder only in a writing transaction, and writing transactions are serialized. If the lease is
    held at the start of a transaction, it is therefore still held at the commit.
    """
    return _held.get()


def among(leases: Iterable[Lease]) -> Select[tuple[str]]:
    """Return the query for the terms of the given leases that still have the same holder and fencing number."""
    same = [
        (table.c.name == one.name) & (table.c.holder == one.holder) & (table.c.fencing == one.fencing) for one in leases
    ]
    return select(table.c.name + " " + cast(table.c.fencing, String)).where(or_(false(), *same))


def take(connection: Connection, name: str, holder: str, *, lifetime: int = LIFETIME) -> Lease | None:
    """Take a lease if it is free; otherwise return None. The transaction must be serialized with all other writes."""
    number = connection.scalar(_TAKE, {"of": name, "by": holder, "for": lifetime})
    return None if number is None else Lease(name, holder, number)


def renew(connection: Connection, holder: str, *, lifetime: int = LIFETIME) -> set[Lease]:
    """Renew all leases of a node and return them."""
    return {Lease(*row) for row in connection.execute(_RENEW, {"by": holder, "for": lifetime})}


def alive(connection: Connection) -> set[str]:
    """Return the names of the leases that any node holds now."""
    return {name for (name,) in rows(connection, _ALIVE, {})[1]}


def release(connection: Connection, holder: str) -> None:
    """Free all leases of a node. The next holder of each job still gets a higher fencing number."""
    connection.execute(delete(table).where(table.c.name.in_((NODE + holder, API + holder))))
    connection.execute(update(table).where(table.c.holder == holder).values(expires_at=0))


def count_live_nodes(connection: Connection) -> int:
    """Return the number of living nodes."""
    return sum(name.startswith(NODE) for name in alive(connection))


def node_is_alive(node: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that the node with this id is alive."""
    return exists().where(table.c.name == NODE + node, table.c.expires_at > _NOW)


def delete_dead_nodes(connection: Connection, *, after: int) -> int:
    """Delete the leases of nodes dead for `after` milliseconds, and return the number of deleted leases."""
    dead = (table.c.name.startswith(NODE) | table.c.name.startswith(API)) & (table.c.expires_at < _NOW - after)
    return connection.execute(delete(table).where(dead)).rowcount


_ALIVE = select(table.c.name).where(table.c.expires_at > _NOW)
_NEW = insert(table).values(
    name=bindparam("of"), holder=bindparam("by"), fencing=1, expires_at=_NOW + bindparam("for", type_=BigInteger)
)
_TAKE = _NEW.on_conflict_do_update(
    index_elements=["name"],
    set_={
        "holder": _NEW.excluded.holder,
        "fencing": table.c.fencing + 1,
        "expires_at": _NEW.excluded.expires_at,
    },
    where=table.c.expires_at <= _NOW,
).returning(table.c.fencing)
# This includes expired leases that no other node has taken.
_RENEW = (
    update(table)
    .where(table.c.holder == bindparam("by"), table.c.expires_at > 0)
    .values(expires_at=_NOW + bindparam("for", type_=BigInteger))
    .returning(table.c.name, table.c.holder, table.c.fencing)
)
