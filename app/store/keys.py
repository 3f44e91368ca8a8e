"""API keys. The key itself is not kept, only a keyed digest of it."""

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, insert, select, update

from app.store.state_tables import api_keys as table

# Built once: every request asks it.
_BY_DIGEST = select(table).where(table.c.digest == bindparam("key"))


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key's record: who may use it for what, and since and until when."""

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


def revoke_api_key(connection: Connection, org: str, key_id: str, now: int) -> bool:
    """Revoke a key; false when the organisation has no such living key."""
    living = (table.c.org == org, table.c.key_id == key_id, table.c.revoked_at.is_(None))
    return connection.execute(update(table).where(*living).values(revoked_at=now)).rowcount == 1


def touch_api_key(connection: Connection, key_id: str, now: int) -> None:
    """Note that the key was used."""
    connection.execute(update(table).where(table.c.key_id == key_id).values(last_used_at=now))
