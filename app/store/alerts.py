"""Alert rules, which alerts hold at the moment, and what follows from the read models. Times are Unix milliseconds.

An alert that lasts (a low balance, inactivity, a velocity spike) is told once: its mark, made in the transaction that
adds the event, stays until the condition does not hold any more.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Index,
    Row,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    select,
)

from app.store.alert_kinds import BALANCE_LOW, HOUR, INACTIVITY, VELOCITY_SPIKE, AlertType
from app.store.columns import columns_of, metadata, upsert_all
from app.store.read_tables import transactions, wallets
from app.store.transactions import ESCROW_LOCK, PAYMENT

MAX_THRESHOLD = 2**63 - 1
"""The largest threshold that its column holds."""

rules = Table(
    "alert_rules",
    metadata,
    Column("scope", String, primary_key=True, comment="the wallet, or the organisation for all that have no own rule"),
    Column("type", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("threshold", BigInteger, comment="micro-USDC, hours or transactions an hour"),
    Column("emails", JSON(none_as_null=True), comment="null in a wallet's rule: those of the organisation's"),
    Column("updated_at", BigInteger, nullable=False),
    Index("alert_rules_by_type", "type", "enabled"),
)

marks = Table(
    "alert_marks",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("type", String, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("marked_at", BigInteger, nullable=False),
    Index("alert_marks_by_type", "type"),
)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One type of alert for a `scope`: a wallet, or the organisation for all wallets without a rule of their own.

    `threshold` is in micro-USDC, hours or transactions an hour, and None where the type has none or the alert is off.
    `emails` of None, in a wallet's rule, are the organisation's.
    """

    scope: str
    type: AlertType
    org: str
    enabled: bool
    threshold: int | None
    emails: Sequence[str] | None
    updated_at: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A wallet for which an alert starts to hold, or, when `marked`, does not hold any more."""

    wallet_id: str
    org: str
    balance: int
    last_transaction_at: int | None
    threshold: int
    marked: bool


def put_rules(connection: Connection, scope: str, new: Sequence[AlertRule]) -> None:
    """Store rules in place of all those of the scope."""
    connection.execute(delete(rules).where(rules.c.scope == scope))
    upsert_all(connection, rules, [columns_of(rule) for rule in new], keys=["scope", "type"])


def rules_of(connection: Connection, scopes: Collection[str]) -> dict[tuple[str, AlertType], AlertRule]:
    """Return the rules of wallets and organisations, by scope and type."""
    found = connection.execute(_RULES, {"scopes": list(scopes)})
    return {(row.scope, row.type): AlertRule(**row._mapping) for row in found}  # noqa: SLF001


def watches(connection: Connection, kinds: Collection[AlertType]) -> bool:
    """Whether there is any rule by which an alert of these types may hold."""
    return bool(connection.scalar(_WATCHES, {"types": list(kinds)}))


def turns(
    connection: Connection, kind: AlertType, now: int, *, vaults: Collection[str] | None = None, limit: int
) -> list[Watched]:
    """Return where a low balance or inactivity began or ended; of these vaults, or of all; at most `limit`.

    A wallet that never held USDC is not low; one that never had a transaction is inactive since its creation.
    """
    parameters: dict[str, Any] = {"now": now, "most": limit}
    if vaults is None:
        return [_watched(row) for row in connection.execute(_TURNS[kind], parameters)]
    return [_watched(row) for row in connection.execute(_TURNS_OF_VAULTS[kind], {**parameters, "vaults": list(vaults)})]


def busy_wallets(connection: Connection, now: int, *, vaults: Collection[str] | None = None) -> list[Watched]:
    """Return the wallets for which a velocity spike is to be looked for, or may be over.

    Those of `vaults`, or all that had a transaction within the last hour; and those for which one holds.
    """
    if vaults is None:
        return [_watched(row) for row in connection.execute(_BUSY, {"now": now})]
    return [_watched(row) for row in connection.execute(_BUSY_OF_VAULTS, {"now": now, "vaults": list(vaults)})]


def exceeds_velocity(connection: Connection, wallet_id: str, threshold: int, now: int) -> bool:
    """Whether the wallet had more payments and escrows than `threshold` within the last hour."""
    parameters = {"wallet": wallet_id, "since": now - HOUR, "count": threshold}
    return connection.scalar(_SPENT_LATELY.offset(bindparam("count")).limit(1), parameters) is not None


def velocity(connection: Connection, wallet_id: str, now: int) -> int:
    """Return how many payments and escrows the wallet had within the last hour."""
    return connection.scalar(_VELOCITY, {"wallet": wallet_id, "since": now - HOUR}) or 0


def mark(connection: Connection, wallet_id: str, kind: AlertType, event_id: str, now: int) -> None:
    """Note that an alert was told."""
    values = {"wallet_id": wallet_id, "type": kind, "event_id": event_id, "marked_at": now}
    connection.execute(insert(marks).values(values))


def unmark(connection: Connection, wallet_id: str, kind: AlertType) -> None:
    """Note that an alert does not hold any more."""
    connection.execute(delete(marks).where(marks.c.wallet_id == wallet_id, marks.c.type == kind))


def _watched(row: Row[Any]) -> Watched:
    values = dict(row._mapping)  # noqa: SLF001
    return Watched(**{**values, "marked": bool(values["marked"])})


_RULES = select(rules).where(rules.c.scope.in_(bindparam("scopes", expanding=True)))
_WATCHES = select(exists().where(rules.c.type.in_(bindparam("types", expanding=True)), rules.c.enabled))

_OWN, _COMMON = rules.alias("own"), rules.alias("common")
# Not the first that is not null: a wallet's own rule may switch an alert off.
_THRESHOLD: ColumnElement[Any] = case((_OWN.c.scope.is_not(None), _OWN.c.threshold), else_=_COMMON.c.threshold)
_MARKED = marks.c.wallet_id.is_not(None)


def _watching(kind: AlertType, holds: ColumnElement[bool]) -> tuple[Select[Any], ColumnElement[Any]]:
    """Return the wallets with their thresholds for a type of alert, and 1 where it holds, else 0."""
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


def _turning(kind: AlertType, holds: ColumnElement[bool]) -> Select[Any]:
    query, now_holds = _watching(kind, holds)
    return query.where(now_holds != case((_MARKED, 1), else_=0)).limit(bindparam("most"))


_NOW = bindparam("now", type_=BigInteger)
_SINCE = func.coalesce(wallets.c.last_transaction_at, wallets.c.created_at)
_OF_VAULTS = wallets.c.vault.in_(bindparam("vaults", expanding=True))
_TURNS: dict[AlertType, Select[Any]] = {
    BALANCE_LOW: _turning(BALANCE_LOW, and_(wallets.c.funded, wallets.c.balance < _THRESHOLD)),
    INACTIVITY: _turning(INACTIVITY, _SINCE + _THRESHOLD * HOUR <= _NOW),
}
_TURNS_OF_VAULTS = {kind: query.where(_OF_VAULTS) for kind, query in _TURNS.items()}

_SPENDS, _MAY_SPIKE = _watching(VELOCITY_SPIKE, wallets.c.last_transaction_at > _NOW - HOUR)
_BUSY = _SPENDS.where((_MAY_SPIKE == 1) | _MARKED)
_BUSY_OF_VAULTS = _SPENDS.where(((_MAY_SPIKE == 1) & _OF_VAULTS) | _MARKED)

_LATELY = (
    transactions.c.wallet_id == bindparam("wallet"),
    transactions.c.timestamp > bindparam("since"),
    transactions.c.type.in_((PAYMENT, ESCROW_LOCK)),
    transactions.c.status == "confirmed",
)
# Newest first, so that a high count is not counted to its end.
_SPENT_LATELY = select(transactions.c.timestamp).where(*_LATELY).order_by(transactions.c.timestamp.desc())
_VELOCITY = select(func.count()).where(*_LATELY)
