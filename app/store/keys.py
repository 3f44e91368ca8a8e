"""API keys. Only a keyed digest and the last characters of each key are kept."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Index,
    String,
    Table,
    UniqueConstraint,
    bindparam,
    or_,
    select,
    update,
)

from app.core.actors import Actor, Role
from app.core.pages import RecordPage
from app.core.timestamps import DAY, now_ms
from app.database.columns import metadata, upsert
from app.database.paging import fetch_page, listing
from app.database.record_tables import insert_record, table_of
from app.database.records import fetch_all, fetch_one
from app.database.signals import KEYS, signal
from app.store.people import people_of

KeyStatus = Literal["active", "rotated", "revoked", "expired"]
FIRST_NOTICE = 14
"""Number of days before a key's end when its first notice is given."""

# Lets a repeated request find the key that its first run created but, because of a crash, never delivered.
made_keys = Table(
    "made_keys",
    metadata,
    Column("org", String, primary_key=True),
    Column("idempotency_key", String, primary_key=True),
    Column("key_id", String, nullable=False, doc="key created by the last request under this idempotency key"),
)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key's record. Times are Unix milliseconds; `revoked_at` is in the future while a rotated key still works.

    `allowed_addresses` are IP networks in CIDR notation, or None if the key works from any address. `replaces` is the
    id of the key that was rotated to this one.
    """

    key_id: str
    org: str
    role: Role
    wallet_id: str | None
    """Id of the only wallet that an agent's key can use; null for other roles."""
    name: str
    digest: str
    """HMAC of the key; the key itself is not kept."""
    hint: str
    """Last characters of the key, so that people can recognise it."""
    created_at: int
    revoked_at: int | None = None
    last_used_at: int | None = None
    expires_at: int | None = None
    allowed_addresses: Annotated[list[str] | None, JSON(none_as_null=True)] = None
    """IP networks in CIDR notation; null for any address."""
    created_by: Actor | None = None
    """The creator; null only if the audit log no longer contained this information."""
    replaces: str | None = None
    """Id of the key that was rotated to this one."""

    @property
    def end(self) -> int | None:
        """The time from which the key no longer works, or None if it has no end."""
        return min((end for end in (self.revoked_at, self.expires_at) if end is not None), default=None)

    @property
    def status(self) -> KeyStatus:
        """The key's status now. A rotated key works until its `revoked_at`."""
        now = now_ms()
        if self.revoked_at is not None and self.revoked_at <= now:
            return "revoked"
        return "expired" if self.ended(now) else "active" if self.revoked_at is None else "rotated"

    def ended(self, now: int) -> bool:
        """Return True if the key is revoked or expired at the Unix millisecond `now`."""
        return self.end is not None and self.end <= now


table = table_of(
    "api_keys",
    ApiKey,
    Index("ix_api_keys_org", "org"),
    UniqueConstraint("digest"),
    key=["key_id"],
)

# Built once: every request executes it.
_BY_DIGEST = select(table).where(table.c.digest == bindparam("key"))
_OF_ORG = select(table).where(table.c.org == bindparam("org"))
_LISTING = listing(_OF_ORG, time=table.c.created_at, key=table.c.key_id)
_WORKS = (
    or_(table.c.revoked_at.is_(None), table.c.revoked_at > bindparam("now")),
    or_(table.c.expires_at.is_(None), table.c.expires_at > bindparam("now")),
)
_LACKS = or_(table.c.expires_at.is_(None), table.c.allowed_addresses.is_(None))
_UNRESTRICTED = listing(_OF_ORG.where(*_WORKS, _LACKS), time=table.c.created_at, key=table.c.key_id)


def insert_api_key(connection: Connection, key: ApiKey, *, idempotency_key: str | None = None) -> None:
    """Store a new key's record and the idempotency key of its request."""
    insert_record(connection, key)
    if idempotency_key is not None:
        made = {"org": key.org, "idempotency_key": idempotency_key, "key_id": key.key_id}
        upsert(connection, made_keys, made, keys=["org", "idempotency_key"])


def api_key_made_under(connection: Connection, org: str, idempotency_key: str) -> ApiKey | None:
    """Return the key created by the last request under this idempotency key, or None."""
    asked = (made_keys.c.org == org, made_keys.c.idempotency_key == idempotency_key)
    key_id = connection.scalar(select(made_keys.c.key_id).where(*asked))
    return None if key_id is None else api_key(connection, org, key_id)


def replace_digest(connection: Connection, key_id: str, *, digest: str, hint: str) -> None:
    """Replace the key behind a record; the old one no longer works."""
    connection.execute(update(table).where(table.c.key_id == key_id).values(digest=digest, hint=hint))


def api_key_by_digest(connection: Connection, digest: str) -> ApiKey | None:
    """Return the key with this digest, revoked or not, or None."""
    return fetch_one(connection, ApiKey, _BY_DIGEST, {"key": digest})


def api_keys(connection: Connection, org: str) -> list[ApiKey]:
    """Return an organisation's keys, including revoked ones, oldest first."""
    query = select(table).where(table.c.org == org).order_by(table.c.created_at, table.c.key_id)
    return fetch_all(connection, ApiKey, query)


def key_names(connection: Connection, org: str, key_ids: Collection[str]) -> dict[str, str]:
    """Return the names of an organisation's keys by id, including revoked ones."""
    if not key_ids:
        return {}
    query = select(table.c.key_id, table.c.name).where(table.c.org == org, table.c.key_id.in_(key_ids))
    return {row.key_id: row.name for row in connection.execute(query)}


def api_key(connection: Connection, org: str, key_id: str) -> ApiKey | None:
    """Return the organisation's key with this id, revoked or not, or None."""
    return fetch_one(connection, ApiKey, select(table).where(table.c.org == org, table.c.key_id == key_id))


def has_admin_key(connection: Connection, org: str, now: int, reachable: Callable[[list[str] | None], bool]) -> bool:
    """Return True if the organisation has a working admin key that is not scheduled for revocation.

    If none of the organisation's people is an admin, a key counts only if it has no expiry and its allowed addresses
    are `reachable`.
    """
    staffed = any(one.role == "admin" for one in people_of(connection, org))
    query = select(table).where(table.c.org == org, table.c.role == "admin", table.c.revoked_at.is_(None))
    return any(
        staffed or (one.expires_at is None and reachable(one.allowed_addresses))
        for one in fetch_all(connection, ApiKey, query)
        if not one.ended(now)
    )


def expiring_keys(connection: Connection, now: int) -> list[ApiKey]:
    """Return the unrevoked keys of all organisations that expire within 14 days."""
    soon = (table.c.expires_at > now, table.c.expires_at <= now + FIRST_NOTICE * DAY)
    query = select(table).where(*soon, table.c.revoked_at.is_(None))
    return fetch_all(connection, ApiKey, query)


def api_key_by_id(connection: Connection, key_id: str) -> ApiKey | None:
    """Return the key with this id, of any organisation, or None."""
    return fetch_one(connection, ApiKey, select(table).where(table.c.key_id == key_id))


def api_key_page(
    connection: Connection, org: str, unrestricted_at: int | None, *, limit: int, cursor: str | None
) -> RecordPage[ApiKey]:
    """Return an organisation's keys, including ended ones, newest first. Raises `InvalidCursorError`.

    With `unrestricted_at`, return the keys that work at this time without an end or without allowed addresses.
    """
    listed, now = (_LISTING, {}) if unrestricted_at is None else (_UNRESTRICTED, {"now": unrestricted_at})
    return fetch_page(connection, ApiKey, listed, {"org": org, **now}, limit=limit, cursor=cursor)


def revoke_api_key(connection: Connection, org: str, key_id: str, until: int) -> bool:
    """Revoke a key as of `until`.

    Return False if the organisation has no key with this id, or if the key is already revoked as of `until` or earlier.
    """
    longer = or_(table.c.revoked_at.is_(None), table.c.revoked_at > until)
    query = update(table).where(table.c.org == org, table.c.key_id == key_id, longer)
    signal(connection, KEYS)
    return connection.execute(query.values(revoked_at=until)).rowcount == 1


def touch_api_keys(connection: Connection, used: Mapping[str, int]) -> None:
    """Store the Unix millisecond of the last use of each key, by key id."""
    for key_id, moment in used.items():
        connection.execute(update(table).where(table.c.key_id == key_id).values(last_used_at=moment))
