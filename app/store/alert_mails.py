"""E-mails and Slack messages of alerts: their queue and the outcome of each. Times are Unix milliseconds.

As with webhook deliveries, one database transaction queues the e-mails of some events and moves the alerts' own
position in the feed past these events. Every committed event is therefore processed once, even if the process dies.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from sqlalchemy import (
    BigInteger,
    Connection,
    Index,
    Integer,
    Text,
    bindparam,
    cast,
    func,
    select,
    update,
)

from app.database.claims import claim
from app.database.columns import upsert_all
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all
from app.database.statements import scalar
from app.store.deletion import delete_some
from app.store.deliveries import LIFETIME, MAX_ATTEMPTS, retry_at
from app.store.feed import FeedEvent, last_position
from app.store.feed import table as feed
from app.store.state_tables import setting_values
from app.store.values import get_value, put_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A message about an event to a recipient: `pending` while queued, then `sent`, or `failed` after all attempts.

    A summary is one e-mail in place of several `omitted` e-mails. The summary's `event_id` belongs to no event, because
    a summary is not about a single event.
    """

    mail_id: str
    event_id: str
    org: str
    type: str
    """Type of the event. E-mails queued by older code have the type of the alert instead."""
    recipient: str
    """An e-mail address, or the id of a Slack channel."""
    subject: str
    body: Annotated[str, Text()]
    status: str = "pending"
    """The status: `pending`, `sent` or `failed`."""
    attempts: Annotated[int, Integer()] = 0
    """Number of failed attempts."""
    due_at: int
    """Time of the next attempt or, if none is planned, of the last attempt."""
    created_at: int
    wallet_id: str | None = None
    omitted: Annotated[int | None, Integer()] = None
    """Number of omitted e-mails that a summary replaces; None for other e-mails."""


table = table_of(
    "alert_mails",
    Mail,
    Index("alert_mails_due", "status", "due_at"),
    Index("alert_mails_counted", "org", "type", "recipient", "created_at"),
    key=["mail_id"],
)

_POSITION = "alerts.position"


def begin(connection: Connection) -> None:
    """Set the alerts' position in the feed to the end of the feed, unless a position is already stored."""
    if get_value(connection, _POSITION) is None:
        put_value(connection, _POSITION, str(last_position(connection)))


def unread(connection: Connection) -> bool:
    """Return True if the feed has events that alerts have not read."""
    return bool(scalar(connection, _UNREAD, {}))


def read_feed(connection: Connection, types: Collection[str], limit: int) -> list[FeedEvent]:
    """Return up to `limit` of the next events of these types, and move the alerts' position past them."""
    query = select(feed).where(feed.c.position > _position(connection), feed.c.type.in_(types))
    events = fetch_all(connection, FeedEvent, query.order_by(feed.c.position).limit(limit))
    last = events[-1].position if len(events) == limit else last_position(connection)
    put_value(connection, _POSITION, str(last))
    return events


def queue(connection: Connection, mails: Sequence[Mail]) -> None:
    """Queue e-mails, skipping those already queued for the same event and address.

    A summary replaces an older summary with the same id.
    """
    for replace in (False, True):
        rows = [columns_of(one) for one in mails if (one.omitted is not None) == replace]
        upsert_all(connection, table, rows, keys=["mail_id"], replace=replace)


def count_since(connection: Connection, org: str, kind: str, recipient: str, since: int) -> Mapping[str | None, int]:
    """Return, by wallet, the number of e-mails about a type of event that were queued for an address after `since`.

    Summaries are not counted.
    """
    parameters = {"of_org": org, "of_type": kind, "to": recipient, "since": since}
    return {one.wallet_id: one.queued for one in connection.execute(_COUNT, parameters)}


def omitted_so_far(connection: Connection, summary_id: str) -> int:
    """Return the number of e-mails that a stored summary replaces, or 0 if there is no such summary."""
    return connection.scalar(select(table.c.omitted).where(table.c.mail_id == summary_id)) or 0


def due_mails(connection: Connection, now: int, limit: int, *, slack: bool = False) -> list[Mail]:
    """Return up to `limit` due e-mails or, with `slack`, due Slack messages, longest overdue first."""
    return fetch_all(connection, Mail, _DUE[slack], {"now": now, "most": limit})


def claim_mails(connection: Connection, now: int, limit: int, node: str, *, slack: bool = False) -> list[str]:
    """Claim up to `limit` of the messages of `due_mails` that no other node is sending, and return their ids."""
    due = _DUE[slack].with_only_columns(table.c.mail_id).params(now=now, most=limit)
    return claim(connection, table.c.mail_id, due, node)


def mails_of(connection: Connection, mail_ids: Collection[str]) -> list[Mail]:
    """Return the pending messages with these ids."""
    return fetch_all(connection, Mail, select(table).where(table.c.mail_id.in_(mail_ids), table.c.status == "pending"))


def record_sent(connection: Connection, mail: Mail, now: int) -> None:
    """Store that the mail server accepted an e-mail."""
    connection.execute(_NOTE, {"id": mail.mail_id, "state": "sent", "failed": mail.attempts, "due": now})


def record_failure(connection: Connection, mail: Mail, now: int, *, last: bool = False) -> bool:
    """Store a failed attempt to send a message. Return True if no retry follows.

    Retries follow after the same pauses as for webhook deliveries. With `last`, or after all attempts, none follows.
    """
    failed = mail.attempts + 1
    last = last or failed >= MAX_ATTEMPTS
    due = now if last else retry_at(failed, now)
    values = {"id": mail.mail_id, "state": "failed" if last else "pending", "failed": failed, "due": due}
    connection.execute(_NOTE, values)
    return last


def reschedule(connection: Connection, recipient: str, due: int | None) -> None:
    """Let a recipient's pending messages wait at least until `due`. If `due` is None, mark them as failed."""
    pending = update(table).where(table.c.recipient == recipient, table.c.status == "pending")
    later = pending.values(status="failed") if due is None else pending.where(table.c.due_at < due).values(due_at=due)
    connection.execute(later)


def purge(connection: Connection, now: int, *, limit: int) -> bool:
    """Delete up to `limit` sent or failed e-mails past their retention time. Return True if more may remain."""
    past = (table.c.status.in_(("sent", "failed")), table.c.due_at < now - LIFETIME)
    return delete_some(connection, table.c.mail_id, *past, most=limit) == limit


def _position(connection: Connection) -> int:
    return int(get_value(connection, _POSITION) or 0)


_READ = select(cast(setting_values.c.value, BigInteger)).where(setting_values.c.name == _POSITION)
_UNREAD = select(
    func.coalesce(select(func.max(feed.c.position)).scalar_subquery(), 0) > func.coalesce(_READ.scalar_subquery(), 0)
)
_DUE = {
    slack: select(table)
    .where(table.c.status == "pending", table.c.due_at <= bindparam("now"))
    # Every e-mail address has an @, and no id of a channel has one.
    .where(table.c.recipient.not_like("%@%") if slack else table.c.recipient.like("%@%"))
    .order_by(table.c.due_at, table.c.created_at)
    .limit(bindparam("most"))
    for slack in (False, True)
}
_COUNT = select(table.c.wallet_id, func.count().label("queued")).where(
    table.c.omitted.is_(None),
    table.c.org == bindparam("of_org"),
    table.c.type == bindparam("of_type"),
    table.c.recipient == bindparam("to"),
    table.c.created_at > bindparam("since"),
)
_COUNT = _COUNT.group_by(table.c.wallet_id)
_NOTE = (
    update(table)
    .where(table.c.mail_id == bindparam("id"))
    .values(status=bindparam("state"), attempts=bindparam("failed"), due_at=bindparam("due"))
)
