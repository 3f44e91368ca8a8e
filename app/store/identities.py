"""People's identities at the company's OpenID Connect provider, and the sign-ins there that are still open."""

from dataclasses import dataclass

from sqlalchemy import Connection, Index, delete, select, update

from app.database.record_tables import insert_record, table_of
from app.database.records import fetch_one


@dataclass(frozen=True, slots=True)
class KnownIdentity:
    """Binds a person to `subject`, the provider's id for that person."""

    issuer: str
    """The OpenID Connect provider."""
    subject: str
    """The claim `sub`: the person's id at the provider."""
    person_id: str
    created_at: int
    last_used_at: int | None = None


table = table_of(
    "identities",
    KnownIdentity,
    Index("ix_identities_person_id", "person_id"),
    key=["issuer", "subject"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIdRequest:
    """A sign-in at the provider. Only the browser that began the sign-in can finish it, and only once."""

    state: str
    holder: str
    """Digest of the requesting browser's cookie."""
    purpose: str
    """The purpose: `sign_in`, `join` or `step_up`."""
    nonce: str
    person_id: str | None = None
    """Id of the signed-in person who must confirm their identity, for a step-up."""
    invitation: str | None = None
    """Digest of the joining person's token."""
    name: str | None = None
    """Name of the joining person."""
    started_at: int
    expires_at: int


requests = table_of(
    "openid_requests",
    OpenIdRequest,
    Index("ix_openid_requests_expires_at", "expires_at"),
    key=["state"],
)


def identity_by_subject(connection: Connection, issuer: str, subject: str) -> KnownIdentity | None:
    """Return the identity with this subject at the provider, or None."""
    return fetch_one(
        connection, KnownIdentity, select(table).where(table.c.issuer == issuer, table.c.subject == subject)
    )


def has_identity(connection: Connection, person_id: str, issuer: str) -> bool:
    """Return True if a person can sign in through the provider."""
    mine = select(table.c.subject).where(table.c.person_id == person_id, table.c.issuer == issuer)
    return connection.scalar(mine.limit(1)) is not None


def note_identity_use(connection: Connection, identity: KnownIdentity, now: int) -> None:
    """Store the time of a sign-in through the provider."""
    mine = update(table).where(table.c.issuer == identity.issuer, table.c.subject == identity.subject)
    connection.execute(mine.values(last_used_at=now))


def insert_openid_request(connection: Connection, request: OpenIdRequest, now: int) -> None:
    """Store a new sign-in, and delete expired ones."""
    connection.execute(delete(requests).where(requests.c.expires_at <= now))
    insert_record(connection, request)


def take_openid_request(connection: Connection, state: str, holder: str, now: int) -> OpenIdRequest | None:
    """Delete and return the sign-in that a browser began with this state.

    Return None if there is none, or if it was already used or has expired.
    """
    same = (requests.c.state == state, requests.c.holder == holder)
    found = fetch_one(connection, OpenIdRequest, select(requests).where(*same, requests.c.expires_at > now))
    connection.execute(delete(requests).where(*same))
    return found
