"""People: the persons who may sign in, open invitations, and the caller's sessions."""

from functools import partial
from urllib.parse import urlencode

from starlette.responses import Response

from app.access.auth import ADMINS, READERS
from app.core.errors import BusinessError, NotFoundError
from app.dashboard.actors import names_of
from app.dashboard.ending import end_and_list
from app.dashboard.forms.submit_once import once
from app.dashboard.pages import View, action, page
from app.people import service as people
from app.people import sessions
from app.people.models import InvitePerson, NewInvitation
from app.store.people import open_invitations, people_of, sessions_of

_FIRST = "Make a passkey of your own first. Once a person has joined, the admin key can no longer sign in."


@page("/people", roles=READERS)
async def list_people(view: View) -> Response:
    """Show the organisation's people, the open invitations, and the caller's sessions."""
    return await _show(view)


async def _show(view: View, link: str | None = None, invited: str = "") -> Response:
    by, now = view.principal, view.now
    found, invited_people, own = await view.service.db.read(
        lambda conn: (
            people_of(conn, by.org),
            open_invitations(conn, by.org, now),
            sessions_of(conn, by.org, by.actor, now),
        )
    )
    inviters = await names_of(view.service, by.org, {one.invited_by for one in invited_people if one.invited_by})
    return view.render(
        "people.html",
        people=found,
        invitations=invited_people,
        inviters=inviters,
        sessions=own,
        link=link,
        invited=invited,
    )


@action("/people/invite", roles=ADMINS, back=list_people, step_up=True)
async def invite(view: View) -> Response:
    """Invite a person, and show the link. No other page shows it."""
    if view.alone:
        raise BusinessError("invalid_request", _FIRST)
    body = view.body(InvitePerson)
    make = partial(people.invite_person, view.principal, body=body, now=view.now)
    made = await once(view, body, NewInvitation, make, secret=True)
    origin = view.site.origin(view.request)
    return await _show(view, f"{origin}{view.url('join')}#{made.token}&{urlencode({'name': made.name})}", made.name)


@action("/invitations/{invitation_id}/withdraw", roles=ADMINS, back=list_people, step_up=True)
async def withdraw(view: View) -> str:
    """Withdraw an open invitation."""
    await people.withdraw_invitation(view.principal, view.claim(), view.path("invitation_id"), view.now)
    return view.url("people", done="invitation-withdrawn")


@action("/people/{person_id}/remove", roles=ADMINS, back=list_people, step_up=True)
async def remove(view: View) -> Response | str:
    """Remove a person from the organisation."""
    actor = sessions.person_actor(view.path("person_id"))
    return await end_and_list(view, actor, people.end, view.url("people", done="removed"))


@action("/sessions/{session_id}/end", roles=READERS, back=list_people)
async def end_session(view: View) -> str:
    """End one of the caller's own sessions."""
    by, session_id = view.principal, view.path("session_id")
    if not await view.service.db.write(lambda conn: sessions.close_session(conn, by, session_id, view.now)):
        raise NotFoundError("not_found", "You have no session with this id.")
    return view.url("people", done="session-ended")
