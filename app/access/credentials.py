"""Finds the API keys and people in force and their descendants, and ends them together."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection

from app.access.credential_events import report
from app.access.keyring import KeyRing, Principal, unauthenticated
from app.core.actors import Actor
from app.core.errors import BusinessError
from app.core.timestamps import now_ms
from app.store.audit import append
from app.store.keys import ApiKey, api_key_by_id, api_keys
from app.store.people import (
    Invitation,
    Person,
    end_invitation,
    open_invitations,
    people_of,
    person,
    remove_person,
)

Credential = ApiKey | Person


def actor_of(one: Credential) -> Actor:
    """Return a key or a person as an actor."""
    return Actor("key", one.key_id) if isinstance(one, ApiKey) else Actor("person", one.person_id)


def in_force(conn: Connection, actor: Actor, now: int) -> bool:
    """Return True unless the actor is a key that has ended or a person who was removed."""
    if actor.type == "person":
        return person(conn, actor.id) is not None
    if actor.type == "key":
        key = api_key_by_id(conn, actor.id)
        return key is not None and not key.ended(now)
    return True


def require_in_force(conn: Connection, by: Principal) -> None:
    """Raise ``authentication_failed`` if the caller's key or person has ended since the request was authenticated."""
    if not in_force(conn, by.actor, now_ms()):
        raise unauthenticated()


def descendants(conn: Connection, by: Principal, of: Actor, now: int) -> list[Credential]:
    """Return the keys and people in force that an actor created, directly or through others.

    Keys that replaced each other in rotations count as one key: the result includes all of them, and the descendants of
    each. It leaves out the caller ``by`` and the caller's own descendants, so that callers never end themselves.
    """
    everyone: list[Credential] = [*api_keys(conn, by.org), *people_of(conn, by.org, removed=True)]
    below, replaced = defaultdict[Actor | None, list[Actor]](list), dict[Actor, Actor]()
    for one in everyone:
        below[one.created_by].append(actor_of(one))
        if isinstance(one, ApiKey) and one.replaces is not None:
            replaced[actor_of(one)] = earlier = Actor("key", one.replaces)
            below[earlier].append(actor_of(one))
    reached, waiting, earliest = {of}, [*below[of]], of
    while earliest in replaced:
        earliest = replaced[earliest]
        waiting.append(earliest)
    while waiting:
        actor = waiting.pop()
        if actor != by.actor and actor not in reached:
            reached.add(actor)
            waiting += below[actor]
    reached.remove(of)
    return [one for one in everyone if actor_of(one) in reached and not _ended(one, now)]


def _ended(one: Credential, now: int) -> bool:
    return one.ended(now) if isinstance(one, ApiKey) else one.removed_at is not None


def end_person(conn: Connection, by: Principal, one: Person, now: int) -> None:
    """Remove a person with their credentials and sessions, and end their open invitations."""
    remove_person(conn, by.org, one.person_id, now)
    report(conn, by.entry("person.remove", one.person_id), "person.removed", one)
    for invitation in open_invitations(conn, by.org, now):
        if invitation.invited_by == actor_of(one):
            withdraw(conn, by, invitation)


def withdraw(conn: Connection, by: Principal, invitation: Invitation) -> None:
    """End an open invitation."""
    end_invitation(conn, invitation.invitation_id)
    append(conn, by.entry("invitation.withdraw", invitation.invitation_id, role=invitation.role))


def end_all(conn: Connection, ring: KeyRing, by: Principal, ending: Sequence[Credential], now: int) -> None:
    """End keys and people.

    Raises ``last_admin_key`` if no admin key would remain, or if the last person with the role admin would end.
    """
    for one in ending:
        if isinstance(one, ApiKey):
            ring.end(conn, by, one, now)
        else:
            end_person(conn, by, one, now)
    ring.require_admin_key(conn, by)
    if any(isinstance(one, Person) and one.role == "admin" for one in ending):
        require_admin_person(conn, by.org)


def require_admin_person(conn: Connection, org: str) -> None:
    """Raise ``last_admin_key`` if none of the organisation's people is an admin."""
    if all(one.role != "admin" for one in people_of(conn, org)):
        raise BusinessError("last_admin_key", "The organisation would have no admin. Invite another admin first.")
