"""Wallets whose policy's time has passed."""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from app.store.read_tables import policies, wallets


@dataclass(frozen=True, slots=True)
class ExpiredWallet:
    """A wallet that is not frozen although its policy has expired; all are addresses but `wallet_id`."""

    wallet_id: str
    org: str
    vault: str
    policy: str


def expired_wallets(connection: Connection, now: int) -> list[ExpiredWallet]:
    """Return the wallets that are to be frozen at the Unix second `now`; the second of expiry itself still pays."""
    return [ExpiredWallet(**row._mapping) for row in connection.execute(_EXPIRED, {"now": now})]  # noqa: SLF001


_EXPIRED = (
    select(wallets.c.wallet_id, wallets.c.org, wallets.c.vault, wallets.c.policy)
    .join(policies, (policies.c.address == wallets.c.policy) & (policies.c.org == wallets.c.org))
    .where(policies.c.expiry < bindparam("now"), wallets.c.frozen == 0, ~wallets.c.archived)
)
