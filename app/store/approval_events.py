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

_REPORTED = "approvals.expired"
"""Name of the value with the creation time and the id of the last request that was checked for its end."""
_ORDER = (table.c.created_at, table.c.approval_id)


def facts(asked: NewRequest, **more: Any) -> dict[str, Any]:
    """Return the payload of an event about a request, with more fields."""
    expires_at = getattr(asked, "expires_at", asked.created_at + LIFETIME)
    shown = {name: getattr(asked, name) for name in ("approval_id", "wallet_id", "purpose", "recipient", "memo")}
    shown |= {"recipient_address": asked.recipient_address, "amount": format_usdc(asked.amount)}
    return {**shown, "requested_by": shown_actor(asked.requested_by), "expires_at": iso_ms(expires_at), **more}


def shown_actor(actor: Actor | None) -> dict[str, str] | None:
    """Return an actor as events show it."""
    return None if actor is None else {"type": actor.type, "id": actor.id}


def summary(asked: NewRequest, outcome: str) -> str:
    """Return the sentence of an event about a request."""
    return f"Approval of {format_usdc(asked.amount)} USDC to {asked.recipient} {outcome}"


def report_approval(connection: Connection, outcome: str, asked: NewRequest, now: int, **more: Any) -> None:
    """Add the event that a request was `requested`, `decided` or `expired` at the Unix millisecond `now`."""
    kind, says = f"approval.{outcome}", summary(asked, more.get("decision", outcome))
    report_once(connection, kind, asked.org, now, asked.approval_id, summary=says, **facts(asked, **more))


def report_expired_approvals(connection: Connection, now: int, *, most: int) -> int:
    """Add the events of requests that ended without a decision. Check up to `most` requests and return their number.

    The first call only stores the position for later calls.
    """
    reached = get_value(connection, _REPORTED)
    since, _, last = (reached or f"{now - LIFETIME} ").partition(" ")
    # The partial index of undecided requests serves this order.
    query = REQUESTS.where(table.c.decided_at.is_(None), table.c.created_at <= now - LIFETIME)
    query = query.where(tuple_(*_ORDER) > (int(since), last)).order_by(*_ORDER).limit(most)
    ended = fetch_all(connection, ApprovalRequest, query, {"now": now})
    for one in ended:
        if one.status == "expired":
            report_approval(connection, "expired", one, now)
        last, since = one.approval_id, str(one.created_at)
    if ended or reached is None:
        put_value(connection, _REPORTED, f"{since} {last}")
    return len(ended)


def request_at(connection: Connection, address: str, now: int) -> ApprovalRequest | None:
    """Return the request for the approval at this address, or None if it was requested elsewhere."""
    return fetch_one(connection, ApprovalRequest, REQUESTS.where(table.c.address == address), {"now": now})
