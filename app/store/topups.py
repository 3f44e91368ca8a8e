"""Auto-topup rules: each refills a wallet from the reserve by a set amount when its balance falls below a trigger."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, Index, select

from app.database.columns import upsert
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.store.organisations import reserves
from app.store.read_tables import wallets

MAX_AMOUNT = 2**63 - 1
"""The largest amount in a rule, in micro-USDC: the column's maximum, far above all USDC that can exist."""


@dataclass(frozen=True, slots=True)
class TopupRecord:
    """A wallet's rule: while `enabled`, a balance below `trigger_below` is raised by `topup_amount` (micro-USDC)."""

    wallet_id: str
    enabled: bool
    trigger_below: int | None
    """Balance below which the wallet is refilled, in micro-USDC."""
    topup_amount: int | None
    """Amount of each top-up, in micro-USDC."""
    updated_at: int
    """Time of the last change, in Unix milliseconds."""


topup_rules = table_of(
    "topup_rules",
    TopupRecord,
    Index("topup_rules_enabled", "enabled"),
    key=["wallet_id"],
)


@dataclass(frozen=True, slots=True)
class LowWallet:
    """A wallet below its rule's trigger, as of its vault's `sequence`; `reserve` is the reserve's micro-USDC."""

    wallet_id: str
    org: str
    vault: str
    tokens: str
    sequence: int
    trigger_below: int
    topup_amount: int
    reserve: int


def put_topup_rule(connection: Connection, rule: TopupRecord) -> None:
    """Store a wallet's rule, replacing the old one."""
    upsert(connection, topup_rules, columns_of(rule), keys=["wallet_id"])


def topup_rule(connection: Connection, wallet_id: str) -> TopupRecord | None:
    """Return the wallet's rule, or None if it never had one."""
    return fetch_one(connection, TopupRecord, select(topup_rules).where(topup_rules.c.wallet_id == wallet_id))


def topup_rules_of(connection: Connection, wallet_ids: Collection[str]) -> dict[str, TopupRecord]:
    """Return the rules of wallets, by id."""
    query = select(topup_rules).where(topup_rules.c.wallet_id.in_(wallet_ids))
    return {one.wallet_id: one for one in fetch_all(connection, TopupRecord, query)}


def low_wallets(connection: Connection) -> list[LowWallet]:
    """Return the wallets below their trigger that are not frozen or archived, in organisations that are not paused."""
    return fetch_all(connection, LowWallet, _LOW)


_LOW = (
    select(
        wallets.c.wallet_id,
        wallets.c.org,
        wallets.c.vault,
        wallets.c.tokens,
        wallets.c.sequence,
        topup_rules.c.trigger_below,
        topup_rules.c.topup_amount,
        reserves.c.balance.label("reserve"),
    )
    .select_from(topup_rules)
    .join(wallets, wallets.c.wallet_id == topup_rules.c.wallet_id)
    .join(reserves, reserves.c.org == wallets.c.org)
    .where(
        topup_rules.c.enabled,
        wallets.c.balance < topup_rules.c.trigger_below,
        wallets.c.frozen == 0,
        ~wallets.c.archived,
        ~reserves.c.paused,
    )
)
