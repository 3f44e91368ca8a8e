"""The sessions of browsers: a random token in a cookie. The service stores only its digest."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.access.networks import allow
from app.core.actors import Actor, Role
from app.core.identifiers import random_id
from app.database.record_tables import insert_record
from app.store.audit import append
from app.store.keys import api_key_by_id
from app.store.people import (
    STEP_UP,
    BrowserSession,
    Person,
    end_sessions,
    open_sessions,
    people_of,
    person,
    still_here,
)
from app.store.people import step_up as note_step_up

#: Milliseconds that a session lasts.
LIFETIME = 12 * 3_600_000
_MAX_USER_AGENT = 200


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session and its person or key. ``person`` is None for an admin key of an organisation without people.

    ``allowed`` lists the IP networks that may use the session, or is None if any IP address may.
    """

    session: BrowserSession
    person: Person | None
    role: Role
    allowed: list[str] | None = None

    @property
    def name(self) -> str:
        """The name shown in the dashboard."""
        return "Admin key" if self.person is None else self.person.name

    def principal(self, address: str | None, request_id: str | None) -> Principal:
        """Return the principal of a request in this session."""
        outside = not allow(self.allowed, address)
        return Principal(self.session.actor, self.session.org, self.role, None, address, request_id, outside)

    def stepped_up(self, now: int) -> bool:
        """Return True if the session's last step-up is less than ``STEP_UP`` milliseconds old."""
        last = self.session.stepped_up_at
        return last is not None and now - STEP_UP < last <= now


def new_token() -> str:
    """Return a new secret of 256 bits for a cookie or a link."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return the digest under which a token is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


def csrf_token(token: str) -> str:
    """Return the CSRF token that forms send next to the cookie ``token``. It does not reveal the cookie."""
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def proof_key(token: str, state: str) -> str:
    """Return the PKCE verifier of a sign-in at the provider. It can be derived again only with the browser's cookie."""
    made = hmac.new(token.encode(), f"openid {state}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()


def open_session(
    conn: Connection, by: Principal, user_agent: str, now: int, *, way: str, stepped_up: bool = True
) -> str:
    """Open a session for ``by`` and return the new cookie's token.

    Pass ``stepped_up=False`` if the person may have proved their identity long ago, as with the company's provider.
    ``way`` is the way of signing in, for the audit log.
    """
    token = new_token()
    made = BrowserSession(
        session_id=random_id("ses_"),
        digest=digest(token),
        org=by.org,
        actor=by.actor,
        created_at=now,
        expires_at=now + LIFETIME,
        address=by.address,
        user_agent=user_agent[:_MAX_USER_AGENT],
        stepped_up_at=now if stepped_up else None,
    )
    insert_record(conn, made)
    append(conn, by.entry("person.sign_in", made.session_id, way=way))
    return token


def recognise(conn: Connection, token: str, now: int) -> SignedIn | None:
    """Return the session of a cookie's token, or None if it has ended or expired.

    A person's current role applies. A session ends when its person is removed. A session of an admin key ends when
    the key is revoked, or when the organisation gets its first person.
    """
    found = open_sessions(conn, [digest(token)], now)
    return _signed_in(conn, found[0], now) if found else None


def still_signed_in(conn: Connection, digests: Collection[str], now: int) -> set[str]:
    """Return the cookie digests with an open session.

    This takes two queries, regardless of the number of sessions.
    """
    found = open_sessions(conn, digests, now)
    here = still_here(conn, {one.actor.id for one in found if one.actor.type == "person"})
    return {
        one.digest
        for one in found
        if (one.actor.id in here if one.actor.type == "person" else _signed_in(conn, one, now) is not None)
    }


def _signed_in(conn: Connection, session: BrowserSession, now: int) -> SignedIn | None:
    if session.actor.type == "person":
        found = person(conn, session.actor.id)
        return None if found is None else SignedIn(session, found, found.role)
    key = api_key_by_id(conn, session.actor.id)
    if key is None or key.role != "admin" or key.ended(now):
        return None
    return None if people_of(conn, session.org) else SignedIn(session, None, "admin", key.allowed_addresses)


def close_session(conn: Connection, by: Principal, session_id: str, now: int) -> bool:
    """End one of the caller's own sessions. Return False if the caller has no session with this id."""
    ended = end_sessions(conn, by.org, by.actor, now, only=session_id)
    if ended:
        append(conn, by.entry("person.sign_out", session_id))
    return ended


def step_up(conn: Connection, by: Principal, session_id: str, now: int) -> None:
    """Store that the caller has confirmed their identity in this session."""
    note_step_up(conn, session_id, now)
    append(conn, by.entry("person.step_up", session_id))


def person_actor(person_id: str) -> Actor:
    """Return a person as an actor."""
    return Actor("person", person_id)
