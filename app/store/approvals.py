"""Approvals: co-signatures that the operator left on the chain for one payment each."""

from dataclasses import dataclass

from sqlalchemy import Connection, select

from app.store.read_tables import approvals as table
from app.store.read_tables import policies, wallets


@dataclass(frozen=True, slots=True)
class Approval:
    """An approval of exactly this amount (micro-USDC) from `vault` to `recipient`, until the Unix second given."""

    address: str
    org: str
    vault: str
    recipient: str
    amount: int
    policy_version: int
    expires_at: int
    payer: str
    state: str


def open_approval(  # noqa: PLR0917
    connection: Connection, org: str, vault: str, recipient: str, amount: int, now: int
) -> Approval | None:
    """Return an unused approval that is good for this payment at the Unix second `now`; the first to expire.

    One given under another version of the vault's policy is good for nothing.
    """
    version = (
        select(policies.c.version)
        .join(wallets, wallets.c.policy == policies.c.address)
        .where(wallets.c.vault == vault)
        .scalar_subquery()
    )
    fits = (
        table.c.policy_version == version,
        table.c.org == org,
        table.c.vault == vault,
        table.c.recipient == recipient,
        table.c.amount == amount,
        table.c.state == "open",
        table.c.expires_at > now,
    )
    row = connection.execute(select(table).where(*fits).order_by(table.c.expires_at).limit(1)).one_or_none()
    return None if row is None else Approval(**row._mapping)  # noqa: SLF001


def approval(connection: Connection, org: str, address: str) -> Approval | None:
    """Return the approval at this address, open or not."""
    row = connection.execute(select(table).where(table.c.org == org, table.c.address == address)).one_or_none()
    return None if row is None else Approval(**row._mapping)  # noqa: SLF001
