"""Signing in at the company's OpenID Connect provider: the redirection to the provider, and the return from it.

The provider sends the browser back with a GET request, and the dashboard changes nothing on a GET request. The page
that the browser returns to therefore forwards the provider's parameters by POST, with the CSRF token of the browser
that started the sign-in.
"""

from sqlalchemy import Connection
from starlette.responses import JSONResponse, RedirectResponse, Response

from app.access.auth import READERS
from app.access.keyring import Principal
from app.access.recorder import Recorder
from app.core.actors import Actor
from app.core.errors import NotFoundError
from app.dashboard.pages import View, action, page
from app.dashboard.sign_in import count_begun, count_refused, enter, invited_by, visiting
from app.dashboard.site import HEADERS
from app.people import company, sessions
from app.people import service as people
from app.people.company import Browser, Purpose
from app.people.models import CompanyCallback, JoinRequest
from app.people.openid import Identity, SignInRefusedError, SignInUnavailableError
from app.store.audit import SERVICE
from app.store.identities import OpenIdRequest
from app.store.people import invitation_by_digest

_FAULTS = (SignInRefusedError, SignInUnavailableError)


@action("/sign-in/openid", roles=None)
async def sign_in(view: View) -> str:
    """Send the browser to the provider to sign in."""
    count_begun(view)
    return await _begin(view, "sign_in")


@action("/join/openid", roles=None)
async def join(view: View) -> str:
    """Send the browser to the provider to use an invitation."""
    body = view.body(JoinRequest)
    invitation = sessions.digest(body.token)
    async with invited_by(view, body.token):
        await view.service.db.read(lambda conn: people.invitation_of(conn, invitation, view.now))
    return await _begin(view, "join", invitation=invitation, name=body.name)


@action("/step-up/openid", roles=READERS)
async def step_up(view: View) -> str:
    """Send the browser to the provider to confirm the identity of the person who is signed in."""
    return await _begin(view, "step_up", person_id=view.principal.actor.id)


@page("/openid/return", roles=None)
async def returned(view: View) -> Response:
    """Show the page of the return from the provider. A script on it forwards the provider's parameters by POST."""
    brought = {name: view.request.query_params.get(name, "") for name in CompanyCallback.model_fields}
    if not brought["state"]:
        return RedirectResponse(view.url(), 303, headers=HEADERS)
    return view.render("company.html", brought=brought)


@action("/openid/return", roles=None)
async def finish(view: View) -> Response:
    """Complete the sign-in, join or step-up that this browser started."""
    _require(view)
    answer, browser, begun = view.body(CompanyCallback), _browser(view), None
    try:
        begun = await company.take(view.service, browser, answer.state)
        identity = await company.identify(view.service, browser, begun, answer)
        if begun.purpose == "step_up":
            return await _confirm(view, begun, identity)
        visit, joins = visiting(view), begun
        who = await view.service.db.write(
            lambda conn: (
                company.join(conn, visit, joins, identity, view.now)
                if joins.purpose == "join"
                else company.sign_in(conn, visit, identity, view.now)
            )
        )
    except _FAULTS as error:
        await _record(view, error, begun)
        raise
    location = view.url(done="joined-company") if begun.purpose == "join" else view.url()
    fresh = identity.authenticated_since(begun.started_at)
    return await enter(view, who, "openid", location, stepped_up=fresh)


async def _confirm(view: View, begun: OpenIdRequest, identity: Identity) -> Response:
    signed_in = view.signed_in
    if signed_in is None or signed_in.person is None or signed_in.person.person_id != begun.person_id:
        raise SignInRefusedError("signed_out", "Your session has ended or belongs to another person. Sign in again.")
    by, session, person_id = view.principal, signed_in.session, signed_in.person.person_id

    def work(conn: Connection) -> None:
        company.confirm(conn, person_id, identity, view.now)
        sessions.step_up(conn, by, session.session_id, view.now)

    await view.service.db.write(work)
    return JSONResponse({"location": view.url(done="confirmed"), "confirmed": True}, headers=HEADERS)


async def _begin(view: View, purpose: Purpose, **about: str) -> str:
    _require(view)
    browser = _browser(view)
    begun = company.request_for(browser, purpose, **about)
    try:
        return await company.begin(view.service, browser, begun)
    except _FAULTS as error:
        await _record(view, error, begun)
        raise


def _require(view: View) -> None:
    """Raise ``not_found`` unless a provider is configured."""
    if view.company is None:
        raise NotFoundError("not_found", "This service has no company sign-in.")


def _browser(view: View) -> Browser:
    return Browser(view.token, f"{view.site.origin(view.request)}{view.url('openid', 'return')}", view.now)


async def _record(view: View, error: SignInRefusedError | SignInUnavailableError, begun: OpenIdRequest | None) -> None:
    """Record why a sign-in failed in the audit log of the organisation, or of the service if none is known."""
    recorder: Recorder = view.request.app.state.recorder
    operation = f"{view.request.method} {view.request.scope['route'].path}"
    recorder.refused(await _about(view, begun), operation, reason=error.reason)
    # Keep the error page from recording the error a second time.
    view.request.state.recorded = True
    if isinstance(error, SignInRefusedError):
        count_refused(view)


async def _about(view: View, begun: OpenIdRequest | None) -> Principal:
    """Return the principal for the record of a failed sign-in: the signed-in person, the invitation, or the service."""
    visit = visiting(view)
    if begun is not None and begun.purpose == "step_up" and view.signed_in is not None:
        return view.principal
    if begun is not None and begun.invitation is not None:
        digest = begun.invitation
        found = await view.service.db.read(lambda conn: invitation_by_digest(conn, digest))
        if found is not None:
            return visit.invited_to(found.org)
    return Principal(Actor("system", "openid"), SERVICE, "viewer", None, visit.address, visit.request_id)
