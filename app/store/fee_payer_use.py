"""Use of the fee payer by wallets and organisations: lamports and opened token accounts per UTC day.

Each day has its own row. A clock that steps back across midnight therefore finds the earlier day's use.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    String,
    Table,
    bindparam,
    delete,
    func,
    literal,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite

from app.chain.fees import ALLOWANCE_RENT, ESCROW_RENT
from app.core.timestamps import DAY
from app.database.columns import metadata
from app.database.statements import execute_all, rows
from app.store.allowances import OUTSTANDING, PENDING
from app.store.allowances import table as allowances
from app.store.escrows import OPEN
from app.store.organisations import table as organisations
from app.store.read_tables import escrows
from app.store.state_tables import setting_values
from app.store.values import get_value, put_value

table = Table(
    "fee_payer_use",
    metadata,
    Column("scope", String, primary_key=True, doc="a wallet, or the organisation for the total of its wallets"),
    Column("day", Integer, primary_key=True, autoincrement=False, doc="UTC days since 1970"),
    Column("lamports", BigInteger, nullable=False, doc="fees, and rent that does not return"),
    Column("token_accounts", Integer, nullable=False, doc="number of accounts opened for recipients"),
    Index("fee_payer_use_by_day", "day"),
)

_AVERAGED = 7
_LIMITS = "sol_limits:"


def charge(
    connection: Connection, org: str, wallet_id: str, day: int, *, lamports: int, accounts: int
) -> tuple[int, int, Mapping[str, int]]:
    """Add a cost to the use of a wallet and its organisation, in one statement.

    Returns the day's total lamports of both, and the organisation's own limits in lamports by name.
    """
    row = {"org": org, "wallet": wallet_id, "given_day": day, "given_lamports": lamports, "limits": _LIMITS + org}
    row["given_token_accounts"] = accounts
    found = execute_all(connection, _charge(connection.dialect.name), [row], columns=())
    used = {scope: amount for scope, amount, _ in found}
    return used[wallet_id], used[org], json.loads(found[0][2] or "{}")


def use_of(connection: Connection, scope: str, day: int) -> tuple[int, int]:
    """Return the lamports and token accounts that the fee payer paid for a wallet or organisation on a day."""
    _, found = rows(connection, _USE, {"scope": scope, "day": day})
    return (found[0][0], found[0][1]) if found else (0, 0)


def held_rent(connection: Connection, wallet_id: str) -> tuple[int, int]:
    """Return the lamports of rent in a wallet's open escrows and allowances, and the earliest of their end times.

    The time is a Unix second; both numbers are 0 if nothing is open.
    """
    total, end = connection.execute(_HELD, {"wallet": wallet_id}).one()
    return int(total or 0), end or 0


def average_use(connection: Connection, day: int) -> int:
    """Return the lamports that all organisations together used per day, averaged over up to seven days to ``day``."""
    total, first = connection.execute(_TOTAL, {"since": day - _AVERAGED}).one()
    return int(total) // max(day - first + 1, 1) if total else 0


def limits_of(connection: Connection, org: str) -> dict[str, int]:
    """Return the limits in lamports that the organisation has set for itself, by name."""
    found: dict[str, int] = json.loads(get_value(connection, _LIMITS + org) or "{}")
    return found


def put_limits(connection: Connection, org: str, limits: Mapping[str, int]) -> None:
    """Store the organisation's own limits."""
    put_value(connection, _LIMITS + org, json.dumps(limits))


def forget(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` rows of days before a Unix millisecond and return the number deleted."""
    old = select(table.c.scope, table.c.day).where(table.c.day < before // DAY).limit(most)
    return connection.execute(delete(table).where(tuple_(table.c.scope, table.c.day).in_(old))).rowcount


_USE = select(table.c.lamports, table.c.token_accounts).where(
    table.c.scope == bindparam("scope"), table.c.day == bindparam("day")
)
_TOTAL = select(func.sum(table.c.lamports), func.min(table.c.day)).where(
    table.c.day > bindparam("since"), table.c.scope.in_(select(organisations.c.org))
)


def _open(kind: Table, rent: int, end: Column[int], statuses: Sequence[str]) -> Any:
    return select(literal(rent).label("rent"), end.label("ends")).where(
        kind.c.wallet_id == bindparam("wallet"), kind.c.status.in_(statuses)
    )


_OPEN = union_all(
    _open(escrows, ESCROW_RENT, escrows.c.deadline, (PENDING, *OPEN)),
    _open(allowances, ALLOWANCE_RENT, allowances.c.expires_at, (PENDING, OUTSTANDING)),
).subquery()
_HELD = select(func.sum(_OPEN.c.rent), func.min(_OPEN.c.ends))


@cache
def _charge(dialect: str) -> Any:
    new = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    given: dict[str, Any] = {name: bindparam(f"given_{name}") for name in ("day", "lamports", "token_accounts")}
    added = {name: table.c[name] + new.excluded[name] for name in ("lamports", "token_accounts")}
    own = select(setting_values.c.value).where(setting_values.c.name == bindparam("limits")).scalar_subquery()
    new = new.values([{"scope": bindparam(name), **given} for name in ("wallet", "org")])
    chosen = new.on_conflict_do_update(index_elements=["scope", "day"], set_=added)
    return chosen.returning(table.c.scope, table.c.lamports, own)
