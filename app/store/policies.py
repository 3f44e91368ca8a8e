"""Policies: rules from the chain; names, texts of allowlist entries and authors of changes from the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select

from app.chain.rules import Rules
from app.core.identifiers import PRESET_POLICY_IDS
from app.store.columns import upsert
from app.store.read_tables import policies as table
from app.store.read_tables import policy_versions, wallets
from app.store.state_tables import allowlists, attempts, domains, policy_details, policy_edits

UPDATE = "update_policy"
"""Type of the service's attempts at changing a policy; creations and deletions may set an allowlist on their way."""
RULE_COLUMNS = (
    "max_per_tx",
    "max_per_day",
    "max_per_month",
    "velocity_cap",
    "require_co_sign",
    "expiry",
    "blocked_categories",
    "restricted",
)
_PRESET_ORDER = {name: position for position, name in enumerate(PRESET_POLICY_IDS)}


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy. `allowlist` is the address of the list that the program consults, `allowed_recipients` its texts."""

    policy_id: str
    org: str
    address: str
    key: bytes
    name: str
    rules: Rules
    allowed_recipients: list[str]
    allowlist: str | None
    version: int
    immutable: bool
    wallet_count: int
    created_at: int
    closed: bool


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change of a policy: when, by whom, and what each changed field was and became.

    `changed_by` is null for a change past this service of which it is not known who signed; then `signature` is that
    of its transaction. `version` is the policy's after the change, null when only its name changed.
    """

    timestamp: int
    changed_by: str | None
    changes: dict[str, Any]
    version: int | None = None
    signature: str | None = None


def insert_policy_details(  # noqa: PLR0917
    connection: Connection, policy_id: str, org: str, address: str, name: str, created_at: int
) -> None:
    """Store a policy's name, in the transaction that stores the attempt to create it; a repeat replaces it."""
    values = {"address": address, "policy_id": policy_id, "org": org, "name": name, "created_at": created_at}
    upsert(connection, policy_details, values, keys=["address"])


def put_allowlist(connection: Connection, allowlist: str, policy_id: str, entries: Sequence[str]) -> None:
    """Store the texts of the entries of the list at the address `allowlist`, before the list is sent."""
    values = {"allowlist": allowlist, "policy_id": policy_id, "entries": list(entries)}
    upsert(connection, allowlists, values, keys=["allowlist"])


def allowlist_entries(connection: Connection, allowlist: str | None) -> list[str]:
    """Return the texts of an allowlist's entries; none for a list this service did not write."""
    if allowlist is None:
        return []
    found = connection.scalar(select(allowlists.c.entries).where(allowlists.c.allowlist == allowlist))
    return list(found or [])


def domains_of(connection: Connection, entries: Sequence[bytes]) -> dict[bytes, str]:
    """Return the domains among the entries of an allowlist, as far as the service knows their texts."""
    query = select(domains).where(domains.c.domain_hash.in_([entry.hex() for entry in entries]))
    return {bytes.fromhex(row.domain_hash): row.domain for row in connection.execute(query)}


def policy(connection: Connection, org: str, policy_id: str) -> PolicyRecord | None:
    """Return the organisation's policy with this id, closed or not."""
    row = connection.execute(_BY_ID, {"org": org, "key": policy_id}).one_or_none()
    return None if row is None else _record(row)


def policies(connection: Connection, org: str) -> list[PolicyRecord]:
    """Return the organisation's open policies: the presets, then the others, oldest first."""
    found = [_record(row) for row in connection.execute(_POLICIES.where(~table.c.closed), {"org": org})]
    others = len(_PRESET_ORDER)
    return sorted(found, key=lambda p: (_PRESET_ORDER.get(p.policy_id, others), p.created_at, p.policy_id))


def record_policy_edit(
    connection: Connection,
    org: str,
    policy_id: str,
    *,
    version: int | None,
    changed_by: str,
    changes: dict[str, Any],
    now: int,
) -> None:
    """Note a change of what the chain does not know (the name), or who made a change of the chain's.

    `version` is the policy's version after a change of its rules that has landed, and of which this is a part;
    without one the note is an entry of its own.
    """
    values = {
        "org": org,
        "policy_id": policy_id,
        "version": version,
        "changed_by": changed_by,
        "changes": changes,
        "created_at": now,
    }
    connection.execute(insert(policy_edits).values(values))


def version_made_by(connection: Connection, address: str, signature: str) -> int | None:
    """Return the version that a transaction gave the policy at this address, or `None`."""
    mine = (policy_versions.c.address == address, policy_versions.c.signature == signature)
    found: int | None = connection.scalar(select(func.max(policy_versions.c.version)).where(*mine))
    return found


def recipients_before(connection: Connection, address: str, signature: str) -> list[str]:
    """Return the texts of the policy's allowlist as it was before a transaction that closed the policy."""
    mine = (policy_versions.c.address == address, policy_versions.c.signature != signature)
    versions = select(policy_versions.c.changes).where(*mine).order_by(policy_versions.c.version.desc())
    changes = connection.scalars(versions)
    return next((one["allowed_recipients"]["to"] for one in changes if "allowed_recipients" in one), [])


def is_change(attempt_type: str | None) -> bool:
    """Whether an update of a policy is a change of it, by the type of the service's attempt; of none: by others.

    The steps of a creation or deletion are no changes.
    """
    return attempt_type in {None, UPDATE}


def policy_audit_log(connection: Connection, org: str, policy_id: str) -> list[AuditRecord]:
    """Return the changes of a policy, oldest first.

    Changes of rules come from the chain; who asked for them comes from the service's attempts, in whose memo it
    stands, or from a note.
    """
    mine = (policy_edits.c.org == org, policy_edits.c.policy_id == policy_id)
    edits = list(connection.execute(select(policy_edits).where(*mine).order_by(policy_edits.c.id)))
    notes = {edit.version: edit for edit in edits if edit.version is not None}
    entries = [AuditRecord(e.created_at, e.changed_by, e.changes) for e in edits if e.version is None]
    versions = (
        select(policy_versions, attempts.c.type, attempts.c.memo, attempts.c.created_at)
        .join(table, table.c.address == policy_versions.c.address)
        .outerjoin(attempts, attempts.c.signature == policy_versions.c.signature)
        .where(table.c.org == org, table.c.policy_id == policy_id)
        .order_by(policy_versions.c.version)
    )
    latest = 0
    for row in connection.execute(versions):
        if not is_change(row.type):
            continue
        # What was stored before rows had the moment of the request has the second of the chain's clock.
        latest = max(latest, row.timestamp, row.created_at or 0)
        note = notes.get(row.version)
        changed_by = row.memo or (None if note is None else note.changed_by)
        changes = {**row.changes, **({} if note is None else note.changes)}
        entries.append(AuditRecord(latest, changed_by, changes, row.version, row.signature))
    return sorted(entries, key=lambda entry: entry.timestamp)


def attached_wallets(connection: Connection, address: str) -> Sequence[str]:
    """Return the ids of the wallets that the policy at this address binds, the last used first."""
    mine = (wallets.c.policy == address, ~wallets.c.archived)
    newest = func.coalesce(wallets.c.last_transaction_at, wallets.c.created_at).desc()
    return connection.scalars(select(wallets.c.wallet_id).where(*mine).order_by(newest, wallets.c.wallet_id)).all()


def rules_of(row: Row[Any]) -> Rules:
    """Return the rules in a row that has the policy table's columns."""
    return Rules(**{name: getattr(row, name) for name in RULE_COLUMNS})


def policy_name(policy_id: str, name: str | None) -> str:
    """Return a policy's name; presets have fixed ones and a policy made elsewhere goes by its id."""
    if policy_id in _PRESET_ORDER:
        return policy_id.removeprefix("pol_").capitalize()
    return name or policy_id


def _query() -> Select[Any]:
    attached = (
        select(func.count())
        .select_from(wallets)
        .where(wallets.c.org == table.c.org, wallets.c.policy == table.c.address, ~wallets.c.archived)
        .scalar_subquery()
    )
    return (
        select(table, policy_details.c.name, allowlists.c.entries, attached.label("wallet_count"))
        .outerjoin(policy_details, policy_details.c.address == table.c.address)
        .outerjoin(allowlists, allowlists.c.allowlist == table.c.allowlist)
        .where(table.c.org == bindparam("org"))
    )


# Built once: to build a statement takes longer than to execute it.
_POLICIES = _query()
_BY_ID = _POLICIES.where(table.c.policy_id == bindparam("key"))


def _record(row: Row[Any]) -> PolicyRecord:
    return PolicyRecord(
        policy_id=row.policy_id,
        org=row.org,
        address=row.address,
        key=row.key,
        name=policy_name(row.policy_id, row.name),
        rules=rules_of(row),
        allowed_recipients=list(row.entries or []) if row.restricted else [],
        allowlist=row.allowlist,
        version=row.version,
        immutable=row.immutable,
        wallet_count=row.wallet_count,
        created_at=row.created_at,
        closed=row.closed,
    )
