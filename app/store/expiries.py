"""Wallets with an expired policy."""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from app.database.paging import unindexed
from app.database.records import fetch_all
from app.store.read_tables import policies, wallets


@dataclass(frozen=True, slots=True)
class ExpiredWallet:
    """A wallet that is not frozen although its policy has expired; all fields but `wallet_id` are addresses."""

    wallet_id: str
    org: str
    vault: str
    policy: str


def expired_wallets(connection: Connection, now: int) -> list[ExpiredWallet]:
    """Return the wallets to freeze at the Unix second `now`. A policy is still valid in its second of expiry."""
    return fetch_all(connection, ExpiredWallet, _EXPIRED, {"now": now})


_EXPIRED = (
    select(wallets.c.wallet_id, wallets.c.org, wallets.c.vault, wallets.c.policy)
    # Joins from the few expired policies to their wallets, never the other way.
    .join(policies, (unindexed(policies.c.address) == wallets.c.policy) & (unindexed(policies.c.org) == wallets.c.org))
    .where(policies.c.expiry < bindparam("now"), wallets.c.frozen == 0, ~wallets.c.archived)
)
