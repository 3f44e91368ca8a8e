"""Approval requests: expenses that a policy refused because the operator has not co-signed them.

A request's outcome follows from the chain, unless the request is rejected or expires before its Approval exists there.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    DefaultClause,
    Delete,
    Index,
    Select,
    UniqueConstraint,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    text,
    update,
)

from app.core.actors import Actor
from app.core.pages import RecordPage
from app.core.transaction_types import Purpose
from app.database.columns import U64
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.record_tables import insert_record, table_of
from app.database.records import fetch_one
from app.store.approval_decisions import number_given
from app.store.read_tables import approvals

LIFETIME = 24 * 60 * 60 * 1000
"""Milliseconds in which a request can be approved, and in which its approval can then be used."""

_SLACK = 60 * 60 * 1000
#: By status, the greatest age in milliseconds at which a request that this service approves can have that status. A
#: search by status skips older requests. The slack covers an approval that lands slightly late or follows another
#: clock.
_WINDOWS = {"pending": LIFETIME, "approved": 2 * LIFETIME + _SLACK}

MAX_PENDING = 1_000
"""Limit of a wallet's undecided requests. One more replaces the oldest, so that a new request is always possible."""
MAX_PENDING_OF_ONE = MAX_PENDING // 4
"""Limit of a wallet's undecided requests made by one key or person.

One more request replaces the oldest one by the same requester.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request to approve exactly this payment, escrow or allowance; `amount` and `threshold` are in micro-USDC.

    `memo` is copied from the refused request.
    """

    approval_id: str
    org: str
    wallet_id: str
    address: str
    """Address of the on-chain Approval account, which exists only after the approval."""
    recipient: str
    """The recipient as given by the client."""
    recipient_address: str
    amount: Annotated[int, U64()]
    purpose: Annotated[Purpose, DefaultClause("payment")]
    policy: str
    """Address of the policy that refused the expense."""
    policy_id: str
    policy_version: Annotated[int, U64()]
    threshold: Annotated[int | None, U64()]
    """Co-sign threshold of this version of the policy, in micro-USDC."""
    requested_by: Actor
    memo: str | None
    created_at: int
    rejected: bool = False
    decided_by: Actor | None = None
    """Actor who made the last decision."""
    decided_at: int | None = None
    terms: str | None
    """Hash of an escrow's terms, as hex."""
    escrow_terms: Annotated[dict[str, Any] | None, JSON(none_as_null=True)]
    """An escrow's terms, as the API shows them."""
    approvals_required: Annotated[int, DefaultClause(text("0"))] = 0
    """The number of people who must approve; 0 if one decision made with an operator's or admin's key suffices."""
    reason: str | None = None
    """Reason for the rejection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest(NewRequest):
    """A request and its status: `pending`, `approved`, `rejected`, `used` or `expired`.

    `on_chain` is the state of its Approval account: `open`, `used` or `closed`, or None if there never was one. Times
    are Unix milliseconds.
    """

    currency: ClassVar = "USDC"
    on_chain: str | None
    expires_at: int
    status: str


approval_requests = table = table_of(
    "approval_requests",
    NewRequest,
    UniqueConstraint("address"),
    Index("approval_requests_newest", "org", "created_at", "approval_id"),
    Index("approval_requests_by_wallet", "wallet_id", "created_at", "approval_id"),
    Index(
        *("approval_requests_undecided", "created_at"),
        sqlite_where=text("decided_at IS NULL"),
        postgresql_where=text("decided_at IS NULL"),
    ),
    Index("approval_requests_by_payment", "wallet_id", "recipient_address", "amount"),
    key=["approval_id"],
)


def add_request(connection: Connection, new: NewRequest, *, unusable: Collection[str] = ()) -> str:
    """Store a request and return its id, or return the id of an equal request that is pending or approved.

    Requests with an Approval at one of the addresses `unusable` do not count as equal. If the requester or the wallet
    then has too many undecided requests, the oldest of these are deleted.
    """
    same = (
        table.c.wallet_id == new.wallet_id,
        table.c.recipient_address == new.recipient_address,
        table.c.amount == new.amount,
        table.c.purpose == new.purpose,
        table.c.terms.is_not_distinct_from(new.terms),
        table.c.policy == new.policy,
        table.c.policy_version == new.policy_version,
        table.c.approvals_required == new.approvals_required,
        table.c.address.not_in(unusable),
        _STATUS.in_(("pending", "approved")),
    )
    # Without a match, an index by time would scan the wallet's entire history.
    query = _REQUESTS.where(*same).order_by(unindexed(table.c.created_at).desc()).limit(1)
    known = fetch_one(connection, ApprovalRequest, query.params(org=new.org, now=new.created_at))
    if known is not None:
        return known.approval_id
    insert_record(connection, new)
    scope = {"org": new.org, "wallet_id": new.wallet_id, "now": new.created_at}
    connection.execute(_DELETE_SURPLUS_OF_ONE, {**scope, "actor": new.requested_by})
    connection.execute(_DELETE_SURPLUS, scope)
    return new.approval_id


def approval_request(connection: Connection, org: str, approval_id: str, now: int) -> ApprovalRequest | None:
    """Return the organisation's request with this id, or None."""
    return fetch_one(connection, ApprovalRequest, _BY_ID, {"org": org, "now": now, "key": approval_id})


def amounts_of(connection: Connection, org: str, ids: Collection[str]) -> list[tuple[str, int, str]]:
    """Return id, micro-USDC and requested recipient of the organisation's requests with these ids."""
    query = select(table.c.approval_id, table.c.amount, table.c.recipient)
    return [
        tuple(row)
        for row in connection.execute(query.where(unindexed(table.c.org) == org, table.c.approval_id.in_(ids)))
    ]


def approval_requests_of(
    connection: Connection,
    org: str,
    now: int,
    *,
    wallet_id: str | None = None,
    status: str | None = None,
    limit: int = 20,
    cursor: str | None = None,
) -> RecordPage[ApprovalRequest]:
    """Return the organisation's requests, newest first. Raises `InvalidCursorError`."""
    parameters = {"org": org, "now": now, "wallet_id": wallet_id, "status": status}
    chosen = _listing(
        of_wallet=wallet_id is not None, with_status=status is not None, window=_WINDOWS.get(status or "")
    )
    return fetch_page(connection, ApprovalRequest, chosen, parameters, limit=limit, cursor=cursor)


def count_waiting(connection: Connection, org: str, now: int, most: int) -> int:
    """Return the number of the organisation's pending requests without a decision under way, at most `most`."""
    return connection.scalar(_WAITING, {"org": org, "now": now, "most": most}) or 0


def decide(
    connection: Connection, approval_id: str, *, by: Actor, now: int, rejected: bool, reason: str | None = None
) -> None:
    """Store a decision and its actor. A rejection takes effect while the Approval does not exist or is closed."""
    mine = update(table).where(table.c.approval_id == approval_id)
    connection.execute(mine.values(decided_by=by, decided_at=now, rejected=rejected, reason=reason))


def reopen(connection: Connection, approval_id: str) -> None:
    """Remove a decision after its transaction has failed."""
    mine = update(table).where(table.c.approval_id == approval_id)
    connection.execute(mine.values(decided_by=None, decided_at=None))


_NOW = bindparam("now", type_=BigInteger)
#: The largest Unix second that 64-bit milliseconds can express. Anyone with the operator's key can create an approval
#: that expires even later.
_FOR_EVER = 2**63 // 1000
_EXPIRES_AT = func.coalesce(
    case((approvals.c.expires_at > _FOR_EVER, _FOR_EVER * 1000), else_=approvals.c.expires_at * 1000),
    table.c.created_at + LIFETIME,
)
ENOUGH = or_(table.c.approvals_required == 0, number_given(table.c.approval_id) >= table.c.approvals_required)
"""True if the required number of people have approved a request. People who may no longer approve do not count."""
# The first condition that holds determines the status.
_STATUS = case(
    (approvals.c.state == "used", literal("used")),
    (and_(table.c.rejected, func.coalesce(approvals.c.state, "closed") == "closed"), literal("rejected")),
    (_NOW >= _EXPIRES_AT, literal("expired")),
    # The approval was withdrawn outside this service.
    (approvals.c.state == "closed", literal("rejected")),
    (and_(approvals.c.state == "open", ENOUGH), literal("approved")),
    else_=literal("pending"),
)


REQUESTS = select(
    table,
    approvals.c.state.label("on_chain"),
    _EXPIRES_AT.label("expires_at"),
    _STATUS.label("status"),
).outerjoin(approvals, approvals.c.address == table.c.address)
"""All requests, with the parameter `now` in Unix milliseconds."""


def _query(org: ColumnElement[Any]) -> Select[Any]:
    """Return the query for an organisation's requests, with the parameters `org` and `now`."""
    return REQUESTS.where(org == bindparam("org"))


_REQUESTS = _query(table.c.org)
_BY_ID = _REQUESTS.where(table.c.approval_id == bindparam("key"))
# The partial index of undecided requests serves the count.
_PENDING = _REQUESTS.with_only_columns(table.c.approval_id).where(table.c.decided_at.is_(None), _STATUS == "pending")
_PENDING = _PENDING.where(table.c.created_at > _NOW - LIFETIME).limit(bindparam("most"))
_WAITING = select(func.count()).select_from(_PENDING.subquery())
_OF_WALLET = _query(unindexed(table.c.org)).where(table.c.wallet_id == bindparam("wallet_id"))
_UNDECIDED = _OF_WALLET.with_only_columns(table.c.approval_id).where(
    table.c.created_at > _NOW - LIFETIME,
    table.c.decided_at.is_(None),
    _STATUS == "pending",
)


def _surplus(undecided: Select[Any], most: int) -> Delete:
    """Return the statement that deletes all `undecided` requests but the `most` newest, up to 100 at a time.

    Requests with a decision under way are kept.
    """
    newest = undecided.order_by(table.c.created_at.desc(), table.c.approval_id.desc())
    return delete(table).where(table.c.approval_id.in_(newest.limit(100).offset(most)))


_DELETE_SURPLUS = _surplus(_UNDECIDED, MAX_PENDING)
_DELETE_SURPLUS_OF_ONE = _surplus(_UNDECIDED.where(table.c.requested_by == bindparam("actor")), MAX_PENDING_OF_ONE)


@cache
def _listing(*, of_wallet: bool, with_status: bool, window: int | None) -> Listing:
    query = _OF_WALLET if of_wallet else _REQUESTS
    if with_status:
        query = query.where(bindparam("status") == _STATUS)
    if window is not None:
        query = query.where(table.c.created_at > _NOW - window)
    return listing(query, time=table.c.created_at, key=table.c.approval_id)
