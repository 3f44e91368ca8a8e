"""Auto-topup rules: which wallets are filled up from the reserve, from when on and by how much."""

from dataclasses import dataclass

from sqlalchemy import BigInteger, Boolean, Column, Connection, Index, String, Table, select

from app.store.columns import columns_of, metadata, upsert
from app.store.read_tables import reserves, wallets

MAX_AMOUNT = 2**63 - 1
"""The largest micro-USDC of a rule: the column's, far above all USDC there can be."""

topup_rules = Table(
    "topup_rules",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("enabled", Boolean, nullable=False),
    Column("trigger_below", BigInteger, comment="micro-USDC"),
    Column("topup_amount", BigInteger, comment="micro-USDC"),
    Column("updated_at", BigInteger, nullable=False, comment="Unix milliseconds"),
    Index("topup_rules_enabled", "enabled"),
)


@dataclass(frozen=True, slots=True)
class TopupRecord:
    """A wallet's rule: while `enabled`, a balance below `trigger_below` is raised by `topup_amount` (micro-USDC)."""

    wallet_id: str
    enabled: bool
    trigger_below: int | None
    topup_amount: int | None
    updated_at: int


@dataclass(frozen=True, slots=True)
class LowWallet:
    """A wallet whose balance is below its rule's, at `sequence` of its vault; `reserve` is what could fill it up."""

    wallet_id: str
    org: str
    vault: str
    tokens: str
    sequence: int
    trigger_below: int
    topup_amount: int
    reserve: int


def put_topup_rule(connection: Connection, rule: TopupRecord) -> None:
    """Store a wallet's rule in place of the one it had."""
    upsert(connection, topup_rules, columns_of(rule), keys=["wallet_id"])


def topup_rule(connection: Connection, wallet_id: str) -> TopupRecord | None:
    """Return the wallet's rule, if it was ever given one."""
    row = connection.execute(select(topup_rules).where(topup_rules.c.wallet_id == wallet_id)).one_or_none()
    return None if row is None else TopupRecord(**row._mapping)  # noqa: SLF001


def low_wallets(connection: Connection) -> list[LowWallet]:
    """Return the wallets that are to be filled up; never a frozen or archived one, nor one of a paused organisation."""
    return [LowWallet(**row._mapping) for row in connection.execute(_LOW)]  # noqa: SLF001


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
