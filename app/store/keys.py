"""API keys. A key itself is not kept, only a keyed digest of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Column, Connection, String, Table, bindparam, insert, or_, select, update

from app.store.columns import metadata, upsert
from app.store.paging import RecordPage, fetch_page, listing
from app.store.state_tables import api_keys as table

# A request that is repeated after a crash, which nobody was answered, gets the key that it made again.
made_keys = Table(
    "made_keys",
    metadata,
    Column("org", String, primary_key=True),
    Column("idempotency_key", String, primary_key=True),
    Column("key_id", String, nullable=False, comment="of the key that the last request under this one made"),
)

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


def insert_api_key(connection: Connection, key: ApiKey, *, idempotency_key: str | None = None) -> None:
    """Store a new key's record, and under which idempotency key it was asked for."""
    connection.execute(insert(table).values(asdict(key)))
    if idempotency_key is not None:
        made = {"org": key.org, "idempotency_key": idempotency_key, "key_id": key.key_id}
        upsert(connection, made_keys, made, keys=["org", "idempotency_key"])


def api_key_made_under(connection: Connection, org: str, idempotency_key: str) -> ApiKey | None:
    """Return the key that the last request under this idempotency key made."""
    asked = (made_keys.c.org == org, made_keys.c.idempotency_key == idempotency_key)
    key_id = connection.scalar(select(made_keys.c.key_id).where(*asked))
    return None if key_id is None else api_key(connection, org, key_id)


def replace_digest(connection: Connection, key_id: str, *, digest: str, hint: str) -> None:
    """Let another key take the place of a record's; the one before is not recognised any more."""
    connection.execute(update(table).where(table.c.key_id == key_id).values(digest=digest, hint=hint))


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


def api_key_page(connection: Connection, org: str, *, limit: int, cursor: str | None) -> RecordPage[ApiKey]:
    """Return a page of an organisation's keys, revoked ones too, newest first. Raises `InvalidCursorError`."""
    rows, more, following = fetch_page(connection, _LISTING, {"org": org}, limit=limit, cursor=cursor)
    return RecordPage([ApiKey(**row._mapping) for row in rows], more, following)  # noqa: SLF001


def revoke_api_key(connection: Connection, org: str, key_id: str, until: int) -> bool:
    """Let a key work until then and not longer; false when the organisation has no such key that would."""
    longer = or_(table.c.revoked_at.is_(None), table.c.revoked_at > until)
    query = update(table).where(table.c.org == org, table.c.key_id == key_id, longer)
    return connection.execute(query.values(revoked_at=until)).rowcount == 1


def touch_api_keys(connection: Connection, used: Mapping[str, int]) -> None:
    """Note when keys were last used, by their ids."""
    for key_id, moment in used.items():
        connection.execute(update(table).where(table.c.key_id == key_id).values(last_used_at=moment))
