"""Approvals: co-signatures that the operator left on the chain for one payment each."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, and_, or_, select

from app.store.approval_requests import approval_requests as requests
from app.store.read_tables import approvals as table
from app.store.read_tables import policies, wallets


@dataclass(frozen=True, slots=True)
class OnChainApproval:
    """An approval of a payment, or an escrow, of exactly this amount (micro-USDC) from `vault` to `recipient`.

    Until the Unix second given.
    """

    address: str
    org: str
    vault: str
    recipient: str
    amount: int
    for_escrow: bool
    policy_version: int
    expires_at: int
    payer: str
    state: str


def open_approval(  # noqa: PLR0917
    connection: Connection,
    org: str,
    vault: str,
    recipient: str,
    amount: int,
    for_escrow: bool,
    now: int,
    *,
    worthless: Collection[str] = (),
) -> OnChainApproval | None:
    """Return an unused approval that is good for this payment or escrow at the Unix second `now`; the first to expire.

    One given under another policy than the vault's, or another version of it, is good for nothing. Of one that was not
    asked for here only the version is known; those that turn out to be `worthless` are left out by their addresses.
    """
    asked = and_(requests.c.policy == policies.c.address, requests.c.policy_version == policies.c.version)
    query = (
        select(table)
        .join(wallets, wallets.c.vault == table.c.vault)
        .join(policies, policies.c.address == wallets.c.policy)
        .outerjoin(requests, requests.c.address == table.c.address)
        .where(
            table.c.org == org,
            table.c.vault == vault,
            table.c.recipient == recipient,
            table.c.amount == amount,
            table.c.for_escrow == for_escrow,
            table.c.policy_version == policies.c.version,
            or_(requests.c.policy.is_(None), asked),
            table.c.state == "open",
            table.c.expires_at > now,
            table.c.address.not_in(worthless),
        )
        .order_by(table.c.expires_at)
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else OnChainApproval(**row._mapping)  # noqa: SLF001


def approval(connection: Connection, org: str, address: str) -> OnChainApproval | None:
    """Return the approval at this address, open or not."""
    row = connection.execute(select(table).where(table.c.org == org, table.c.address == address)).one_or_none()
    return None if row is None else OnChainApproval(**row._mapping)  # noqa: SLF001
