"""API keys. The key itself is not kept, only a keyed digest of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, insert, or_, select, update

from app.store.paging import Page, fetch_page, listing
from app.store.state_tables import api_keys as table

# Built once: every request asks it.
_BY_DIGEST = select(table).where(table.c.digest == bindparam("key"))
_LISTING = listing(select(table).where(table.c.org == bindparam("org")), time=table.c.created_at, key=table.c.key_id)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key's record: who may use it for what, and since and until when.

    Times are Unix milliseconds. `revoked_at` lies in the future while a rotated key still works.
    """

    key_id: str
    org: str
    role: str
    wallet_id: str | None
    name: str
    digest: str
    hint: str
    created_at: int
    revoked_at: int | None = None
    last_used_at: int | None = None


def insert_api_key(connection: Connection, key: ApiKey) -> None:
    """Store a new key's record."""
    connection.execute(insert(table).values(asdict(key)))


def api_key_by_digest(connection: Connection, digest: str) -> ApiKey | None:
    """Return the key with this digest, revoked or not."""
    row = connection.execute(_BY_DIGEST, {"key": digest}).one_or_none()
    return None if row is None else ApiKey(**row._mapping)  # noqa: SLF001


def api_keys(connection: Connection, org: str) -> list[ApiKey]:
    """Return an organisation's keys, revoked ones too, oldest first."""
    query = select(table).where(table.c.org == org).order_by(table.c.created_at, table.c.key_id)
    return [ApiKey(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001


def api_key(connection: Connection, org: str, key_id: str) -> ApiKey | None:
    """Return the organisation's key with this id, revoked or not."""
    row = connection.execute(select(table).where(table.c.org == org, table.c.key_id == key_id)).one_or_none()
    return None if row is None else ApiKey(**row._mapping)  # noqa: SLF001


def api_key_page(connection: Connection, org: str, *, limit: int, cursor: str | None) -> Page[ApiKey]:
    """Return a page of an organisation's keys, revoked ones too, newest first. Raises `InvalidCursorError`."""
    rows, more, following = fetch_page(connection, _LISTING, {"org": org}, limit=limit, cursor=cursor)
    return Page([ApiKey(**row._mapping) for row in rows], more, following)  # noqa: SLF001


def revoke_api_key(connection: Connection, org: str, key_id: str, until: int) -> bool:
    """Let a key work until then and not longer; false when the organisation has no such key that would."""
    longer = or_(table.c.revoked_at.is_(None), table.c.revoked_at > until)
    query = update(table).where(table.c.org == org, table.c.key_id == key_id, longer)
    return connection.execute(query.values(revoked_at=until)).rowcount == 1


def touch_api_keys(connection: Connection, used: Mapping[str, int]) -> None:
    """Note when keys were last used, by their ids."""
    for key_id, moment in used.items():
        connection.execute(update(table).where(table.c.key_id == key_id).values(last_used_at=moment))
