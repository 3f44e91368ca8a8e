"""People, their passkeys and invitations, and the browser sessions of people and admin keys."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, Index, UniqueConstraint, delete, exists, select, update

from app.core.actors import Actor, Role
from app.database.record_tables import insert_record, table_of
from app.database.records import fetch_all, fetch_one
from app.store.identities import table as identities
from app.store.organisations import table as organisations


@dataclass(frozen=True, slots=True)
class Person:
    """A person who may sign in unless they were removed."""

    person_id: str
    org: str
    name: str
    role: Role
    created_at: int
    removed_at: int | None = None
    created_by: Actor | None = None
    """Actor who invited the person; null only if older code stored the person."""


STEP_UP = 5 * 60_000
"""Milliseconds for which a person's confirmed identity remains valid."""

table = table_of(
    "people",
    Person,
    Index("people_by_org", "org", "created_at"),
    key=["person_id"],
)


@dataclass(frozen=True, slots=True)
class Passkey:
    """A credential of a person; `credential_id` is base64url."""

    credential_id: str
    """Id of the credential in base64url."""
    person_id: str
    public_key: bytes
    sign_count: int
    created_at: int
    last_used_at: int | None = None


passkeys = table_of(
    "passkeys",
    Passkey,
    Index("ix_passkeys_person_id", "person_id"),
    key=["credential_id"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSession:
    """A session of a browser in which a person or an admin key is signed in."""

    session_id: str
    digest: str
    """Digest of the cookie."""
    org: str
    actor: Actor
    """A person, or an admin key while the organisation has no people."""
    created_at: int
    expires_at: int
    ended_at: int | None = None
    stepped_up_at: int | None = None
    """Time when the person last confirmed their identity."""
    address: str | None
    """The browser's IP address."""
    user_agent: str


sessions = table_of(
    "browser_sessions",
    BrowserSession,
    UniqueConstraint("digest"),
    Index("browser_sessions_by_actor", "org", "actor", "created_at"),
    key=["session_id"],
)


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge that a passkey must sign once, for the browser that requested it."""

    challenge: str
    """The challenge in base64url."""
    holder: str
    """Digest of the requesting browser's cookie."""
    purpose: str
    """The purpose: `register`, `join`, `sign_in` or `step_up`."""
    person_id: str | None
    """Owner of the passkey to register or use."""
    expires_at: int


challenges = table_of(
    "challenges",
    Challenge,
    Index("ix_challenges_expires_at", "expires_at"),
    key=["challenge"],
)


@dataclass(frozen=True, slots=True)
class Invitation:
    """A link that lets one person join an organisation."""

    invitation_id: str
    digest: str
    """Digest of the token in the link."""
    org: str
    name: str
    role: Role
    created_at: int
    expires_at: int
    used_at: int | None = None
    created_under: str | None = None
    invited_by: Actor | None = None
    """Actor who made the invitation; null only if older code stored the invitation."""


invitations = table_of(
    "invitations",
    Invitation,
    UniqueConstraint("digest"),
    Index("ix_invitations_org", "org"),
    key=["invitation_id"],
)


def person(connection: Connection, person_id: str) -> Person | None:
    """Return the person with this id, or None if there is none or they were removed."""
    query = select(table).where(table.c.person_id == person_id, table.c.removed_at.is_(None))
    return fetch_one(connection, Person, query)


def still_here(connection: Connection, person_ids: Collection[str]) -> set[str]:
    """Return the ids of these people, leaving out removed people."""
    query = select(table.c.person_id).where(table.c.person_id.in_(person_ids), table.c.removed_at.is_(None))
    return set(connection.scalars(query))


def people_of(connection: Connection, org: str, *, removed: bool = False) -> list[Person]:
    """Return the organisation's people, oldest first. With `removed`, include removed ones."""
    query = select(table).where(table.c.org == org)
    query = query if removed else query.where(table.c.removed_at.is_(None))
    return fetch_all(connection, Person, query.order_by(table.c.created_at, table.c.person_id))


def names_of_people(connection: Connection, org: str, person_ids: Collection[str]) -> dict[str, str]:
    """Return the names of an organisation's people by id, including removed ones."""
    if not person_ids:
        return {}
    query = select(table.c.person_id, table.c.name).where(table.c.org == org, table.c.person_id.in_(person_ids))
    return {row.person_id: row.name for row in connection.execute(query)}


def has_people(connection: Connection) -> bool:
    """Return True if any organisation has a person who was not removed."""
    return connection.scalar(select(table.c.person_id).where(table.c.removed_at.is_(None)).limit(1)) is not None


def has_org_without_people(connection: Connection) -> bool:
    """Return True if some organisation has no people, so that an admin key can sign in there."""
    of_org = exists().where(table.c.org == organisations.c.org, table.c.removed_at.is_(None))
    return connection.scalar(select(organisations.c.org).where(~of_org).limit(1)) is not None


def remove_person(connection: Connection, org: str, person_id: str, now: int) -> bool:
    """Remove a person with all their credentials, and end their sessions.

    Return False if no person has this id or they were removed before.
    """
    mine = update(table).where(table.c.org == org, table.c.person_id == person_id, table.c.removed_at.is_(None))
    if connection.execute(mine.values(removed_at=now)).rowcount == 0:
        return False
    connection.execute(delete(passkeys).where(passkeys.c.person_id == person_id))
    connection.execute(delete(identities).where(identities.c.person_id == person_id))
    end_sessions(connection, org, Actor("person", person_id), now)
    return True


def passkey(connection: Connection, credential_id: str) -> Passkey | None:
    """Return the passkey with this id, or None."""
    return fetch_one(connection, Passkey, select(passkeys).where(passkeys.c.credential_id == credential_id))


def passkeys_of(connection: Connection, person_id: str) -> list[Passkey]:
    """Return a person's passkeys, oldest first."""
    query = select(passkeys).where(passkeys.c.person_id == person_id).order_by(passkeys.c.created_at)
    return fetch_all(connection, Passkey, query)


def note_passkey_use(connection: Connection, credential_id: str, sign_count: int, now: int) -> None:
    """Store that a passkey was used, and its new counter."""
    mine = update(passkeys).where(passkeys.c.credential_id == credential_id)
    connection.execute(mine.values(sign_count=sign_count, last_used_at=now))


def open_sessions(connection: Connection, digests: Collection[str], now: int) -> list[BrowserSession]:
    """Return the sessions that have one of these cookie digests and have neither ended nor expired."""
    query = select(sessions).where(sessions.c.digest.in_(digests), sessions.c.ended_at.is_(None))
    return fetch_all(connection, BrowserSession, query.where(sessions.c.expires_at > now))


def sessions_of(connection: Connection, org: str, actor: Actor, now: int) -> list[BrowserSession]:
    """Return an actor's open sessions, newest first."""
    query = select(sessions).where(sessions.c.org == org, sessions.c.actor == actor, sessions.c.ended_at.is_(None))
    return fetch_all(connection, BrowserSession, query.where(sessions.c.expires_at > now).order_by(_NEWEST))


def end_sessions(connection: Connection, org: str, actor: Actor, now: int, *, only: str | None = None) -> bool:
    """End all sessions of an actor, or ``only`` the one with this id. Return False if none was open."""
    mine = update(sessions).where(sessions.c.org == org, sessions.c.actor == actor, sessions.c.ended_at.is_(None))
    mine = mine if only is None else mine.where(sessions.c.session_id == only)
    return connection.execute(mine.values(ended_at=now)).rowcount > 0


def step_up(connection: Connection, session_id: str, now: int) -> None:
    """Store that the holder of a session has confirmed their identity."""
    connection.execute(update(sessions).where(sessions.c.session_id == session_id).values(stepped_up_at=now))


def insert_challenge(connection: Connection, challenge: Challenge, now: int) -> None:
    """Store a challenge, and delete expired ones."""
    connection.execute(delete(challenges).where(challenges.c.expires_at <= now))
    insert_record(connection, challenge)


def take_challenge(connection: Connection, challenge: str, holder: str, purpose: str, now: int) -> Challenge | None:
    """Delete and return a browser's challenge, or return None if it was used, has expired or never existed."""
    same = (challenges.c.challenge == challenge, challenges.c.holder == holder, challenges.c.purpose == purpose)
    found = fetch_one(connection, Challenge, select(challenges).where(*same, challenges.c.expires_at > now))
    connection.execute(delete(challenges).where(*same))
    return found


def invitation_by_digest(connection: Connection, digest: str) -> Invitation | None:
    """Return the invitation with this digest of its token, even if used or expired, or None."""
    return fetch_one(connection, Invitation, select(invitations).where(invitations.c.digest == digest))


def invitation_created_under(connection: Connection, org: str, key: str) -> Invitation | None:
    """Return the newest invitation requested under this idempotency key, or None."""
    query = select(invitations).where(invitations.c.org == org, invitations.c.created_under == key)
    return fetch_one(connection, Invitation, query.order_by(invitations.c.created_at.desc()).limit(1))


def renew_invitation(connection: Connection, invitation_id: str, digest: str) -> None:
    """Give an invitation a new token; the old one is no longer valid."""
    mine = update(invitations).where(invitations.c.invitation_id == invitation_id)
    connection.execute(mine.values(digest=digest))


def open_invitations(connection: Connection, org: str, now: int) -> list[Invitation]:
    """Return the invitations that are not used, withdrawn or expired, newest first."""
    query = select(invitations).where(invitations.c.org == org, invitations.c.used_at.is_(None))
    query = query.where(invitations.c.expires_at > now)
    return fetch_all(connection, Invitation, query.order_by(invitations.c.created_at.desc()))


def end_invitation(connection: Connection, invitation_id: str) -> None:
    """End an invitation by making it expire.

    The expiry is used because older code, which may still run, understands it. It is set to the creation time, so that
    the invitation has expired even for a request that began earlier or on a node with a slow clock.
    """
    mine = update(invitations).where(invitations.c.invitation_id == invitation_id)
    connection.execute(mine.values(expires_at=invitations.c.created_at))


def use_invitation(connection: Connection, digest: str, now: int) -> bool:
    """Mark an invitation as used. Return False if it was already used or has expired."""
    mine = update(invitations).where(invitations.c.digest == digest, invitations.c.used_at.is_(None))
    return connection.execute(mine.where(invitations.c.expires_at > now).values(used_at=now)).rowcount == 1


_NEWEST = sessions.c.created_at.desc()
