"""Applies rows to the read models, in the database transaction of whoever calls."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, select

from app.database.columns import upsert_later
from app.database.statements import rows as rows_of
from app.projection.batch import Batch
from app.projection.handlers import HANDLERS
from app.projection.rollbacks import CURSOR, ROLLED_BACK, changed_orgs, reset, undo
from app.store.guard import report_lost_commits
from app.store.read_tables import projection
from app.store.state_tables import organisations
from indexer import StoredEvent

_CURSORS = select(organisations.c.org, projection.c.position).outerjoin(
    projection, projection.c.name == CURSOR + organisations.c.org
)


def cursors_of(connection: Connection) -> dict[str, int]:
    """Return the id of the last applied row for each organisation of this service."""
    return {org: position or 0 for org, position in rows_of(connection, _CURSORS, {})[1]}


def moved(cursors: Mapping[str, int], last: int) -> dict[str, int]:
    """Return the cursors once all rows up to the id `last` are applied."""
    return {org: max(position, last) for org, position in cursors.items()}


def unapplied(rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> list[StoredEvent]:
    """Return those of the rows that are above their organisation's cursor."""
    return [row for row in rows if row.org is None or row.id > cursors.get(row.org, row.id)]


def apply(
    connection: Connection, rows: Sequence[StoredEvent], cursors: Mapping[str, int], last: int, *, fee_payer: str = ""
) -> bool | None:
    """Apply rows and move the cursors to `last`, or back to the start for organisations to be applied again.

    Returns whether no row has to be applied again. Does nothing and returns None if the cursors differ from these, by
    which the rows were chosen: another process has applied more or started again. With the service's ``fee_payer``,
    raises the guard for transactions of its own that have no attempt; rows that are applied again need no such look.
    """
    if cursors_of(connection) != cursors:
        return None
    reverted = [row for row in rows if row.name == ROLLED_BACK and undo(connection, row)]
    batch = Batch(connection, rows)
    batch.fee_payer = fee_payer
    for row in rows:
        if row.org is not None and row.name in HANDLERS:
            HANDLERS[row.name](batch, row)
    batch.flush()
    if batch.forgotten:
        report_lost_commits(connection, batch.forgotten)
    to = moved(cursors, last) | dict.fromkeys(batch.again, 0)
    positions = [{"name": CURSOR + org, "position": position} for org, position in to.items()]
    upsert_later(connection, projection, positions, keys=["name"])
    for org in changed_orgs(reverted):
        reset(connection, org)
    return not batch.again and not reverted


def restore(connection: Connection, rows: Sequence[StoredEvent], vaults: Collection[str]) -> bool:
    """Apply rows again, as far as they change these vaults; returns whether that must be done once more."""
    batch = Batch(connection, rows, only=vaults)
    for row in rows:
        if row.name in HANDLERS:
            HANDLERS[row.name](batch, row)
    batch.flush()
    return bool(batch.again)
