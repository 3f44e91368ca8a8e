"""Leases: who does what only one node may do, for how long, and under which number its writes are accepted.

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
"""Milliseconds for which a lease is held after it was taken or renewed."""
NODE = "node/"
"""What the name of a lease begins with that a node holds on itself for as long as it lives."""

API = "api/"
"""Likewise, of a node that answers requests."""

table = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True, comment="a work that one node does, or a living node"),
    Column("holder", String, nullable=False, comment="the node's id"),
    Column("fencing", BigInteger, nullable=False, comment="a higher one for each holder"),
    Column("expires_at", BigInteger, nullable=False, comment="by the database's clock"),
)

_NOW = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as its holder knows it."""

    name: str
    holder: str
    fencing: int

    @property
    def term(self) -> str:
        """Its name and number, which nobody else has and which it has only this once."""
        return f"{self.name} {self.fencing}"


class LeaseLostError(StorageUnavailableError):
    """Another node has taken the lease under which something was to be written; nothing was."""


_held: ContextVar[Lease | None] = ContextVar("lease", default=None)


@contextmanager
def fenced_by(lease: Lease) -> Iterator[None]:
    """Have every write in this context, and in the tasks that it starts, refused once the lease is another's."""
    token = _held.set(lease)
    try:
        yield
    finally:
        _held.reset(token)


def required() -> Lease | None:
    """Return the lease under which this context writes, if it needs one.

    A lease changes hands only in a transaction like those that write, which follow one another: what a transaction
    finds held when it has begun is still so at its commit.
    """
    return _held.get()


def among(leases: Iterable[Lease]) -> Select[tuple[str]]:
    """Return the query for the terms of those leases that are still held as they are given here."""
    same = [
        (table.c.name == one.name) & (table.c.holder == one.holder) & (table.c.fencing == one.fencing) for one in leases
    ]
    return select(table.c.name + " " + cast(table.c.fencing, String)).where(or_(false(), *same))


def take(connection: Connection, name: str, holder: str, *, lifetime: int = LIFETIME) -> Lease | None:
    """Take a lease that is free; None if it is held. Call it in a transaction that follows all other writes."""
    number = connection.scalar(_TAKE, {"of": name, "by": holder, "for": lifetime})
    return None if number is None else Lease(name, holder, number)


def renew(connection: Connection, holder: str, *, lifetime: int = LIFETIME) -> set[Lease]:
    """Renew all leases of a node and return them."""
    return {Lease(*row) for row in connection.execute(_RENEW, {"by": holder, "for": lifetime})}


def alive(connection: Connection) -> set[str]:
    """Return the names of the leases that a node holds."""
    return {name for (name,) in rows(connection, _ALIVE, {})[1]}


def release(connection: Connection, holder: str) -> None:
    """Free all leases of a node; the numbers go on from where they are."""
    connection.execute(delete(table).where(table.c.name.in_((NODE + holder, API + holder))))
    connection.execute(update(table).where(table.c.holder == holder).values(expires_at=0))


def count_live_nodes(connection: Connection) -> int:
    """Return how many nodes live."""
    return sum(name.startswith(NODE) for name in alive(connection))


def node_is_alive(node: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that the node with this id lives."""
    return exists().where(table.c.name == NODE + node, table.c.expires_at > _NOW)


def delete_dead_nodes(connection: Connection, *, after: int) -> int:
    """Delete the leases of nodes that have been dead for so many milliseconds; returns their number."""
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
# Also one that has run out and that nobody has taken.
_RENEW = (
    update(table)
    .where(table.c.holder == bindparam("by"), table.c.expires_at > 0)
    .values(expires_at=_NOW + bindparam("for", type_=BigInteger))
    .returning(table.c.name, table.c.holder, table.c.fencing)
)
