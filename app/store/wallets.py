"""Wallets: balances, policies and freezes from the chain; agent ids, labels and tags from the service."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    union,
    update,
)
from sqlalchemy.exc import IntegrityError

from app.chain.rules import Rules
from app.core.pages import RecordPage
from app.core.timestamps import DAY
from app.database.paging import Listing, fetch_page, listing
from app.database.records import columns_of, fetch_one
from app.database.statements import scalar
from app.store.allowances import table as allowances
from app.store.policies import RULE_COLUMNS, policy_details, policy_name, take_rules
from app.store.read_tables import budgets, policies
from app.store.read_tables import wallets as table
from app.store.state_tables import wallet_details as details
from app.store.state_tables import wallet_tags

IDLE_AFTER = 7 * DAY
"""Milliseconds without a transaction after which a wallet is idle."""
VIOLATION_SHOWN_FOR = DAY
"""Milliseconds for which a wallet's status shows a refused expense, unless a transaction follows."""


class AgentIdTakenError(Exception):
    """The organisation has, had or is creating a wallet for this agent id."""


@dataclass(frozen=True, slots=True)
class WalletDetails:
    """The details of a wallet known only to the service."""

    wallet_id: str
    org: str
    vault: str
    agent_id: str
    label: str
    tags: tuple[str, ...]
    created_at: int


@dataclass(frozen=True, slots=True)
class WalletPolicy:
    """The part of a policy that responses show with a wallet and that the wallet's payments need."""

    policy_id: str
    address: str
    name: str
    rules: Rules
    allowlist: str | None
    version: int


@dataclass(frozen=True, slots=True)
class WalletRecord:
    """A wallet. `balance` and `held`, the money of its outstanding allowances, are in micro-USDC.

    `frozen` is 0 (no), 1 (manually) or 2 (its policy expired). `frozen_sequence` is the sequence number of the vault's
    event that last set `frozen`. `budget` is the address of the wallet's shared budget, and `budget_id` is the budget's
    id. `budget_parent` and `parent_id` are the address and id of the budget's parent. `session_expires_at` is in Unix
    seconds, other times are in milliseconds.
    """

    wallet_id: str
    org: str
    vault: str
    tokens: str
    agent_id: str | None
    label: str | None
    tags: tuple[str, ...]
    policy: WalletPolicy
    budget: str | None
    budget_id: str | None
    budget_parent: str | None
    parent_id: str | None
    balance: int
    held: int
    status: str
    frozen: int
    archived: bool
    session_authority: str | None
    session_expires_at: int
    sequence: int
    frozen_sequence: int
    escrow_counter: int
    allowance_counter: int
    created_at: int
    updated_at: int
    last_transaction_at: int | None

    @property
    def levels(self) -> dict[str | None, str | None]:
        """The ids of the wallet's budget and of its parent, by address."""
        return {self.budget: self.budget_id, self.budget_parent: self.parent_id}


def insert_wallet_details(connection: Connection, wallet: WalletDetails) -> None:
    """Store a wallet's details before its creation is sent. Raises `AgentIdTakenError` if the agent id is taken."""
    values = columns_of(wallet) | {"updated_at": wallet.created_at, "tags": list(dict.fromkeys(wallet.tags))}
    try:
        connection.execute(insert(details).values(values))
    except IntegrityError as error:
        raise AgentIdTakenError(wallet.agent_id) from error
    _put_tags(connection, wallet.wallet_id, wallet.tags)


def has_wallet_details(connection: Connection, wallet_id: str) -> bool:
    """Return True if a wallet's details are stored, even while its creation is pending."""
    return connection.scalar(select(details.c.wallet_id).where(details.c.wallet_id == wallet_id)) is not None


def delete_wallet_details(connection: Connection, wallet_id: str) -> None:
    """Delete the details of a wallet after its creation has failed."""
    connection.execute(delete(details).where(details.c.wallet_id == wallet_id))


def update_wallet_details(
    connection: Connection, wallet_id: str, *, now: int, label: str | None = None, tags: Sequence[str] | None = None
) -> None:
    """Change a wallet's label, its tags or both."""
    values: dict[str, Any] = {"updated_at": now}
    if label is not None:
        values["label"] = label
    if tags is not None:
        values["tags"] = list(dict.fromkeys(tags))
    connection.execute(update(details).where(details.c.wallet_id == wallet_id).values(values))
    if tags is not None:
        connection.execute(delete(wallet_tags).where(wallet_tags.c.wallet_id == wallet_id))
        _put_tags(connection, wallet_id, tags)


def wallet_details(connection: Connection, wallet_id: str) -> WalletDetails | None:
    """Return a wallet's details, even before its creation is seen on the chain, or None."""
    row = connection.execute(select(details).where(details.c.wallet_id == wallet_id)).one_or_none()
    if row is None:
        return None
    return WalletDetails(row.wallet_id, row.org, row.vault, row.agent_id, row.label, tuple(row.tags), row.created_at)


def labels(connection: Connection, wallet_ids: Collection[str]) -> dict[str, str]:
    """Return the labels of wallets, by id."""
    query = select(details.c.wallet_id, details.c.label).where(details.c.wallet_id.in_(wallet_ids))
    return {row.wallet_id: row.label for row in connection.execute(query)}


def has_wallet(connection: Connection, org: str, wallet_id: str) -> bool:
    """Return True if the organisation has a wallet with this id on the chain, archived or not."""
    return scalar(connection, _OWNED, {"org": org, "key": wallet_id}) is not None


def policy_id_of(connection: Connection, org: str, wallet_id: str) -> str | None:
    """Return the id of the policy attached to the organisation's wallet, or None if there is no such wallet."""
    found: str | None = scalar(connection, _POLICY_ID, {"org": org, "key": wallet_id})
    return found


def orgs_of_vaults(connection: Connection, addresses: Collection[str]) -> dict[str, str]:
    """Return the organisations of the vaults at these addresses, by address. Unknown vaults are left out."""
    query = select(table.c.vault, table.c.org).where(table.c.vault.in_(addresses))
    return {row.vault: row.org for row in connection.execute(query)}


def vault_of(connection: Connection, wallet_id: str) -> str | None:
    """Return the address of a wallet's vault, even before its creation is seen on the chain, or None if unknown."""
    found: str | None = scalar(connection, _VAULT, {"key": wallet_id})
    return found


def wallet(connection: Connection, org: str, wallet_id: str, now: int) -> WalletRecord | None:
    """Return the organisation's wallet with this id, archived or not, or None."""
    return _one(connection, _BY_ID, {"org": org, "now": now, "key": wallet_id})


def wallet_by_vault(connection: Connection, org: str, vault: str, now: int) -> WalletRecord | None:
    """Return the organisation's wallet with the vault at this address, or None."""
    return _one(connection, _BY_VAULT, {"org": org, "now": now, "key": vault})


def wallet_by_agent(connection: Connection, org: str, agent_id: str, now: int) -> WalletRecord | None:
    """Return the organisation's wallet of this agent, or None."""
    return _one(connection, _BY_AGENT, {"org": org, "now": now, "key": agent_id})


def wallets(
    connection: Connection,
    org: str,
    now: int,
    *,
    status: str | None = None,
    tags: Sequence[str] = (),
    limit: int = 20,
    cursor: str | None = None,
) -> RecordPage[WalletRecord]:
    """Return the organisation's wallets with this status and all these tags, newest first.

    Archived wallets are listed only if the status asks for them. Raises `InvalidCursorError`.
    """
    wanted = sorted(set(tags))
    parameters = {"org": org, "now": now, "status": status, "tags": wanted, "tag_count": len(wanted)}
    chosen = _listing(with_status=status is not None, tagged=bool(wanted))
    page: RecordPage[dict[str, Any]] = fetch_page(connection, dict, chosen, parameters, limit=limit, cursor=cursor)
    return RecordPage([wallet_record(one) for one in page.data], page.has_more, page.next_cursor)


_NOW = bindparam("now", type_=BigInteger)
# The first condition that holds determines the status.
STATUS = case(
    (table.c.archived, literal("archived")),
    (table.c.frozen != 0, literal("frozen")),
    (table.c.blocked_at > _NOW - VIOLATION_SHOWN_FOR, literal("policy_violation")),
    (and_(table.c.balance == 0, table.c.funded), literal("unfunded")),
    (func.coalesce(table.c.last_transaction_at, table.c.created_at) < _NOW - IDLE_AFTER, literal("idle")),
    else_=literal("active"),
)
HELD = (
    select(cast(func.coalesce(func.sum(allowances.c.amount), 0), BigInteger))
    .where(allowances.c.wallet_id == table.c.wallet_id, allowances.c.status == "outstanding")
    .scalar_subquery()
    .label("held")
)
_PARENTS = budgets.alias()
# Built once: building these statements takes longer than executing them. Their parameters are `org`, `now` and `key`.
WALLETS = (
    select(
        *(table.c[field.name] for field in fields(WalletRecord) if field.name in table.c),
        details.c.agent_id,
        details.c.label,
        details.c.tags,
        details.c.updated_at.label("details_updated_at"),
        STATUS.label("status"),
        HELD,
        budgets.c.budget_id,
        budgets.c.parent.label("budget_parent"),
        _PARENTS.c.budget_id.label("parent_id"),
        policies.c.policy_id,
        policy_details.c.name.label("policy_name"),
        policies.c.allowlist,
        policies.c.version,
        *(policies.c[name] for name in RULE_COLUMNS),
    )
    .join(policies, policies.c.address == table.c.policy)
    .outerjoin(details, details.c.wallet_id == table.c.wallet_id)
    .outerjoin(policy_details, policy_details.c.address == table.c.policy)
    .outerjoin(budgets, budgets.c.address == table.c.budget)
    .outerjoin(_PARENTS, _PARENTS.c.address == budgets.c.parent)
    .where(table.c.org == bindparam("org"))
)
_OWNED = select(table.c.wallet_id).where(table.c.org == bindparam("org"), table.c.wallet_id == bindparam("key"))
_POLICY_ID = (
    select(policies.c.policy_id)
    .join(table, table.c.policy == policies.c.address)
    .where(table.c.org == bindparam("org"), table.c.wallet_id == bindparam("key"))
)
_VAULT = union(*(select(one.c.vault).where(one.c.wallet_id == bindparam("key")) for one in (table, details)))
_BY_ID = WALLETS.where(table.c.wallet_id == bindparam("key"))
_BY_VAULT = WALLETS.where(table.c.vault == bindparam("key"))
_BY_AGENT = WALLETS.where(details.c.agent_id == bindparam("key"))
# Counted for each of the organisation's wallets, because other organisations may use the same tags.
_TAGS_FOUND = (
    select(func.count())
    .where(wallet_tags.c.wallet_id == table.c.wallet_id, wallet_tags.c.tag.in_(bindparam("tags", expanding=True)))
    .scalar_subquery()
)


@cache
def _listing(*, with_status: bool, tagged: bool) -> Listing:
    query = WALLETS.where(bindparam("status") == STATUS if with_status else ~table.c.archived)
    if tagged:
        query = query.where(bindparam("tag_count") == _TAGS_FOUND)
    return listing(query, time=table.c.created_at, key=table.c.wallet_id)


def _one(connection: Connection, query: Select[Any], parameters: dict[str, Any]) -> WalletRecord | None:
    values: dict[str, Any] | None = fetch_one(connection, dict, query, parameters)
    return None if values is None else wallet_record(values)


def wallet_record(values: dict[str, Any]) -> WalletRecord:
    """Convert a row of the query `WALLETS` to a record. Removes values from the row."""
    policy_id = values.pop("policy_id")
    policy = WalletPolicy(
        policy_id=policy_id,
        address=values.pop("policy"),
        name=policy_name(policy_id, values.pop("policy_name")),
        rules=take_rules(values),
        allowlist=values.pop("allowlist"),
        version=values.pop("version"),
    )
    updated_at = max(values.pop("updated_at"), values.pop("details_updated_at") or 0)
    tags = tuple(values.pop("tags") or ())
    return WalletRecord(**values, tags=tags, policy=policy, updated_at=updated_at)


def _put_tags(connection: Connection, wallet_id: str, tags: Iterable[str]) -> None:
    rows = [{"wallet_id": wallet_id, "tag": tag} for tag in dict.fromkeys(tags)]
    if rows:
        connection.execute(insert(wallet_tags), rows)
