"""The feed: past events, newest first, and new ones as they happen."""

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from app.access.auth import READERS
from app.access.keyring import Principal
from app.api.fields import Body
from app.approvals import service as approvals
from app.approvals.models import ListApprovals
from app.budgets import service as budgets
from app.core.event_catalogue import EVENTS
from app.dashboard.forms.filters import listed
from app.dashboard.forms.vault_lookup import payee_names
from app.dashboard.pages import View, action, page
from app.events import service as events
from app.events.models import Event, EventPage, ListEvents
from app.policies import service as policies
from app.store.feed_readers import mark_read, unread_among
from app.store.spending import confirmed
from app.store.wallets import labels
from app.submission.context import Service

_PENDING = ListApprovals(status="pending", limit=100)
_SHOWN = 40
_FIELDS = ("wallet_id", "from_wallet", "to_wallet")
_PAYEES = ("recipient", "recipient_address")


class _Read(Body):
    """The field sent by the button that marks the feed as read: the position of the feed's last event.

    The position dates from the rendering of the page, so that newer events stay unread.
    """

    position: Annotated[int, Field(ge=0)]


@page("/feed", roles=READERS)
async def show(view: View) -> Response:
    """Show the feed. If a filter is invalid, show no event and a message."""
    found, shown = await listed(view, ListEvents, _load, "feed")
    given = [_given(one) for one in found.data]
    ids = {str(one[name]) for one in given for name in _FIELDS if one.get(name)}
    named = await view.service.db.read(lambda conn: labels(conn, ids))
    keys, by = [one.event_id for one in found.data], view.principal
    unread = await view.service.db.read(lambda conn: unread_among(conn, by.org, by.actor, keys))
    return view.render(
        "feed.html",
        events=[(one, fields, _details(one)) for one, fields in zip(found.data, given, strict=True)],
        labels=named,
        payees=await payee_names(view, (one.get(name) for one in given for name in _PAYEES)),
        objects=await _objects(view, {name for one in given for name, value in one.items() if value}),
        unread=unread,
        waiting={one.approval_id for one in (await approvals.page(view.service, by, _PENDING)).data},
        types=sorted(EVENTS),
        **shown,
    )


@action("/feed/read", roles=READERS, back=show)
async def read(view: View) -> str:
    """Mark the feed as read for the caller, up to its last event when the page was rendered."""
    by, position = view.principal, view.body(_Read, position=view.number("position")).position
    await view.service.db.write(lambda conn: mark_read(conn, by.org, by.actor, position))
    return view.url("feed")


async def _load(service: Service, principal: Principal, query: ListEvents) -> EventPage:
    """Return a page of events. Unless the filter names types of events, it shows one event of each payment.

    For a confirmed payment, this is the confirmation. For a refused payment with a request for approval, it is the
    refusal.
    """
    found = await events.page(service, principal, query.model_copy(update={"limit": _SHOWN}))
    if query.type or query.event:
        return found
    sent = {_given(one)["tx_id"] for one in found.data if one.event == "transaction.pending"}
    done = await service.db.read(lambda conn: confirmed(conn, sent)) if sent else set()
    asked = {_given(one).get("approval_id") for one in found.data if one.event == "transaction.blocked"}
    twice = {("transaction.pending", one) for one in done} | {("approval.requested", one) for one in asked}
    keys = {"transaction.pending": "tx_id", "approval.requested": "approval_id"}
    left = [one for one in found.data if (one.event, _given(one).get(keys.get(one.event, ""))) not in twice]
    return found.model_copy(update={"data": left})


async def _objects(view: View, fields: Collection[str]) -> dict[str, str]:
    """Return the names of existing policies and budgets by id, reading only the kinds that the fields refer to."""
    found: dict[str, str] = {}
    if "policy_id" in fields:
        ruled = await policies.by_id(view.service, view.principal)
        found |= {identifier: one.name for identifier, one in ruled.items()}
    if not {"budget_id", "previous_budget_id"}.isdisjoint(fields):
        found |= await budgets.names(view.service, view.principal)
    return found


def _given(event: Event) -> Mapping[str, Any]:
    """Return the fields of an event's type."""
    return event.model_extra or {}


def _details(event: Event) -> str:
    return json.dumps(event.model_dump(), indent=2, ensure_ascii=False)
