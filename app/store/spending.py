"""Spending and refusals by day and month, and the labels that payments keep.

A database transaction that changes a counted row also changes its sums.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, Literal, get_args

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    String,
    Table,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    tuple_,
    union,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from app.core.transaction_types import REFUSED, SPENT
from app.database.columns import metadata
from app.database.statements import execute, execute_later, rows
from app.store.read_tables import REFUSALS, budgets, recipients, transactions, wallets
from app.store.state_tables import wallet_tags
from app.store.values import get_value, put_value

LabelKind = Literal["tag", "budget", "category", "rule"]
KINDS: Sequence[LabelKind] = get_args(LabelKind)
TOTAL: Final = "total"
NUMBERS: Sequence[str] = ("spent", "payments", "refused")
_FILLED = "spending.filled"
"""Name of the value with the position of the first day not counted by `fill`, or with `_ALL` once all are counted."""
_ALL = "all"
_Scope = Literal["tx_id", "wallet_id", "org", "day"]
_DAY_MS = 86_400_000

labels = Table(
    "transaction_labels",
    metadata,
    *(Column(name, String, primary_key=True) for name in ("tx_id", "kind", "key")),
    Column("org", String, nullable=False),
    Column("timestamp", BigInteger, nullable=False),
    Index("transaction_labels_newest", "org", "kind", "key", "timestamp", "tx_id"),
)
"""The labels that payments, escrows and refusals had when they were made. Labels survive a rebuild.

Depending on the kind, the key is a tag, the id of a budget (empty without a budget), the code of a category, or a rule.
"""
table = Table(
    "spending",
    metadata,
    *(Column(name, String, primary_key=True) for name in ("org", "kind", "period", "key")),
    *(Column(name, BigInteger, nullable=False) for name in NUMBERS),
)
"""The sums of each UTC day, such as 2026-05-01, and month, such as 2026-05.

The kind is `total`, `wallet`, `recipient` or the kind of a label. `spent` is in micro-USDC.
"""


class _UtcDay(FunctionElement[str]):
    """The UTC day of a Unix millisecond, as text."""

    type = String()
    inherit_cache = True


@compiles(_UtcDay, "sqlite")
def _day_on_sqlite(element: _UtcDay, compiler: Any, **options: Any) -> str:
    return f"strftime('%Y-%m-%d', {compiler.process(element.clauses, **options)} / 1000, 'unixepoch')"


@compiles(_UtcDay, "postgresql")
def _day_on_postgresql(element: _UtcDay, compiler: Any, **options: Any) -> str:
    moment = compiler.process(element.clauses, **options)
    return f"to_char(to_timestamp({moment} / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


def label(connection: Connection, scope: _Scope, keys: Collection[str]) -> None:
    """Give the unlabelled payments, escrows and refusals of a scope the labels that apply now.

    `keys` are the values of the scope's column, such as ids of transactions.
    """
    execute(connection, _labelling(connection.dialect.name, scope), {}, keys=list(keys))


def label_attempt(connection: Connection, made: Mapping[str, Any], rule: str | None) -> None:
    """Give the row of a new attempt its labels. If possible, the write is sent together with neighbouring writes."""
    values = {name: made[name] for name in _MADE} | {"rule": rule}
    execute_later(connection, _labelling(connection.dialect.name, None), [values])


def count_attempt(connection: Connection, tx_id: str) -> None:
    """Add the stored payment or escrow of an attempt to the sums. Call this when the attempt is confirmed.

    As in `label_attempt`, the write is sent together with neighbouring writes if possible.
    """
    execute_later(connection, _counting(connection.dialect.name, None), [{"tx_id": tx_id, "sign": 1}])


def count(connection: Connection, scope: _Scope, keys: Collection[str], *, sign: Literal[1, -1] = 1) -> None:
    """Add the transactions of this scope to the sums, or with `sign=-1` subtract them."""
    execute(connection, _counting(connection.dialect.name, scope), {}, keys=list(keys), sign=sign)


def fill(connection: Connection) -> bool:
    """Label and count one more day of an organisation's transactions. Return False once all days are counted.

    Databases of older versions have transactions without labels and sums. Each day is counted from zero, because its
    sums may already contain some of its changes. A later change in a counted day updates the day's sums.
    """
    place = get_value(connection, _FILLED) or "0 "
    if place == _ALL:
        return False
    moment, org = place.split(" ", 1)
    columns = (transactions.c.org, transactions.c.timestamp)
    rest = select(*columns).where(tuple_(*columns) >= tuple_(org, int(moment))).order_by(*columns).limit(1)
    first = connection.execute(rest).first()
    if first is not None:
        start = first.timestamp - first.timestamp % _DAY_MS
        _count_day(connection, first.org, start)
        place = f"{start + _DAY_MS} {first.org}"
    put_value(connection, _FILLED, _ALL if first is None else place)
    return first is not None


def filled(connection: Connection) -> bool:
    """Return True if `fill` has counted all days."""
    return get_value(connection, _FILLED) == _ALL


def _count_day(connection: Connection, org: str, start: int) -> None:
    day = str(datetime.fromtimestamp(start // 1000, UTC).date())
    mine = (table.c.org == org, table.c.kind.in_((TOTAL, "wallet", "recipient", *KINDS)))
    connection.execute(delete(table).where(*mine, table.c.period.in_([day, day[:7]])))
    scope = {"keys": [org], "start": start, "end": start + _DAY_MS}
    execute(connection, _labelling(connection.dialect.name, "day"), {}, **scope)
    execute(connection, _counting(connection.dialect.name, "day"), {}, **scope, sign=1)
    sums = (func.sum(table.c[name]).label(name) for name in NUMBERS)
    month = select(table.c.org, table.c.kind, literal(day[:7]), table.c.key, *sums)
    month = month.where(*mine, table.c.period.between(f"{day[:7]}-01", f"{day[:7]}-31"))
    month = month.group_by(table.c.org, table.c.kind, table.c.key)
    connection.execute(insert(table).from_select(table.columns.keys(), month))


def recount(connection: Connection, orgs: Collection[str]) -> None:
    """Label and count all transactions of organisations without sums."""
    label(connection, "org", orgs)
    count(connection, "org", orgs)


def confirmed(connection: Connection, tx_ids: Collection[str]) -> set[str]:
    """Return the ids, out of `tx_ids`, of transactions that are stored as confirmed."""
    found = rows(connection, _CONFIRMED, {"keys": list(tx_ids)})[1] if tx_ids else ()
    return {tx_id for (tx_id,) in found}


LENGTHS = {"day": 10, "month": 7}
"""Number of characters in the text of each kind of period."""
_MADE = ("tx_id", "org", "wallet_id", "recipient_address", "timestamp")
_KEYS = bindparam("keys", expanding=True, type_=String)
_SCOPES: Mapping[_Scope, ColumnElement[bool]] = {
    "tx_id": transactions.c.tx_id.in_(_KEYS),
    "wallet_id": transactions.c.wallet_id.in_(_KEYS),
    "org": transactions.c.org.in_(_KEYS),
    "day": and_(
        transactions.c.org.in_(_KEYS),
        transactions.c.timestamp >= bindparam("start", type_=BigInteger),
        transactions.c.timestamp < bindparam("end", type_=BigInteger),
    ),
}
_CONFIRMED = select(transactions.c.tx_id).where(transactions.c.tx_id.in_(_KEYS), transactions.c.status == "confirmed")
_PAID = and_(transactions.c.status == "confirmed", transactions.c.type.in_(SPENT))
_BLOCKED = and_(transactions.c.status == "blocked", transactions.c.type.in_(REFUSED))


def _insert(dialect: str, target: Table) -> Any:
    return (postgresql if dialect == "postgresql" else sqlite).insert(target)


@cache
def _labelling(dialect: str, scope: _Scope | None) -> Any:
    """Return the statement of `label` or `label_attempt`.

    The statement skips rows that have labels, so that these labels stay. Every labelled row has at least a category.
    """
    if scope is None:
        kinds = {**{name: transactions.c[name].type for name in _MADE}, "rule": String()}
        made = select(*(bindparam(name, type_=kind).label(name) for name, kind in kinds.items())).subquery()
    else:
        rule = transactions.c.violation["rule"].as_string().label("rule")
        chosen = (_SCOPES[scope], or_(transactions.c.type.in_(SPENT), _BLOCKED))
        made = select(*(transactions.c[name] for name in _MADE), rule).where(*chosen).subquery()
    registered = and_(
        recipients.c.org == made.c.org,
        recipients.c.address == made.c.recipient_address,
        recipients.c.effective_at <= made.c.timestamp // 1000,
    )
    source = made.outerjoin(wallets, wallets.c.wallet_id == made.c.wallet_id)
    source = source.outerjoin(budgets, budgets.c.address == wallets.c.budget).outerjoin(recipients, registered)
    source = source.outerjoin(wallet_tags, wallet_tags.c.wallet_id == made.c.wallet_id)
    keys: dict[LabelKind, ColumnElement[str]] = {
        "tag": wallet_tags.c.tag,
        "budget": func.coalesce(budgets.c.budget_id, ""),
        "category": cast(func.coalesce(recipients.c.category, 0), String),
        "rule": made.c.rule,
    }
    new = ~exists().where(labels.c.tx_id == made.c.tx_id)
    parts = [
        select(made.c.tx_id, literal(kind).label("kind"), key.label("key"), made.c.org, made.c.timestamp)
        .select_from(source)
        .where(new, key.is_not(None))
        for kind, key in keys.items()
    ]
    # A union without duplicates, because a wallet with several tags gives several rows.
    return _insert(dialect, labels).from_select([column.name for column in labels.columns], union(*parts))


@cache
def _counting(dialect: str, scope: _Scope | None) -> Any:
    """Return the statement of `count` or `count_attempt`.

    The statement of `count_attempt` may run before the row is marked as confirmed, so it does not check the status.
    """
    paid = true() if scope is None else _PAID
    facts = (
        transactions.c.org,
        _UtcDay(transactions.c.timestamp).label("day"),
        case((paid, transactions.c.amount), else_=0).label("spent"),
        case((paid, 1), else_=0).label("payments"),
        case((paid, 0), else_=REFUSALS).label("refused"),
    )
    one = transactions.c.tx_id == bindparam("tx_id")
    chosen = (one,) if scope is None else (_SCOPES[scope], or_(_PAID, _BLOCKED))
    recipient = func.coalesce(transactions.c.recipient_address, "")
    keys = {TOTAL: literal(""), "wallet": transactions.c.wallet_id, "recipient": recipient}
    parts = [select(literal(kind).label("kind"), key.label("key"), *facts).where(*chosen) for kind, key in keys.items()]
    labelled = select(labels.c.kind, labels.c.key, *facts).where(labels.c.tx_id == transactions.c.tx_id, *chosen)
    each = union_all(*parts, labelled).subquery()
    spans = [LENGTHS["day"]] if scope == "day" else LENGTHS.values()
    lengths = union_all(*(select(literal(one).label("length")) for one in spans)).subquery()
    period = func.substr(each.c.day, 1, lengths.c.length).label("period")
    groups = (each.c.org, each.c.kind, period, each.c.key)
    sums = [(func.sum(each.c[name]) * bindparam("sign", type_=BigInteger)).label(name) for name in NUMBERS]
    summed = select(*groups, *sums).select_from(each.join(lengths, true())).group_by(*groups)
    statement = _insert(dialect, table).from_select([column.name for column in table.columns], summed)
    added = {name: table.c[name] + statement.excluded[name] for name in NUMBERS}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)
