"""Signs people in at the company's OpenID Connect provider: to sign in, to join, or to confirm a step-up.

The start of a sign-in stores a row that only the same browser can use, and only once. A person is identified by the
provider's issuer and `sub` alone, never by an e-mail address or a name.
"""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import AuthenticationError
from app.database.record_tables import insert_record
from app.people import service as people
from app.people.models import CompanyCallback
from app.people.openid import CompanySignIn, Identity, SignInRefusedError, SignInUnavailableError
from app.people.service import Visitor
from app.people.sessions import digest, new_token, proof_key
from app.store.identities import (
    KnownIdentity,
    OpenIdRequest,
    has_identity,
    identity_by_subject,
    insert_openid_request,
    note_identity_use,
    take_openid_request,
)
from app.store.people import Person, passkeys_of, person
from app.submission.context import Service

Purpose = Literal["sign_in", "join", "step_up"]

#: Milliseconds for the browser to return from the provider.
REQUEST_LIFETIME = 10 * 60_000
#: Errors of the provider itself, not of the sign-in (OpenID Connect Core, section 3.1.2.6, and RFC 6749, 4.1.2.1).
_TROUBLE = frozenset({"server_error", "temporarily_unavailable"})
_NAMED = _TROUBLE | {"access_denied", "login_required", "interaction_required", "invalid_request", "invalid_scope"}


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser, known by its cookie's ``token``. The provider sends the browser back to the address ``returns_to``.

    ``now`` is the time of the request in Unix milliseconds.
    """

    token: str
    returns_to: str
    now: int


@dataclass(frozen=True, slots=True)
class ConfirmationWays:
    """The ways in which a person can confirm their identity. Each field is True if the person has this way."""

    passkey: bool
    company: bool


def request_for(browser: Browser, purpose: Purpose, **about: str) -> OpenIdRequest:
    """Return a new OpenIdRequest, not stored yet. ``about`` can set its ``person_id``, ``invitation`` and ``name``."""
    return OpenIdRequest(
        state=new_token(),
        holder=digest(browser.token),
        purpose=purpose,
        nonce=new_token(),
        started_at=browser.now,
        expires_at=browser.now + REQUEST_LIFETIME,
        **about,
    )


async def begin(service: Service, browser: Browser, made: OpenIdRequest) -> str:
    """Start a sign-in at the provider and return the URL to send the browser to.

    Raises ``sign_in_unavailable`` if the provider cannot be used now.
    """
    url = await service.part(CompanySignIn).authorization_url(
        returns_to=browser.returns_to,
        state=made.state,
        nonce=made.nonce,
        verifier=proof_key(browser.token, made.state),
        confirm=made.purpose == "step_up",
    )
    await service.db.write(lambda conn: insert_openid_request(conn, made, browser.now))
    return url


async def take(service: Service, browser: Browser, state: str) -> OpenIdRequest:
    """Return the sign-in that this browser started, and delete it, so that it cannot be used again.

    Raises ``authentication_failed`` if this browser did not start it, or if it was used already or has expired.
    """
    holder = digest(browser.token)
    found = await service.db.write(lambda conn: take_openid_request(conn, state, holder, browser.now))
    if found is None:
        raise SignInRefusedError(
            "state",
            "This sign-in was not started in this browser, was already used, or took longer than ten minutes. "
            "Start again.",
        )
    return found


async def identify(service: Service, browser: Browser, begun: OpenIdRequest, answer: CompanyCallback) -> Identity:
    """Return the identity in the provider's response.

    Raises ``authentication_failed`` if the provider refused the sign-in, or if its response does not prove the identity
    or, for a step-up, a new authentication. Raises ``sign_in_unavailable`` if the provider failed.
    """
    company = service.part(CompanySignIn)
    await company.check_source(answer.iss or None)
    if answer.error or not answer.code:
        # The error's description is not shown, because anyone can send one to this address.
        reason = answer.error if answer.error in _NAMED else "other"
        if reason in _TROUBLE:
            raise SignInUnavailableError(reason, "The company's identity provider reports an internal problem.")
        raise SignInRefusedError(f"error:{reason}", "The company sign-in did not sign you in, or you cancelled it.")
    verifier = proof_key(browser.token, begun.state)
    found = await company.identify(answer.code, returns_to=browser.returns_to, nonce=begun.nonce, verifier=verifier)
    if begun.purpose == "step_up" and not found.authenticated_since(begun.started_at):
        raise SignInRefusedError(
            "auth_time", "The company sign-in did not ask you to sign in again, so your identity is not confirmed."
        )
    return found


def sign_in(conn: Connection, by: Visitor, identity: Identity, now: int) -> Principal:
    """Return the principal of the person with the identity from the provider.

    Raises ``authentication_failed`` if no person has this identity.
    """
    known = identity_by_subject(conn, identity.issuer, identity.subject)
    found = None if known is None else person(conn, known.person_id)
    if known is None or found is None:
        raise SignInRefusedError(
            "not_invited",
            "This company account is not linked to anyone here. Use an invitation, or ask an admin for one.",
        )
    note_identity_use(conn, known, now)
    return by.principal(found)


def join(conn: Connection, by: Visitor, begun: OpenIdRequest, identity: Identity, now: int) -> Principal:
    """Add an invited person with their identity from the provider, and mark the invitation as used.

    Raises ``authentication_failed`` if the invitation cannot be used, or a person already has this identity.
    """
    assert begun.invitation is not None
    assert begun.name is not None
    try:
        invited = people.invitation_of(conn, begun.invitation, now)
    except AuthenticationError as error:
        raise SignInRefusedError("invitation", error.message) from None
    if identity_by_subject(conn, identity.issuer, identity.subject) is not None:
        raise SignInRefusedError(
            "known", "This company account already belongs to a person here. Sign in with it, without the invitation."
        )
    joining = Person(people.new_person_id(), invited.org, begun.name, invited.role, now, created_by=invited.invited_by)
    insert_record(conn, KnownIdentity(identity.issuer, identity.subject, joining.person_id, now, now))
    people.use(conn, invited, now)
    return people.add(conn, by.invited_to(invited.org), joining)


def confirm(conn: Connection, person_id: str, identity: Identity, now: int) -> None:
    """Record the use of a person's identity. Raises ``authentication_failed`` if the identity is another person's."""
    known = identity_by_subject(conn, identity.issuer, identity.subject)
    if known is None or known.person_id != person_id:
        raise SignInRefusedError("other_person", "This account does not belong to the person who is signed in.")
    note_identity_use(conn, known, now)


def confirmations(conn: Connection, person_id: str, issuer: str | None) -> ConfirmationWays:
    """Return the ways for a person to confirm their identity."""
    by_company = issuer is not None and has_identity(conn, person_id, issuer)
    return ConfirmationWays(bool(passkeys_of(conn, person_id)), by_company)
