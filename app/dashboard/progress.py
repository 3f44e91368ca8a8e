"""How far things have come: what tells a page that it has missed something."""

from collections.abc import Collection

from sqlalchemy import Connection

from app.store.audit import log_lengths
from app.store.feed import last_position


def progress(conn: Connection, org: str) -> int:
    """Return a number that every event of the feed and every entry of the organisation's audit log raises."""
    return total(last_position(conn), log_lengths(conn, [org]), [org])[org]


def total(position: int, lengths: dict[str, int], orgs: Collection[str]) -> dict[str, int]:
    """Return `progress` of organisations, from what the feed and their audit logs have reached in the same transaction.

    Both only grow, so that their sum is higher exactly when something came.
    """
    return {org: position + lengths.get(org, 0) for org in orgs}
