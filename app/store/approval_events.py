"""Events about requests for approvals."""

from typing import Any

from sqlalchemy import Connection, tuple_

from app.core.actors import Actor
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.database.records import fetch_all, fetch_one
from app.store.approval_requests import LIFETIME, REQUESTS, ApprovalRequest, NewRequest, table
from app.store.feed import report_once
from app.store.values import get_value, put_value

#: The order in which requests are checked for their age. A stored position is the time and id of the last one checked.
_ORDER = (table.c.created_at, table.c.approval_id)


def facts(asked: NewRequest, **more: Any) -> dict[str, Any]:
    """Return the payload of an event about a request, with the fields in `more` added."""
    expires_at = getattr(asked, "expires_at", asked.created_at + LIFETIME)
    shown = {name: getattr(asked, name) for name in ("approval_id", "wallet_id", "purpose", "recipient", "memo")}
    shown["approvals_required"] = asked.approvals_required
    shown |= {"recipient_address": asked.recipient_address, "amount": format_usdc(asked.amount)}
    return {**shown, "requested_by": shown_actor(asked.requested_by), "expires_at": iso_ms(expires_at), **more}


def shown_actor(actor: Actor | None) -> dict[str, str] | None:
    """Return an actor as events show it."""
    return None if actor is None else {"type": actor.type, "id": actor.id}


def summary(asked: NewRequest, outcome: str) -> str:
    """Return the sentence of an event about a request."""
    return f"Approval of {format_usdc(asked.amount)} USDC to {asked.recipient} {outcome}"


def report_approval(connection: Connection, outcome: str, asked: NewRequest, now: int, **more: Any) -> None:
    """Add the event `approval.{outcome}` about a request at the Unix millisecond `now`.

    `outcome` is `requested`, `given`, `decided`, `expired` or `reminder`.
    """
    kind, says = f"approval.{outcome}", summary(asked, more.get("decision", outcome))
    step = f"{asked.approval_id}/{more['given_by']['id']}" if "given_by" in more else asked.approval_id
    report_once(connection, kind, asked.org, now, step, summary=says, **facts(asked, **more))


def report_expired_approvals(connection: Connection, now: int, *, most: int) -> int:
    """Add the events of requests that ended without a decision. Check up to `most` requests and return their number.

    The first call reports nothing: it only stores the position from which later calls continue.
    """
    return _report_old(connection, now, "expired", LIFETIME, most)


def report_reminders(connection: Connection, now: int, *, most: int) -> int:
    """Add the reminders of pending requests that people must approve, once half of a request's lifetime has passed.

    Check up to `most` requests and return their number. As with expired requests, the first call only stores the
    position for later calls.
    """
    return _report_old(connection, now, "reminder", LIFETIME // 2, most)


def _report_old(connection: Connection, now: int, outcome: str, age: int, most: int) -> int:
    reached = get_value(connection, place := f"approvals.{outcome}")
    since, _, last = (reached or f"{now - age} ").partition(" ")
    # The partial index of undecided requests serves this order.
    query = REQUESTS.where(table.c.decided_at.is_(None), table.c.created_at <= now - age)
    query = query.where(tuple_(*_ORDER) > (int(since), last)).order_by(*_ORDER).limit(most)
    found = fetch_all(connection, ApprovalRequest, query, {"now": now})
    for one in found:
        if one.status == outcome or (outcome == "reminder" and one.status == "pending" and one.approvals_required):
            report_approval(connection, outcome, one, now)
        last, since = one.approval_id, str(one.created_at)
    if found or reached is None:
        put_value(connection, place, f"{since} {last}")
    return len(found)


def request_at(connection: Connection, address: str, now: int) -> ApprovalRequest | None:
    """Return the request for the approval at this address, or None if this service has no such request."""
    return fetch_one(connection, ApprovalRequest, REQUESTS.where(table.c.address == address), {"now": now})
