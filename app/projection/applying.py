"""Applies rows to the read models, in the caller's database transaction."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, select

from app.database.columns import upsert_later
from app.database.statements import rows as rows_of
from app.projection.batch import Batch
from app.projection.handlers import HANDLERS
from app.projection.rollbacks import CURSOR, ROLLED_BACK, changed_orgs, reset, undo
from app.store.guard import report_lost_commits
from app.store.organisations import table as organisations
from app.store.read_tables import projection
from indexer import StoredEvent

_CURSORS = select(organisations.c.org, projection.c.position).outerjoin(
    projection, projection.c.name == CURSOR + organisations.c.org
)


def cursors_of(connection: Connection) -> dict[str, int]:
    """Return the id of the last applied row for each organisation of this service."""
    return {org: position or 0 for org, position in rows_of(connection, _CURSORS, {})[1]}


def moved(cursors: Mapping[str, int], last: int) -> dict[str, int]:
    """Return the cursors as they are once all rows up to the id `last` have been applied."""
    return {org: max(position, last) for org, position in cursors.items()}


def unapplied(rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> list[StoredEvent]:
    """Return the rows above their organisation's cursor, and the rows without an organisation."""
    return [row for row in rows if row.org is None or row.id > cursors.get(row.org, row.id)]


def apply(
    connection: Connection, rows: Sequence[StoredEvent], cursors: Mapping[str, int], last: int, *, fee_payer: str = ""
) -> bool | None:
    """Apply rows and move the cursors to `last`, or back to the start for organisations to be applied again.

    Return True if no row has to be applied again. Do nothing and return None if the stored cursors differ from
    ``cursors``, which selected the rows. In that case another process has applied more or started over. With the
    service's ``fee_payer``, raise the database guard for the service's own transactions without an attempt. Rows that
    are applied again need no such check.
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
    """Apply rows again, but change only these vaults. Return True if the rows must be applied once more."""
    batch = Batch(connection, rows, only=vaults)
    for row in rows:
        if row.name in HANDLERS:
            HANDLERS[row.name](batch, row)
    batch.flush()
    return bool(batch.again)
