"""Alert rules, and the alerts that currently hold according to the read models. Times are Unix milliseconds.

A lasting alert (a low balance, inactivity, a velocity spike) is reported once. Its mark is stored in the transaction
that adds the event, and stays until the condition no longer holds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    delete,
    distinct,
    exists,
    func,
    select,
)

from app.core.timestamps import HOUR
from app.core.transaction_types import REFUSED, SPENT
from app.database.columns import metadata, upsert, upsert_all
from app.database.record_tables import FALSE, table_of
from app.database.records import columns_of, fetch_all
from app.database.signals import RULES, signal
from app.store.alert_kinds import AlertType
from app.store.read_tables import REFUSALS as REFUSALS_OF_ROW
from app.store.read_tables import transactions, wallets

MAX_THRESHOLD = 2**63 - 1
"""Largest threshold that the column can store."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """The rule for one alert type. Its `scope` is a wallet, or the organisation for all wallets without their own rule.

    `threshold` is in micro-USDC, hours or transactions per hour. It is None if the type has no threshold or the alert
    is off. If a wallet's `emails` are None, the organisation's addresses apply. With `freezes`, the alert freezes the
    wallet. `minutes` is the length of the period for counting refusals or new payees.
    """

    scope: str
    """Id of a wallet, or address of the organisation for all wallets without their own rule."""
    type: AlertType
    org: str
    enabled: bool
    threshold: int | None
    """Threshold in micro-USDC, hours or transactions per hour, depending on the type; null if there is none."""
    emails: Annotated[Sequence[str] | None, JSON(none_as_null=True)]
    """E-mail addresses. In a wallet's rule, null stands for the organisation's addresses."""
    updated_at: int
    freezes: Annotated[bool, FALSE] = False
    """True if the alert freezes the wallet."""
    minutes: Annotated[int | None, Integer()] = None
    """Minutes of the period for counting refusals or new payees; null for a whole day."""


rules = table_of(
    "alert_rules",
    AlertRule,
    Index("alert_rules_by_type", "type", "enabled"),
    key=["scope", "type"],
)

marks = Table(
    "alert_marks",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("type", String, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("marked_at", BigInteger, nullable=False),
    Column("count", Integer, doc="number of refused payments since marked_at"),
    Index("alert_marks_by_type", "type"),
)


@dataclass(frozen=True, slots=True)
class AlertTransition:
    """A wallet to check: an alert may begin to hold or, if it is already `marked` as reported, may no longer hold."""

    wallet_id: str
    org: str
    balance: int
    last_transaction_at: int | None
    threshold: int
    marked: bool


def put_rules(connection: Connection, scope: str, new: Sequence[AlertRule]) -> None:
    """Replace all rules of a scope."""
    connection.execute(delete(rules).where(rules.c.scope == scope))
    upsert_all(connection, rules, [columns_of(rule) for rule in new], keys=["scope", "type"])
    signal(connection, RULES)


def rules_of(connection: Connection, scopes: Collection[str]) -> dict[tuple[str, AlertType], AlertRule]:
    """Return the rules of wallets and organisations, by scope and type."""
    found = fetch_all(connection, AlertRule, _RULES, {"scopes": list(scopes)})
    return {(rule.scope, rule.type): rule for rule in found}


def watches(connection: Connection, kinds: Collection[AlertType]) -> bool:
    """Return True if any rule enables one of these types of alerts."""
    return bool(connection.scalar(_WATCHES, {"types": list(kinds)}))


def changed_alerts(
    connection: Connection, kind: AlertType, now: int, *, vaults: Collection[str] | None = None, limit: int
) -> list[AlertTransition]:
    """Return up to `limit` wallets for which a low-balance or inactivity alert begins or ends.

    `vaults` limits the search to these vaults. A wallet that never held USDC does not count as low. A wallet without
    payments, escrows and allowances counts as inactive since its creation. Received money does not count as activity.
    """
    query = _CHANGED[kind] if vaults is None else _CHANGED_OF_VAULTS[kind]
    return fetch_all(connection, AlertTransition, query, {"now": now, "most": limit, "vaults": list(vaults or ())})


def busy_wallets(connection: Connection, now: int, *, vaults: Collection[str] | None = None) -> list[AlertTransition]:
    """Return the wallets to check for a velocity spike.

    These are the wallets with an enabled rule and a transaction in the last hour, limited to `vaults` if given, and all
    wallets with a spike that is marked as reported.
    """
    query = _BUSY if vaults is None else _BUSY_OF_VAULTS
    return fetch_all(connection, AlertTransition, query, {"now": now, "vaults": list(vaults or ())})


def exceeds_velocity(connection: Connection, wallet_id: str, threshold: int, now: int) -> bool:
    """Return True if a wallet had more than `threshold` confirmed payments, escrows and allowances in the last hour."""
    parameters = {"wallet": wallet_id, "since": now - HOUR, "count": threshold}
    return connection.scalar(_SPENT_LATELY.offset(bindparam("count")).limit(1), parameters) is not None


def velocity(connection: Connection, wallet_id: str, now: int) -> int:
    """Return the number of the wallet's confirmed payments, escrows and allowances in the last hour."""
    return connection.scalar(_VELOCITY, {"wallet": wallet_id, "since": now - HOUR}) or 0


def mark(connection: Connection, wallet_id: str, kind: str, event_id: str, now: int) -> None:
    """Mark an alert as reported by this event."""
    values = {"wallet_id": wallet_id, "type": kind, "event_id": event_id, "marked_at": now, "count": 0}
    upsert(connection, marks, values, keys=["wallet_id", "type"])


def recent(connection: Connection, wallet_id: str, kind: AlertType, now: int, period: int) -> int:
    """Return the number of a wallet's refusals, or of its first-time payees, in a period up to `now`.

    `period` is in milliseconds. The period begins no earlier than the last reported alert of this type. One row may
    count all equal refusals within an hour, but only the time of the first is known. In a period shorter than an hour,
    such a row therefore counts as a single refusal.
    """
    since = connection.scalar(_MARKED_AT, {"wallet": wallet_id, "type": kind}) or 0
    parameters = {"wallet": wallet_id, "since": max(since, now - period), "until": now}
    of_refusals = _REFUSED if period >= HOUR else _REFUSED_ROWS
    return connection.scalar(of_refusals if kind == "refusals" else _PAYEES, parameters) or 0


def has_new_payee(connection: Connection, wallet_id: str, tx_id: str) -> bool:
    """Return True if a transaction is the wallet's first payment to its payee."""
    return connection.scalar(_NEW_PAYEE, {"wallet": wallet_id, "tx": tx_id}) is not None


def unmark(connection: Connection, wallet_id: str, kind: str) -> None:
    """Remove the mark of an alert that no longer holds."""
    connection.execute(delete(marks).where(marks.c.wallet_id == wallet_id, marks.c.type == kind))


_RULES = select(rules).where(rules.c.scope.in_(bindparam("scopes", expanding=True)))
_WATCHES = select(exists().where(rules.c.type.in_(bindparam("types", expanding=True)), rules.c.enabled))

_OWN, _COMMON = rules.alias("own"), rules.alias("common")
# Not a coalesce: a wallet's own rule can turn an alert off.
_THRESHOLD: ColumnElement[Any] = case((_OWN.c.scope.is_not(None), _OWN.c.threshold), else_=_COMMON.c.threshold)
_MARKED = marks.c.wallet_id.is_not(None)


def _watching(kind: AlertType, holds: ColumnElement[bool]) -> tuple[Select[Any], ColumnElement[Any]]:
    """Return the query of wallets and their thresholds, and an expression that is 1 if the alert holds, else 0."""
    query = select(
        wallets.c.wallet_id,
        wallets.c.org,
        wallets.c.balance,
        wallets.c.last_transaction_at,
        func.coalesce(_THRESHOLD, 0).label("threshold"),
        _MARKED.label("marked"),
    ).select_from(
        wallets.outerjoin(_OWN, and_(_OWN.c.scope == wallets.c.wallet_id, _OWN.c.type == kind))
        .outerjoin(_COMMON, and_(_COMMON.c.scope == wallets.c.org, _COMMON.c.type == kind))
        .outerjoin(marks, and_(marks.c.wallet_id == wallets.c.wallet_id, marks.c.type == kind))
    )
    return query, case((and_(_THRESHOLD.is_not(None), ~wallets.c.archived, holds), 1), else_=0)


def _changed(kind: AlertType, holds: ColumnElement[bool]) -> Select[Any]:
    query, now_holds = _watching(kind, holds)
    return query.where(now_holds != case((_MARKED, 1), else_=0)).limit(bindparam("most"))


_NOW = bindparam("now", type_=BigInteger)
# Received money does not count, because another wallet could delay the alert by paying this one.
_SPENT = select(transactions.c.tx_id).where(
    transactions.c.wallet_id == wallets.c.wallet_id,
    transactions.c.status == "confirmed",
    transactions.c.type.in_(SPENT),
    transactions.c.timestamp > _NOW - _THRESHOLD * HOUR,
)
_OF_VAULTS = wallets.c.vault.in_(bindparam("vaults", expanding=True))
_CHANGED: dict[AlertType, Select[Any]] = {
    "balance_low": _changed("balance_low", and_(wallets.c.funded, wallets.c.balance < _THRESHOLD)),
    "inactivity": _changed("inactivity", and_(wallets.c.created_at + _THRESHOLD * HOUR <= _NOW, ~exists(_SPENT))),
}
_CHANGED_OF_VAULTS = {kind: query.where(_OF_VAULTS) for kind, query in _CHANGED.items()}

_SPENDS, _MAY_SPIKE = _watching("velocity_spike", wallets.c.last_transaction_at > _NOW - HOUR)
_BUSY = _SPENDS.where((_MAY_SPIKE == 1) | _MARKED)
_BUSY_OF_VAULTS = _SPENDS.where(((_MAY_SPIKE == 1) & _OF_VAULTS) | _MARKED)

_LATELY = (
    transactions.c.wallet_id == bindparam("wallet"),
    transactions.c.timestamp > bindparam("since"),
    transactions.c.type.in_(SPENT),
    transactions.c.status == "confirmed",
)
# Stops at the threshold, so that a busy wallet's rows are not all counted.
_SPENT_LATELY = select(transactions.c.timestamp).where(*_LATELY).order_by(transactions.c.timestamp.desc())
_VELOCITY = select(func.count()).where(*_LATELY)

_MARKED_AT = select(marks.c.marked_at).where(
    marks.c.wallet_id == bindparam("wallet"), marks.c.type == bindparam("type")
)
_REFUSED_ROWS = select(func.count()).where(
    transactions.c.wallet_id == bindparam("wallet"),
    transactions.c.status == "blocked",
    transactions.c.type.in_(REFUSED),
    transactions.c.timestamp > bindparam("since"),
    transactions.c.timestamp <= bindparam("until"),
)
_REFUSED = _REFUSED_ROWS.with_only_columns(func.sum(REFUSALS_OF_ROW))
_EARLIER = transactions.alias("earlier")
_PAID_EARLIER = exists().where(
    _EARLIER.c.wallet_id == bindparam("wallet"),
    _EARLIER.c.recipient_address == transactions.c.recipient_address,
    _EARLIER.c.status == "confirmed",
    _EARLIER.c.type.in_(SPENT),
)
_NEW_PAYEE = select(transactions.c.tx_id).where(
    transactions.c.tx_id == bindparam("tx"), ~_PAID_EARLIER.where(_EARLIER.c.timestamp < transactions.c.timestamp)
)
_PAYEES = select(func.count(distinct(transactions.c.recipient_address))).where(
    *_LATELY,
    transactions.c.timestamp <= bindparam("until"),
    ~_PAID_EARLIER.where(_EARLIER.c.timestamp <= bindparam("since")),
)
