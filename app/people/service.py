"""Adds, invites and removes people: the first sign-in by admin key, passkeys and invitations."""

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.access.auth import authorise_address
from app.access.credential_events import report
from app.access.credentials import descendants, end_all, end_person, in_force, require_admin_person, withdraw
from app.access.keyring import KeyRing, Principal
from app.api.ending import Descendant, EndCredential
from app.core.actors import Actor
from app.core.errors import AuthenticationError, NotFoundError
from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.database.record_tables import insert_record
from app.people.models import (
    InvitePerson,
    JoinWithPasskey,
    ListedPerson,
    NewInvitation,
    PersonList,
    PersonRole,
    RegisteredPasskey,
    RemovedPerson,
)
from app.people.passkeys import Ceremony
from app.people.sessions import digest, new_token, person_actor
from app.store.audit import append
from app.store.people import (
    Invitation,
    Person,
    invitation_by_digest,
    invitation_created_under,
    open_invitations,
    people_of,
    person,
    renew_invitation,
    use_invitation,
)
from app.submission.claim import Claim
from app.submission.context import Service

#: Milliseconds during which an invitation can be used.
INVITATION_LIFETIME = 72 * 3_600_000
_NOT_VALID = (
    "This invitation is not valid: it was used or withdrawn, it has expired, or its link is incomplete. Ask for a new "
    "one."
)


@dataclass(frozen=True, slots=True)
class Invited:
    """A new invitation and the token of its link. The invitation stores only the token's digest."""

    invitation: Invitation
    token: str


@dataclass(frozen=True, slots=True)
class Visitor:
    """The origin of a request from a browser that is not signed in."""

    address: str | None
    request_id: str | None

    def principal(self, found: Person) -> Principal:
        """Return the principal of a person who has proved their identity."""
        return Principal(person_actor(found.person_id), found.org, found.role, None, self.address, self.request_id)

    def invited_to(self, org: str) -> Principal:
        """Return the principal that uses an organisation's invitation: the system, until the person has joined."""
        return Principal(Actor("system", "invitation"), org, "viewer", None, self.address, self.request_id)


async def admin_by_key(service: Service, key: str, address: str | None) -> Principal:
    """Return the principal of an admin key that may sign in from the client's address.

    Raises ``authentication_failed`` for an unknown or ended key, and ``insufficient_permissions`` if it is no admin
    key, does not allow the address, or the organisation already has a person.
    """
    found = await service.part(KeyRing).recognise(key.strip(), address)
    if found is None:
        raise AuthenticationError("authentication_failed", "admin_key: is unknown or revoked.")
    if found.role != "admin":
        raise AuthenticationError("insufficient_permissions", "admin_key: must be a key with the role admin.")
    authorise_address(found, brake=False)
    if await service.db.read(lambda conn: people_of(conn, found.org)):
        raise AuthenticationError(
            "insufficient_permissions",
            "admin_key: can sign in only until the organisation has its first person. Sign in as a person. If no "
            "admin can, create a new invitation with `agent-vault people invite` on the service's machine.",
        )
    return found


def add_first(conn: Connection, by: Principal, ceremony: Ceremony, body: RegisteredPasskey) -> Principal:
    """Add the holder of the admin key as the organisation's first person, and return their principal.

    Raises ``authentication_failed`` if the passkey is not accepted or the organisation already has a person.
    """
    if people_of(conn, by.org):
        raise AuthenticationError("authentication_failed")
    made = ceremony.registered(conn, body.credential, "register")
    insert_record(conn, made)
    return add(conn, by, Person(made.person_id, by.org, body.name, "admin", ceremony.now, created_by=by.actor))


def add_passkey(conn: Connection, by: Principal, ceremony: Ceremony, credential: str) -> None:
    """Add another passkey for the caller.

    Raises ``authentication_failed`` if the passkey is not accepted, or was created for another person.
    """
    made = ceremony.registered(conn, credential, "register")
    if made.person_id != by.actor.id:
        raise AuthenticationError("authentication_failed")
    insert_record(conn, made)
    append(conn, by.entry("person.add_passkey", by.actor.id))


def invite(
    conn: Connection, by: Principal, name: str, role: PersonRole, now: int, *, created_under: str | None = None
) -> Invited:
    """Create an invitation. ``created_under`` is the idempotency key of the request."""
    token, lasts = new_token(), now + INVITATION_LIFETIME
    made = Invitation(
        invitation_id=random_id("inv_"),
        digest=digest(token),
        org=by.org,
        name=name,
        role=role,
        created_at=now,
        expires_at=lasts,
        created_under=created_under,
        invited_by=by.actor,
    )
    insert_record(conn, made)
    append(conn, by.entry("person.invite", made.invitation_id, role=role))
    return Invited(made, token)


async def invite_person(principal: Principal, claim: Claim, body: InvitePerson, now: int) -> NewInvitation:
    """Invite a person on behalf of an admin, and return the invitation's token.

    A request repeated after a crash gets a new token for the same invitation.
    """

    def store(conn: Connection) -> Invited:
        earlier = claim.earlier_in(conn, lambda conn, key: invitation_created_under(conn, principal.org, key))
        if earlier is None:
            return invite(conn, principal, body.name, body.role, now, created_under=claim.key)
        # A crash prevented the response, so the link was never shown. Its token is not stored, so it is replaced.
        renewed = Invited(earlier, new_token())
        renew_invitation(conn, earlier.invitation_id, digest(renewed.token))
        return renewed

    made = await claim.store(store)
    return NewInvitation(name=made.invitation.name, token=made.token)


def invitation_of(conn: Connection, token_digest: str, now: int) -> Invitation:
    """Return the invitation with this digest of its token. Raises ``authentication_failed`` if none is usable."""
    found = invitation_by_digest(conn, token_digest)
    if found is None or found.used_at is not None or found.expires_at <= now or not _may_invite(conn, found, now):
        raise AuthenticationError("authentication_failed", _NOT_VALID)
    return found


def _may_invite(conn: Connection, invitation: Invitation, now: int) -> bool:
    """Return True unless the inviter is an ended key, or a person who is no longer an admin of the organisation.

    A person may have been removed while their request created the invitation.
    """
    by = invitation.invited_by
    found = None if by is None or by.type != "person" else person(conn, by.id)
    return by is None or (in_force(conn, by, now) and (found is None or found.role == "admin"))


async def withdraw_invitation(principal: Principal, claim: Claim, invitation_id: str, now: int) -> None:
    """End an open invitation. Raises ``not_found`` if the organisation has none with this id."""

    def work(conn: Connection) -> None:
        for one in open_invitations(conn, principal.org, now):
            if one.invitation_id == invitation_id:
                return withdraw(conn, principal, one)
        raise NotFoundError("not_found", "The organisation has no open invitation with this id.")

    await claim.store(work)


def join(conn: Connection, by: Visitor, ceremony: Ceremony, body: JoinWithPasskey) -> Principal:
    """Add the holder of an invitation as a person of its organisation, and mark the invitation as used.

    Raises ``authentication_failed`` if the invitation cannot be used or the passkey is not accepted.
    """
    found = invitation_of(conn, digest(body.token), ceremony.now)
    made = ceremony.registered(conn, body.credential, "join")
    joining = Person(made.person_id, found.org, body.name, found.role, ceremony.now, created_by=found.invited_by)
    insert_record(conn, made)
    use(conn, found, ceremony.now)
    return add(conn, by.invited_to(found.org), joining)


def use(conn: Connection, invitation: Invitation, now: int) -> None:
    """Mark an invitation as used. Raises ``authentication_failed`` if it cannot be used any more."""
    if not use_invitation(conn, invitation.digest, now):
        raise AuthenticationError("authentication_failed", _NOT_VALID)


async def listed(service: Service, principal: Principal) -> PersonList:
    """Return all people of the organisation, oldest first."""
    found = await service.db.read(lambda conn: people_of(conn, principal.org))
    return PersonList(data=[ListedPerson.of(one) for one in found])


async def end(
    service: Service, principal: Principal, claim: Claim, person_id: str, body: EndCredential
) -> RemovedPerson:
    """Remove a person, and end their credentials, sessions and open invitations.

    If the body says so, also ends the person's descendants, even if the person was removed earlier. Raises
    ``not_found``, and ``last_admin_key`` if the person is the last admin, or if ending the descendants would leave no
    admin.
    """
    ring, actor, now = service.part(KeyRing), person_actor(person_id), now_ms()
    again = claim.repeats or body.end_descendants

    def work(conn: Connection) -> RemovedPerson:
        everyone = people_of(conn, principal.org, removed=again)
        found = next((one for one in everyone if one.person_id == person_id), None)
        if found is None:
            raise NotFoundError("not_found", "The organisation has no person with this id.")
        if found.removed_at is None:
            end_person(conn, principal, found, now)
        if found.role == "admin":
            require_admin_person(conn, principal.org)
        below = descendants(conn, principal, actor, now)
        if body.end_descendants:
            end_all(conn, ring, principal, below, now)
        return RemovedPerson.of(found, descendants=[Descendant.showing(one) for one in below])

    removed = await claim.store(work)
    ring.forget()
    return removed


def new_person_id() -> str:
    """Return a new id for a person who is about to join."""
    return random_id("per_")


def add(conn: Connection, by: Principal, joining: Person) -> Principal:
    """Store a person who joins, and return their principal."""
    insert_record(conn, joining)
    added = replace(by, actor=person_actor(joining.person_id), role=joining.role)
    report(conn, added.entry("person.join", joining.person_id, role=joining.role), "person.joined", joining)
    return added
