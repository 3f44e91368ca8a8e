"""Deletion of old deliveries, and of deliveries to deleted webhooks. Times are Unix milliseconds."""

from sqlalchemy import Connection, bindparam, delete, exists, select

from app.store import webhooks
from app.store.deliveries import LIFETIME, table
from app.store.delivery_attempts import table as attempts
from app.store.idempotency import LIFETIME as REPEATABLE


def purge(connection: Connection, now: int, *, limit: int) -> bool:
    """Delete deliveries that are old or belong to a deleted webhook. Return True if more may remain.

    At most `limit` deliveries and `limit` attempts are deleted; a delivery is deleted together with its last attempt. A
    queued delivery is old if its next attempt was due more than `LIFETIME` ago. Otherwise the queue of a degraded
    webhook would grow forever. The row of a deleted webhook is deleted once the webhook has no deliveries and the
    request for its deletion can no longer be replayed.
    """
    gone: list[str] = []
    for webhook_id, status in connection.execute(_WEBHOOKS).all():
        query = _ALL if status == "deleted" else _OLD
        parameters = {"webhook": webhook_id, "bound": now - LIFETIME, "most": limit - len(gone)}
        gone += connection.scalars(query, parameters)
        if len(gone) == limit:
            break
    theirs = select(attempts.c.id).where(attempts.c.delivery_id.in_(gone)).limit(limit)
    forgotten = connection.execute(delete(attempts).where(attempts.c.id.in_(theirs))).rowcount
    bare = ~exists().where(attempts.c.delivery_id == table.c.delivery_id)
    connection.execute(delete(table).where(table.c.delivery_id.in_(gone), bare))
    empty = ~exists().where(table.c.webhook_id == webhooks.table.c.webhook_id)
    # The webhook's row is kept that long, because the request that deleted the webhook can be repeated.
    past = webhooks.table.c.updated_at < now - REPEATABLE
    connection.execute(delete(webhooks.table).where(webhooks.table.c.status == "deleted", past, empty))
    return limit in (len(gone), forgotten)


_WEBHOOKS = select(webhooks.table.c.webhook_id, webhooks.table.c.status)
_ALL = select(table.c.delivery_id).where(table.c.webhook_id == bindparam("webhook")).limit(bindparam("most"))
# Lists every status, because the index has the status before `due_at`.
_OLD = _ALL.where(table.c.status.in_(("pending", "delivered", "failed")), table.c.due_at < bindparam("bound"))
