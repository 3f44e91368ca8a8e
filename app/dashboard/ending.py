"""Ends a key or a person, then offers to end the keys and people that it created."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from app.access.keyring import Principal
from app.api.ending import EndCredential
from app.api_keys.models import RevokedKey
from app.core.actors import Actor
from app.dashboard.pages import View
from app.people.models import RemovedPerson
from app.submission.claim import Claim
from app.submission.context import Service

End = Callable[[Service, Principal, Claim, str, EndCredential], Awaitable[RevokedKey | RemovedPerson]]


async def end_and_list(view: View, of: Actor, change: End, done: str) -> Response | str:
    """End a key or person by ``change``, and return the address ``done``.

    If the key or person created others, return a page that lists these descendants and offers to end them too, by a
    second request. The page is omitted for callers who end themselves, because they are signed out by then.
    """
    by, too = view.principal, bool(view.typed("end_descendants"))
    ended = await change(view.service, by, view.claim(), of.id, EndCredential(end_descendants=too))
    if too or not ended.descendants or of == by.actor:
        return done
    return view.render("ending.html", descendants=ended.descendants, path=view.here, done=done)
