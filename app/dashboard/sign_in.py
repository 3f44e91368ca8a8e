"""Sign-in by passkey, or by the admin key until the first person joins. Also invitations and step-up."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from sqlalchemy import Connection
from starlette.responses import JSONResponse, RedirectResponse, Response

from app.access.auth import READERS, client_address, client_host, count_failure
from app.access.keyring import Principal
from app.access.recorder import Recorder
from app.core.errors import AuthenticationError
from app.dashboard.pages import View, action, ask_first, page
from app.dashboard.site import HEADERS
from app.people import service as people
from app.people import sessions
from app.people.models import (
    AdminKeySignIn,
    JoinRequest,
    JoinWithPasskey,
    NewPasskey,
    PasskeyResponse,
    RegisteredPasskey,
)
from app.people.passkeys import Json
from app.people.service import Visitor
from app.store.people import has_org_without_people, has_people, invitation_by_digest, person


@page("/sign-in", roles=None)
async def sign_in(view: View) -> Response:
    """Show the page for signing in, or redirect a person who is signed in to the fleet."""
    if view.signed_in is not None:
        return RedirectResponse(view.url(), 303, headers=HEADERS)
    first, known = await view.service.db.read(lambda conn: (has_org_without_people(conn), has_people(conn)))
    return view.render("sign_in.html", first=first, known=known)


@action("/sign-in", roles=None, back=sign_in)
async def sign_in_with_key(view: View) -> Response:
    """Sign in with the admin key of an organisation without people."""
    with _counted(view):
        admin = await people.admin_by_key(view.service, view.body(AdminKeySignIn).admin_key, visiting(view).address)
    place = ("passkey",) if view.service.identity.cluster == "localnet" else ()
    return await enter(view, admin, "admin_key", view.url(*place))


@action("/sign-in/options", roles=None)
async def passkey_options(view: View) -> Response:
    """Return the options that the browser needs to sign in by passkey."""
    count_begun(view)
    return _options(await view.service.db.write(lambda conn: view.ceremony.use_options(conn, "sign_in")))


@action("/sign-in/passkey", roles=None)
async def sign_in_with_passkey(view: View) -> Response:
    """Sign in by passkey."""
    body = view.body(PasskeyResponse)

    def work(conn: Connection) -> Principal:
        found = person(conn, view.ceremony.used(conn, body.credential, "sign_in"))
        if found is None:
            raise AuthenticationError("authentication_failed")
        return visiting(view).principal(found)

    with _counted(view):
        principal = await view.service.db.write(work)
    return await enter(view, principal, "passkey", view.url())


@page("/passkey", roles=READERS)
async def passkey(view: View) -> Response:
    """Offer to create a passkey. A person who is signed in must confirm their identity first."""
    assert view.signed_in is not None
    if view.only_brakes:
        return RedirectResponse(view.url("people"), 303, headers=HEADERS)
    if view.signed_in.person is not None and not view.signed_in.stepped_up(view.now):
        return await ask_first(view)
    return view.render("passkey.html", later=view.service.identity.cluster == "localnet")


@action("/passkey/options", roles=READERS)
async def new_passkey_options(view: View) -> Response:
    """Return the options that the browser needs to create a passkey for the person or key that is signed in."""
    name, signed_in = view.body(NewPasskey).name, view.signed_in
    assert signed_in is not None
    if signed_in.person is not None and not signed_in.stepped_up(view.now):
        raise AuthenticationError("step_up_required")
    person_id = people.new_person_id() if signed_in.person is None else signed_in.person.person_id
    return _options(
        await view.service.db.write(lambda conn: view.ceremony.register_options(conn, "register", person_id, name)),
    )


@action("/passkey", roles=READERS)
async def add_passkey(view: View) -> Response | str:
    """Store a passkey. If an admin key is signed in, this adds its holder as the organisation's first person."""
    body, by, signed_in = view.body(RegisteredPasskey), view.principal, view.signed_in
    assert signed_in is not None
    if signed_in.person is not None:
        await view.claim().store(lambda conn: people.add_passkey(conn, by, view.ceremony, body.credential))
        return view.url("people")
    added = await view.claim().store(lambda conn: people.add_first(conn, by, view.ceremony, body))
    return await enter(view, added, "passkey", view.url(done="joined"))


@page("/join", roles=None)
async def join(view: View) -> Response:
    """Show an invitation. Its token is in the link's fragment, so browsers do not send it with the request."""
    return view.render("join.html")


@action("/join/options", roles=None)
async def join_options(view: View) -> Response:
    """Return the options that the browser needs to create the passkey of an invited person."""
    body = view.body(JoinRequest)

    def work(conn: Connection) -> Json:
        people.invitation_of(conn, sessions.digest(body.token), view.now)
        return view.ceremony.register_options(conn, "join", people.new_person_id(), body.name)

    async with invited_by(view, body.token):
        options = await view.service.db.write(work)
    return _options(options)


@action("/join", roles=None)
async def accept(view: View) -> Response:
    """Use an invitation: add its holder as a person, and sign them in."""
    body, visit = view.body(JoinWithPasskey), visiting(view)
    async with invited_by(view, body.token):
        joined = await view.service.db.write(lambda conn: people.join(conn, visit, view.ceremony, body))
    return await enter(view, joined, "invitation", view.url(done="joined"))


@action("/step-up/options", roles=READERS)
async def step_up_options(view: View) -> Response:
    """Return the options that the browser needs for a step-up by passkey."""
    person_id = view.principal.actor.id
    return _options(await view.service.db.write(lambda conn: view.ceremony.use_options(conn, "step_up", person_id)))


@action("/step-up", roles=READERS)
async def step_up(view: View) -> Response:
    """Confirm the caller's identity by passkey, or by the admin key of an organisation without people."""
    by, signed_in = view.principal, view.signed_in
    assert signed_in is not None
    with _counted(view):
        await _confirm(view, signed_in)
    session_id = signed_in.session.session_id
    await view.claim().store(lambda conn: sessions.step_up(conn, by, session_id, view.now))
    return JSONResponse({}, headers=HEADERS)


@action("/sign-out", roles=READERS, always=True)
async def sign_out(view: View) -> str:
    """End this browser's session."""
    by, signed_in = view.principal, view.signed_in
    assert signed_in is not None
    session_id = signed_in.session.session_id
    await view.service.db.write(lambda conn: sessions.close_session(conn, by, session_id, view.now))
    return view.url("sign-in", done="signed-out")


async def _confirm(view: View, signed_in: sessions.SignedIn) -> None:
    """Raise ``authentication_failed`` unless the browser's credential belongs to the session's actor."""
    by = view.principal
    if signed_in.person is None:
        admin = await people.admin_by_key(view.service, view.body(AdminKeySignIn).admin_key, by.address)
        confirmed = admin.actor == by.actor
    else:
        body = view.body(PasskeyResponse)
        used = await view.service.db.write(lambda conn: view.ceremony.used(conn, body.credential, "step_up"))
        confirmed = used == by.actor.id
    if not confirmed:
        raise AuthenticationError(
            "authentication_failed", "This passkey or key does not belong to the person who is signed in."
        )


def _options(options: Json) -> Response:
    return JSONResponse(options, headers=HEADERS)


def visiting(view: View) -> Visitor:
    """Return the client address and request id of a request without a session."""
    return Visitor(client_address(view.request), view.request.state.request_id)


async def enter(view: View, who: Principal, way: str, location: str, *, stepped_up: bool = True) -> Response:
    """Open a session for ``who`` and send the browser to ``location``.

    If that is the front page, the browser is sent to the page that it requested in the last ten minutes, if any.
    The session has a new cookie, so that a cookie planted in the browser by an attacker is useless.
    """
    where = visiting(view)
    by = replace(who, address=where.address, request_id=where.request_id, outside=False)
    agent = view.request.headers.get("user-agent", "")
    token = await view.service.db.write(
        lambda conn: sessions.open_session(conn, by, agent, view.now, way=way, stepped_up=stepped_up)
    )
    location = (view.site.requested(view.request) or location) if location == view.url() else location
    if view.request.headers.get("accept") == "application/json":
        response: Response = JSONResponse({"location": location}, headers=HEADERS)
    else:
        response = RedirectResponse(location, 303, headers=HEADERS)
    view.site.remember(response, "")
    view.site.set_cookie(response, token)
    return response


def count_begun(view: View) -> None:
    """Count a started sign-in against the rate limit, because anyone can start one and each takes storage.

    Raises ``rate_limited`` if the client's address has reached its limit.
    """
    view.request.app.state.rate_limits.begun(client_host(view.request))


def count_refused(view: View) -> None:
    """Count a failed sign-in, so that its error response does not count it again.

    Raises ``rate_limited`` if the client's address has reached its limit.
    """
    if view.signed_in is None:
        view.request.state.recorded = True
    count_failure(view.request)


@contextmanager
def _counted(view: View) -> Iterator[None]:
    """Count a sign-in that raises AuthenticationError within this context."""
    try:
        yield
    except AuthenticationError:
        count_refused(view)
        raise


@asynccontextmanager
async def invited_by(view: View, token: str) -> AsyncIterator[None]:
    """Count a failed use of an invitation.

    If the token is known, record the failure in the organisation's audit log.
    """
    try:
        yield
    except AuthenticationError:
        found = await view.service.db.read(lambda conn: invitation_by_digest(conn, sessions.digest(token)))
        if found is not None:
            recorder: Recorder = view.request.app.state.recorder
            recorder.refused(
                visiting(view).invited_to(found.org), f"{view.request.method} {view.request.scope['route'].path}"
            )
        count_refused(view)
        raise
