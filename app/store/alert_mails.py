"""E-mails of alerts: the queue, and what became of them. Times are Unix milliseconds.

They are queued by the position of their event in the feed, in the transaction that moves the alerts' own position, as
deliveries to webhooks are. So what a writer committed to the feed is queued once, whenever the process dies.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    select,
    update,
)

from app.store.alert_kinds import AlertType
from app.store.columns import columns_of, metadata, upsert_all
from app.store.deliveries import LIFETIME, MAX_ATTEMPTS, retry_at
from app.store.feed import FeedEvent
from app.store.read_tables import feed
from app.store.values import get_value, put_value

table = Table(
    "alert_mails",
    metadata,
    Column("mail_id", String, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("org", String, nullable=False),
    Column("type", String, nullable=False, comment="of the alert"),
    Column("recipient", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("body", Text, nullable=False),
    Column("status", String, nullable=False, comment="pending, sent or failed"),
    Column("attempts", Integer, nullable=False, comment="that failed"),
    Column("due_at", BigInteger, nullable=False, comment="of the next attempt; of the last one when there is no next"),
    Column("created_at", BigInteger, nullable=False),
    Index("alert_mails_due", "status", "due_at"),
    Index("alert_mails_counted", "org", "type", "recipient", "created_at"),
)

_POSITION = "alerts.position"


@dataclass(frozen=True, slots=True)
class Mail:
    """An e-mail about one event to one address: `pending` while queued, then `sent`, or `failed` after all attempts."""

    mail_id: str
    event_id: str
    org: str
    type: AlertType
    recipient: str
    subject: str
    body: str
    status: str
    attempts: int
    due_at: int
    created_at: int


def begin(connection: Connection) -> None:
    """Start at the end of the feed where alerts were never looked for before."""
    if get_value(connection, _POSITION) is None:
        put_value(connection, _POSITION, str(_last(connection)))


def unread(connection: Connection) -> bool:
    """Whether the feed has events that were not looked at."""
    return _last(connection) > _position(connection)


def read_feed(connection: Connection, types: Collection[str], limit: int) -> list[FeedEvent]:
    """Return the next events of these types, at most `limit`, and move on past them."""
    query = select(feed).where(feed.c.position > _position(connection), feed.c.type.in_(types))
    rows = connection.execute(query.order_by(feed.c.position).limit(limit))
    events = [FeedEvent(**row._mapping) for row in rows]  # noqa: SLF001
    last = events[-1].position if len(events) == limit else _last(connection)
    put_value(connection, _POSITION, str(last))
    return events


def queue(connection: Connection, mails: Sequence[Mail]) -> None:
    """Queue e-mails; one about the same event to the same address was queued already."""
    upsert_all(connection, table, [columns_of(one) for one in mails], keys=["mail_id"], replace=False)


def count_since(connection: Connection, org: str, kind: AlertType, recipient: str, since: int) -> int:
    """Return how many e-mails of an organisation, about a type of alert, were queued for an address after `since`."""
    parameters = {"of_org": org, "of_type": kind, "to": recipient, "since": since}
    return connection.scalar(_COUNT, parameters) or 0


def due_mails(connection: Connection, now: int, limit: int) -> list[Mail]:
    """Return what is to be sent now, at most `limit`, what is due for longest first."""
    return [Mail(**row._mapping) for row in connection.execute(_DUE, {"now": now, "most": limit})]  # noqa: SLF001


def record_sent(connection: Connection, mail: Mail, now: int) -> None:
    """Note that an e-mail was taken by the mail server."""
    connection.execute(_NOTE, {"id": mail.mail_id, "state": "sent", "failed": mail.attempts, "due": now})


def record_failure(connection: Connection, mail: Mail, now: int) -> bool:
    """Note a failed attempt, after which the next follows as with webhooks; returns whether it was the last."""
    failed = mail.attempts + 1
    last = failed >= MAX_ATTEMPTS
    due = now if last else retry_at(failed, now)
    values = {"id": mail.mail_id, "state": "failed" if last else "pending", "failed": failed, "due": due}
    connection.execute(_NOTE, values)
    return last


def purge(connection: Connection, now: int, *, limit: int) -> bool:
    """Delete at most `limit` old e-mails; returns whether there may be more."""
    chosen = select(table.c.mail_id).where(table.c.status != "pending", table.c.due_at < now - LIFETIME).limit(limit)
    return connection.execute(delete(table).where(table.c.mail_id.in_(chosen))).rowcount == limit


def _position(connection: Connection) -> int:
    return int(get_value(connection, _POSITION) or 0)


def _last(connection: Connection) -> int:
    return connection.scalar(select(func.max(feed.c.position))) or 0


_DUE = (
    select(table)
    .where(table.c.status == "pending", table.c.due_at <= bindparam("now"))
    .order_by(table.c.due_at, table.c.created_at)
    .limit(bindparam("most"))
)
_COUNT = select(func.count()).where(
    table.c.org == bindparam("of_org"),
    table.c.type == bindparam("of_type"),
    table.c.recipient == bindparam("to"),
    table.c.created_at > bindparam("since"),
)
_NOTE = (
    update(table)
    .where(table.c.mail_id == bindparam("id"))
    .values(status=bindparam("state"), attempts=bindparam("failed"), due_at=bindparam("due"))
)
