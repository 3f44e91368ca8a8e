"""Approvals: the operator's on-chain consent, each to one payment, escrow or allowance."""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, and_, bindparam, func, not_, or_, select

from app.core.transaction_types import Purpose
from app.database.records import fetch_one
from app.store.approval_decisions import ApprovalDecision, approvals_given
from app.store.approval_requests import ENOUGH, ApprovalRequest
from app.store.approval_requests import approval_requests as requests
from app.store.read_tables import OnChainApproval, policies, wallets
from app.store.read_tables import approvals as table


def open_approval(  # noqa: PLR0917
    connection: Connection,
    org: str,
    vault: str,
    recipient: str,
    amount: int,
    purpose: Purpose,
    now: int,
    *,
    required: int = 0,
    terms: str | None = None,
    unusable: Collection[str] = (),
) -> OnChainApproval | None:
    """Return the unused approval for this expense that expires first, or None. `now` is a Unix second.

    `required` is the number of people who must approve. `terms` is the hash of an escrow's terms as hex.

    The approval must have been given under the vault's current policy and version. If the approval was not requested
    through this service, only the policy's version is compared, because the policy is unknown. Approvals at the
    addresses in `unusable` are skipped, because they were found not to work.
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
            table.c.purpose == purpose,
            table.c.terms.is_not_distinct_from(terms),
            table.c.policy_version == policies.c.version,
            or_(requests.c.policy.is_(None), asked),
            func.coalesce(requests.c.approvals_required, 0) == required,
            *([ENOUGH] if required else []),
            table.c.state == "open",
            table.c.expires_at > now,
            table.c.address.not_in(unusable),
        )
        .order_by(table.c.expires_at)
        .limit(1)
    )
    return fetch_one(connection, OnChainApproval, query)


def details(
    connection: Connection, found: Sequence[ApprovalRequest]
) -> tuple[Sequence[ApprovalDecision], Collection[str]]:
    """Return the approvals that people have given to these requests, and the ids of the outdated requests.

    A pending or approved request is outdated if its policy or policy version is no longer the wallet's.
    """
    by_people = [one.approval_id for one in found if one.approvals_required]
    given = approvals_given(connection, by_people) if by_people else []
    live = [one for one in found if one.status in {"pending", "approved"}]
    rows = connection.execute(_ATTACHED, {"ids": {one.wallet_id for one in live}}).all() if live else ()
    attached = {wallet_id: (policy, version) for wallet_id, policy, version in rows}
    return given, {one.approval_id for one in live if attached.get(one.wallet_id) != (one.policy, one.policy_version)}


def approval(connection: Connection, org: str, address: str) -> OnChainApproval | None:
    """Return the approval at this address, open or not, or None."""
    return fetch_one(connection, OnChainApproval, select(table).where(table.c.org == org, table.c.address == address))


_ATTACHED = (
    select(wallets.c.wallet_id, wallets.c.policy, policies.c.version)
    .join(policies, policies.c.address == wallets.c.policy)
    .where(wallets.c.wallet_id.in_(bindparam("ids", expanding=True)), not_(wallets.c.archived))
)
