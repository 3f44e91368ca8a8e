"""Idempotency keys: the request that holds each key, and its response.

Callers with different scopes may use the same key. The first caller's record is stored under the key itself, so that a
version without scopes finds it during an upgrade. The records of other callers are stored under their scope and the
key.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from sqlalchemy import Connection, Index, Integer, bindparam, delete, exists, func, or_, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from app.database.leases import node_is_alive
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.database.statements import execute

LIFETIME = 24 * 60 * 60 * 1000
"""Milliseconds for which a replay gets the stored response."""

State = Literal["running", "done"]
"""`running`: in progress, or with an unknown outcome; `done`: has a stored response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRecord:
    """The request that holds a key. `body_hash` covers the parsed body, so that formatting does not matter.

    `sealed_for` is the digest of the API key that seals a secret response. `node` is the node that runs the request; it
    is None if no node runs it, and on SQLite. `scope` names the caller; None if a version without scopes stored the
    record. A response of `kept_bytes` counts in the quota of the wallet `kept_for`. Once the quota is full, `reduced`
    replaces the oldest responses. While the request is running, `response` is a partial result, and a repetition of the
    request continues from it.
    """

    org: str
    key: str
    method: str
    path: str
    body_hash: str
    state: str
    """The state: `running` or `done`."""
    status_code: Annotated[int | None, Integer()] = None
    response: str | None = None
    tx_id: str | None = None
    sealed_for: str | None = None
    """HMAC of the API key that seals a secret response."""
    node: str | None = None
    """Node that runs the request; null if no node runs it, and on SQLite."""
    created_at: int
    expires_at: int
    scope: str | None = None
    """Id of an agent's wallet or of a viewer's API key, or empty; null if stored by a version without scopes."""
    kept_for: str | None = None
    """Id of the wallet with a quota that counts the response; null if the response cannot be reduced."""
    kept_bytes: Annotated[int | None, Integer()] = None
    """Size of a reducible response in bytes."""
    reduced: str | None = None
    """Smaller response that replaces the stored one once the quota is full; null if the stored one stays."""


table = table_of(
    "idempotency",
    IdempotencyRecord,
    Index("ix_idempotency_expires_at", "expires_at"),
    Index(
        *("idempotency_kept", "kept_for", "created_at", "kept_bytes"),
        sqlite_where=text("reduced IS NOT NULL"),
        postgresql_where=text("reduced IS NOT NULL"),
    ),
    key=["org", "key"],
)

# Built once: building a statement takes longer than executing it.
_BY_KEY = select(table).where(table.c.org == bindparam("org"), table.c.key == bindparam("key"))
_OF_CALLER = select(table).where(
    table.c.org == bindparam("org"), table.c.key.in_([bindparam("key"), bindparam("other")])
)
_UPDATE = update(table).where(table.c.org == bindparam("of_org"), table.c.key == bindparam("of_key"))
_KEEP_PARTIAL = _UPDATE.where(table.c.state == "running")
_FINISH = _KEEP_PARTIAL.where(table.c.node == bindparam("of_node"))


@dataclass(frozen=True, slots=True)
class Reducible:
    """The smaller form of a response, and its wallet's quota for such responses in bytes."""

    wallet_id: str
    reduced: str
    quota: int


def claim(connection: Connection, record: IdempotencyRecord) -> bool:
    """Claim a key for a request. Return False if the key is held.

    Also return False if the caller already holds the key in its other stored form. An expired response frees the key;
    a running request does not.
    """
    other = _other(record.key, record.scope or "")
    return execute(connection, _claiming(connection.dialect.name), {}, other=other, **columns_of(record)) == 1


def find_own(connection: Connection, org: str, key: str, scope: str, now: int) -> tuple[str, IdempotencyRecord | None]:
    """Return the stored form of a caller's key, and its record if there is one.

    A record without a scope belongs to the whole organisation, because the version that stored it had no scopes.
    """
    given = {"org": org, "key": key, "other": _other(key, scope)}
    held = [one for one in fetch_all(connection, IdempotencyRecord, _OF_CALLER, given) if not _is_over(one, now)]
    own = [one for one in held if one.scope in {scope, None}]
    if not own:
        return given["other" if held else "key"], None
    found = next((one for one in own if one.scope == scope), own[0])
    return found.key, found


def find(connection: Connection, org: str, key: str, now: int) -> IdempotencyRecord | None:
    """Return the record that holds a key, or None if the key is free or its response has expired."""
    held = fetch_one(connection, IdempotencyRecord, _BY_KEY, {"org": org, "key": key})
    return None if held is None or _is_over(held, now) else held


def attach_transaction(connection: Connection, org: str, key: str, tx_id: str) -> None:
    """Link a request to its attempt, in the transaction that stores the attempt."""
    execute(connection, _UPDATE, {"tx_id": tx_id}, of_org=org, of_key=key)


def take_over(connection: Connection, org: str, key: str, node: str) -> IdempotencyRecord | None:
    """Assign a running request to a node, where a repetition can then continue it. Return the request's record.

    Return None if another living node still runs the request, or if the request has ended in the meantime. A node that
    has called `leave` no longer runs the request.
    """
    free = table.c.node.is_(None) | (table.c.node == node) | ~node_is_alive(table.c.node)
    mine = (table.c.org == org, table.c.key == key, table.c.state == "running", free)
    if connection.execute(update(table).where(*mine).values(node=node)).rowcount == 0:
        return None
    return fetch_one(connection, IdempotencyRecord, _BY_KEY, {"org": org, "key": key})


def runs_on(connection: Connection, org: str, key: str, node: str) -> bool:
    """Return True if a request still runs on a node."""
    held = fetch_one(connection, IdempotencyRecord, _BY_KEY, {"org": org, "key": key})
    return held is not None and held.state == "running" and held.node == node


def leave(connection: Connection, org: str, key: str, node: str) -> None:
    """Record that a request without a final response no longer runs on a node."""
    mine = (table.c.org == org, table.c.key == key, table.c.state == "running", table.c.node == node)
    connection.execute(update(table).where(*mine).values(node=None))


def finish(  # noqa: PLR0917
    connection: Connection, org: str, key: str, status_code: int, response: str, now: int, *, node: str = ""
) -> bool:
    """Store the response, which replays of the request get for the next 24 hours.

    If a ``node`` is given and the request no longer runs on it, change nothing and return False.
    """
    values = {"state": "done", "status_code": status_code, "response": response, "expires_at": now + LIFETIME}
    # A partial result no longer counts in a quota.
    values["reduced"] = None
    if node:
        return execute(connection, _FINISH, values, of_org=org, of_key=key, of_node=node) == 1
    return execute(connection, _UPDATE, values, of_org=org, of_key=key) == 1


def keep_partial(connection: Connection, org: str, key: str, partial: str, kept: Reducible) -> None:
    """Store a partial result of a running request within its wallet's quota."""
    if execute(connection, _KEEP_PARTIAL, {"response": partial}, of_org=org, of_key=key):
        keep_within(connection, org, key, len(partial.encode()), kept)


def keep_within(connection: Connection, org: str, key: str, size: int, kept: Reducible) -> None:
    """Count a stored response of `size` bytes in its wallet's quota, and reduce the oldest responses beyond it."""
    values = {"kept_for": kept.wallet_id, "kept_bytes": size, "reduced": kept.reduced}
    execute(connection, _UPDATE, values, of_org=org, of_key=key)
    newest = table.c.created_at.desc(), table.c.key.desc()
    total = func.sum(table.c.kept_bytes).over(order_by=newest).label("total")
    sums = select(table.c.key, total).where(table.c.kept_for == kept.wallet_id, table.c.reduced.is_not(None)).subquery()
    beyond = table.c.key.in_(select(sums.c.key).where(sums.c.total > kept.quota))
    connection.execute(update(table).where(table.c.org == org, beyond).values(response=table.c.reduced, reduced=None))


def release(connection: Connection, org: str, key: str) -> None:
    """Free the key of a request that failed without changing anything."""
    connection.execute(delete(table).where(table.c.org == org, table.c.key == key, table.c.state != "done"))


def purge(connection: Connection, now: int) -> int:
    """Delete expired responses and return their number. Replace expired partial results by their reduced form."""
    partial = (table.c.state == "running", table.c.reduced.is_not(None), table.c.expires_at <= now)
    connection.execute(update(table).where(*partial).values(response=table.c.reduced, reduced=None))
    return connection.execute(delete(table).where(table.c.state == "done", table.c.expires_at <= now)).rowcount


def _other(key: str, scope: str) -> str:
    """Return the other stored form of a caller's key. Clients' keys contain no line feed, so the forms differ."""
    beginning = f"{scope}\n"
    return key.removeprefix(beginning) if key.startswith(beginning) else beginning + key


@cache
def _claiming(dialect: str) -> Any:
    """Return the statement that claims a key unless the caller holds its other form.

    Check and claim are a single statement.
    """
    other, now = table.alias(), bindparam("created_at", type_=table.c.created_at.type)
    held = exists().where(
        other.c.org == bindparam("org"),
        other.c.key == bindparam("other"),
        or_(other.c.scope.is_(None), other.c.scope == bindparam("scope")),
        or_(other.c.state == "running", other.c.expires_at > now),
    )
    values = select(*(bindparam(one.name, type_=one.type) for one in table.c)).where(~held)
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table).from_select(table.c.keys(), values)
    return statement.on_conflict_do_update(
        index_elements=["org", "key"],
        set_={one.name: statement.excluded[one.name] for one in table.c},
        where=(table.c.state == "done") & (table.c.expires_at <= now),
    )


def _is_over(held: IdempotencyRecord, now: int) -> bool:
    return held.state == "done" and held.expires_at <= now
