"""Policies: rules from the chain; names, allowlist texts and authors of changes from the service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from sqlalchemy import JSON, Connection, Select, UniqueConstraint, bindparam, func, insert, select

from app.chain.rules import Rules
from app.core.actors import Actor
from app.core.identifiers import PRESET_POLICY_IDS
from app.database.columns import upsert
from app.database.record_tables import FALSE, table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.store.attempts import Attempt, attempt
from app.store.attempts import table as attempts
from app.store.read_tables import policies as table
from app.store.read_tables import policy_versions, wallets
from app.store.state_tables import allowlists, domains, policy_edits

UPDATE = "update_policy"
"""Type of the service's attempts to change a policy.

Attempts of other types, which create or delete a policy, may set its allowlist, too.
"""
RULE_COLUMNS = tuple(field.name for field in fields(Rules))
_PRESET_ORDER = {name: position for position, name in enumerate(PRESET_POLICY_IDS)}


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy. `allowlist` is the address of the list that the program checks.

    `allowed_recipients` holds the texts of the list's entries. `x402_hosts` are the hosts allowed for paid requests;
    null means any host on localnet, and elsewhere none. `opens_accounts` is true if a paid request may open the payee's
    token account. `approvals` is the rule about approvals by people. `approvals_next` is a change to this rule that may
    not be in force yet: its `tx_id` and the new `rule`.
    """

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
    x402_hosts: list[str] | None
    opens_accounts: bool
    approvals: dict[str, Any] | None
    approvals_next: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDetails:
    """The details of a policy known only to the service."""

    address: str
    policy_id: str
    org: str
    name: str
    created_at: int
    x402_hosts: list[str] | None = None
    """Hosts allowed for paid requests; null for the default."""
    opens_accounts: Annotated[bool, FALSE] = False
    """True if paid requests may open the payee's token account."""
    approvals: Annotated[dict[str, Any] | None, JSON(none_as_null=True)] = None
    """The number of people `required` for expenses `above` a decimal amount; null for no such rule."""
    approvals_next: Annotated[dict[str, Any] | None, JSON(none_as_null=True)] = None
    """The `rule` that the transaction `tx_id` puts in force once it lands; null if no such change is under way."""


policy_details = table_of(
    "policy_details",
    PolicyDetails,
    UniqueConstraint("org", "policy_id"),
    key=["address"],
)


_OTHERS = frozenset({"policy_id", "org", "address", "created_at", "approvals_next"})
DETAILS = tuple(one.name for one in fields(PolicyDetails) if one.name not in _OTHERS)
"""Fields of a policy that are not on the chain, the name first."""
RULE = "approvals"
"""The one of the `DETAILS` that changes only with the policy's on-chain version, so that a change voids approvals."""
DEFAULTS = {one.name: one.default for one in fields(PolicyDetails) if one.name in DETAILS[1:]}
"""Default values of the `DETAILS` other than the name, for a policy without stored details."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change to a policy: its time, its actor, and the old and new value of each changed field.

    `changed_by` is null if the change was made outside this service and its signer is unknown. `version` is the
    policy's version after the change, and `signature` is the signature of the change's transaction. Both are null if
    the change is not on the chain.
    """

    timestamp: int
    changed_by: Actor | None
    changes: dict[str, Any]
    version: int | None = None
    signature: str | None = None


def put_policy_details(connection: Connection, details: PolicyDetails) -> None:
    """Store or replace a policy's details, in the transaction that stores the attempt to create the policy."""
    upsert(connection, policy_details, columns_of(details), keys=["address"])


def details_of(found: PolicyRecord, **changed: Any) -> PolicyDetails:
    """Return a policy's details with some changed."""
    return PolicyDetails(**{one.name: getattr(found, one.name) for one in fields(PolicyDetails)} | changed)


def begin_rule(connection: Connection, before: PolicyRecord, rule: Mapping[str, Any] | None, tx_id: str) -> bool:
    """Store that a transaction puts a rule about approvals in force. Until its outcome is known, both rules apply.

    Return False, without a change, if the rule has changed since ``before``, or another transaction may change it.
    """
    current = policy(connection, before.org, before.policy_id)
    following = None if current is None else current.approvals_next
    earlier = None if following is None else attempt(connection, following["tx_id"])
    if current is None or current.approvals != before.approvals or (earlier and earlier.status != "failed"):
        return False
    put_policy_details(connection, details_of(current, approvals_next={"tx_id": tx_id, "rule": rule}))
    return True


def end_rule(connection: Connection, made: Attempt, version: int | None, now: int) -> dict[str, Any]:
    """Put in force the rule about approvals that awaited the landing of `made`, and log it as a change to the policy.

    `version` is the policy's new version, or None if the transaction failed; the rule is then dropped. Returns the
    changed fields.
    """
    current = None if made.policy_id is None else policy(connection, made.org, made.policy_id)
    if current is None or current.approvals_next is None or current.approvals_next["tx_id"] != made.tx_id:
        return {}
    if version is None or made.actor is None:
        put_policy_details(connection, details_of(current, approvals_next=None))
        return {}
    changes = {RULE: {"from": current.approvals, "to": current.approvals_next["rule"]}}
    put_policy_details(connection, details_of(current, approvals=changes[RULE]["to"], approvals_next=None))
    record_policy_edit(
        connection,
        current.org,
        current.policy_id,
        version=version,
        changed_by=made.actor,
        changes=changes,
        now=now,
    )
    return changes


def put_allowlist(connection: Connection, allowlist: str, policy_id: str, entries: Sequence[str]) -> None:
    """Store the texts of a list's entries before the list at the address `allowlist` is sent to the chain."""
    values = {"allowlist": allowlist, "policy_id": policy_id, "entries": list(entries)}
    upsert(connection, allowlists, values, keys=["allowlist"])


def allowlist_entries(connection: Connection, allowlist: str | None) -> list[str]:
    """Return the texts of the entries of the list at an address; empty if this service did not write the list."""
    if allowlist is None:
        return []
    found = connection.scalar(select(allowlists.c.entries).where(allowlists.c.allowlist == allowlist))
    return list(found or [])


def domains_of(connection: Connection, entries: Sequence[bytes]) -> dict[bytes, str]:
    """Return the domain of each allowlist entry that is the hash of a known domain, by entry."""
    query = select(domains).where(domains.c.domain_hash.in_([entry.hex() for entry in entries]))
    return {bytes.fromhex(row.domain_hash): row.domain for row in connection.execute(query)}


def policy(connection: Connection, org: str, policy_id: str) -> PolicyRecord | None:
    """Return the organisation's policy with this id, closed or not, or None."""
    return fetch_one(connection, _record, _BY_ID, {"org": org, "key": policy_id})


def policies(connection: Connection, org: str) -> list[PolicyRecord]:
    """Return the organisation's open policies: the presets, then the others, oldest first."""
    found = fetch_all(connection, _record, _OPEN, {"org": org})
    others = len(_PRESET_ORDER)
    return sorted(found, key=lambda p: (_PRESET_ORDER.get(p.policy_id, others), p.created_at, p.policy_id))


def record_policy_edit(
    connection: Connection,
    org: str,
    policy_id: str,
    *,
    version: int | None,
    changed_by: Actor,
    changes: dict[str, Any],
    now: int,
) -> None:
    """Store a change to a policy's name or hosts, which are not on the chain, or the author of a change to its rules.

    For a change to rules, `version` is the policy's version after the change has landed. Without a version, the row is
    a separate entry of the policy's audit log.
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
    """Return the newest version that this transaction gave the policy at this address, or None."""
    mine = (policy_versions.c.address == address, policy_versions.c.signature == signature)
    found: int | None = connection.scalar(select(func.max(policy_versions.c.version)).where(*mine))
    return found


def recipients_before(connection: Connection, address: str, signature: str) -> list[str]:
    """Return the texts of a policy's allowlist before the transaction `signature`, which closed the policy."""
    mine = (policy_versions.c.address == address, policy_versions.c.signature != signature)
    versions = select(policy_versions.c.changes).where(*mine).order_by(policy_versions.c.version.desc())
    changes = connection.scalars(versions)
    return next((one["allowed_recipients"]["to"] for one in changes if "allowed_recipients" in one), [])


def is_change(attempt_type: str | None) -> bool:
    """Return True if an attempt of this type changes a policy. None stands for a change made outside the service.

    The steps of creating or deleting a policy do not count as changes.
    """
    return attempt_type in {None, UPDATE}


def policy_audit_log(connection: Connection, org: str, policy_id: str) -> list[AuditRecord]:
    """Return the changes of a policy, oldest first.

    Changes of rules come from the chain, and their authors from the service's attempts or from a stored edit.
    """
    mine = (policy_edits.c.org == org, policy_edits.c.policy_id == policy_id)
    edits = list(connection.execute(select(policy_edits).where(*mine).order_by(policy_edits.c.id)))
    notes = {edit.version: edit for edit in edits if edit.version is not None}
    entries = [AuditRecord(e.created_at, e.changed_by, e.changes) for e in edits if e.version is None]
    versions = (
        select(policy_versions, attempts.c.type, attempts.c.actor, attempts.c.created_at)
        .join(table, table.c.address == policy_versions.c.address)
        .outerjoin(attempts, attempts.c.signature == policy_versions.c.signature)
        .where(table.c.org == org, table.c.policy_id == policy_id)
        .order_by(policy_versions.c.version)
    )
    latest = 0
    for row in connection.execute(versions):
        if not is_change(row.type):
            continue
        # The chain's clock has only seconds; the attempt has the millisecond of the request.
        latest = max(latest, row.timestamp, row.created_at or 0)
        note = notes.get(row.version)
        changed_by = row.actor or (None if note is None else note.changed_by)
        changes = {**row.changes, **({} if note is None else note.changes)}
        entries.append(AuditRecord(latest, changed_by, changes, row.version, row.signature))
    return sorted(entries, key=lambda entry: entry.timestamp)


def attached_wallets(connection: Connection, address: str, limit: int | None = None) -> Sequence[str]:
    """Return up to ``limit`` ids of the unarchived wallets under the policy at this address, last used first."""
    # The index begins with the organisation.
    org = select(table.c.org).where(table.c.address == address).scalar_subquery()
    mine = (wallets.c.org == org, wallets.c.policy == address, ~wallets.c.archived)
    newest = func.coalesce(wallets.c.last_transaction_at, wallets.c.created_at).desc()
    query = select(wallets.c.wallet_id).where(*mine).order_by(newest, wallets.c.wallet_id)
    return connection.scalars(query.limit(limit)).all()


def take_rules(values: dict[str, Any]) -> Rules:
    """Remove the columns of the rules from a row's values and return the rules."""
    return Rules(**{name: values.pop(name) for name in RULE_COLUMNS})


def policy_name(policy_id: str, name: str | None) -> str:
    """Return a policy's name. Presets have fixed names; a policy without a stored name is named by its id."""
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
        select(
            table,
            *(policy_details.c[name] for name in (*DETAILS, "approvals_next")),
            allowlists.c.entries,
            attached.label("wallet_count"),
        )
        .outerjoin(policy_details, policy_details.c.address == table.c.address)
        .outerjoin(allowlists, allowlists.c.allowlist == table.c.allowlist)
        .where(table.c.org == bindparam("org"))
    )


# Built once: building a statement takes longer than executing it.
_POLICIES = _query()
_OPEN = _POLICIES.where(~table.c.closed)
_BY_ID = _POLICIES.where(table.c.policy_id == bindparam("key"))


def _record(*, name: str | None, entries: Sequence[str] | None, **values: Any) -> PolicyRecord:
    rules = take_rules(values)
    values |= {key: default for key, default in DEFAULTS.items() if values[key] is None}
    return PolicyRecord(
        name=policy_name(values["policy_id"], name),
        rules=rules,
        allowed_recipients=list(entries or []) if rules.restricted else [],
        **values,
    )
