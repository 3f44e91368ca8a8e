"""The feed: past events, newest first, and new ones as they happen."""

import json
from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from app.access.auth import READERS
from app.api.fields import Body
from app.approvals import service as approvals
from app.approvals.models import ListApprovals
from app.budgets import service as budgets
from app.core.event_catalogue import EVENTS
from app.dashboard.forms.filters import filtered
from app.dashboard.pages import View, action, page
from app.events import service as events
from app.events.models import Event, ListEvents
from app.policies import service as policies
from app.store.feed_readers import mark_read, unread_among
from app.store.wallets import labels

_PENDING = ListApprovals(status="pending", limit=100)
_FIELDS = ("wallet_id", "from_wallet", "to_wallet")
#: Pages of objects of an event other than its vault: the field with the id, the page's path, and the link's label.
_OBJECTS = (("policy_id", "policies", "Policy"), ("budget_id", "budgets", "Budget"))


class _Read(Body):
    """The field sent by the button that marks the feed as read: the position of its last event.

    The position dates from the rendering of the page, so that newer events stay unread.
    """

    position: Annotated[int, Field(ge=0)]


@page("/feed", roles=READERS)
async def show(view: View) -> Response:
    """Show the feed. If a filter is invalid, show no event and a message."""
    found, listed = await filtered(view, ListEvents, events.page, "feed")
    if view.errors:
        first = next(iter(view.errors.items()))
        view.errors = {"": ": ".join(one for one in first if one)}
    ids = {str(value) for one in found.data for name in _FIELDS if (value := (one.model_extra or {}).get(name))}
    named = await view.service.db.read(lambda conn: labels(conn, ids))
    shown, by = [one.event_id for one in found.data], view.principal
    unread = await view.service.db.read(lambda conn: unread_among(conn, by.org, by.actor, shown))
    there = await _there(view, found.data)
    return view.render(
        "feed.html",
        events=[
            (one, _details(one), (one.model_extra or {}).get("wallet_id"), _links(view, one, there))
            for one in found.data
        ],
        labels=named,
        unread=unread,
        waiting={one.approval_id for one in (await approvals.page(view.service, by, _PENDING)).data},
        types=sorted(EVENTS),
        **listed,
    )


@action("/feed/read", roles=READERS, back=show)
async def read(view: View) -> str:
    """Mark the feed as read for the caller, up to its last event when the page was rendered."""
    by, position = view.principal, view.body(_Read, position=view.number("position")).position
    await view.service.db.write(lambda conn: mark_read(conn, by.org, by.actor, position))
    return view.url("feed")


async def _there(view: View, shown: Sequence[Event]) -> set[str]:
    """Return the ids of all existing policies and budgets. Reads a kind only if one of the events refers to it."""
    named = {name for one in shown for name, _, _ in _OBJECTS if (one.model_extra or {}).get(name)}
    there: set[str] = set()
    if "policy_id" in named:
        there |= (await policies.by_id(view.service, view.principal)).keys()
    if "budget_id" in named:
        there |= {identifier for identifier, _ in await budgets.names(view.service, view.principal)}
    return there


def _links(view: View, event: Event, there: Collection[str]) -> list[tuple[str, str]]:
    """Return an event's links to objects other than its vault. Objects that no longer exist are omitted."""
    given = event.model_extra or {}
    found = [(view.url(page, str(given[name])), label) for name, page, label in _OBJECTS if given.get(name) in there]
    if given.get("approval_id"):
        found.append((view.url("approvals"), "Approvals"))
    if event.event == "escrow.disputed" and given.get("escrow_id"):
        found.append((view.url("disputes", str(given["escrow_id"])), "Dispute"))
    return found


def _details(event: Event) -> str:
    return json.dumps(event.model_dump(), indent=2, ensure_ascii=False)
