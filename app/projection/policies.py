"""Events about policies."""

from dataclasses import asdict

from sqlalchemy import select, update

from app.chain.rules import Rules
from app.core.identifiers import policy_id
from app.projection.batch import Batch, address_or_none
from app.projection.differences import difference, shown
from app.store.policies import allowlist_entries, end_rule, is_change, policy_details
from app.store.read_tables import policies, policy_versions
from indexer import StoredEvent


def created(batch: Batch, row: StoredEvent) -> None:
    """Add the policy to the read models."""
    data = row.data
    key = bytes.fromhex(data["key"])
    made = batch.connection.scalar(
        select(policy_details.c.created_at).where(policy_details.c.address == data["policy"])
    )
    values = {
        "address": data["policy"],
        "policy_id": policy_id(key),
        "org": row.org,
        "key": key,
        **asdict(Rules.from_event(data["rules"])),
        "allowlist": None,
        "version": data["sequence"],
        "immutable": data["immutable"],
        "closed": False,
        "created_at": batch.moment(row) if made is None else made,
    }
    batch.put(policies, values, keys=["address"], replace=False)
    batch.adopt_orphans(row, data["policy"])


def updated(batch: Batch, row: StoredEvent) -> None:
    """Set the rules and record the difference in the policy's history.

    Report the update in the feed, too, unless it was a step of the policy's creation or deletion by this service.
    """
    data, connection = row.data, batch.connection
    identifier = batch.policy_id(data["policy"])
    if identifier is None:
        batch.note_orphan(data["policy"])
        return
    rules, previous = Rules.from_event(data["rules"]), Rules.from_event(data["previous"])
    allowlist = address_or_none(data["allowlist"])
    newer = update(policies).where(policies.c.address == data["policy"], policies.c.version < data["sequence"])
    connection.execute(newer.values(**asdict(rules), allowlist=allowlist, version=data["sequence"]))
    changes = difference(
        shown(previous, allowlist_entries(connection, address_or_none(data["previous_allowlist"]))),
        shown(rules, allowlist_entries(connection, allowlist)),
    )
    version = {
        "address": data["policy"],
        "version": data["sequence"],
        "changes": changes,
        "timestamp": batch.moment(row),
        "signature": row.signature,
    }
    batch.put(policy_versions, version, keys=["address", "version"])
    made = batch.made_by(row)
    ruled = {} if made is None else end_rule(connection, made, data["sequence"], batch.moment(row))
    changes = {**changes, **ruled}
    if is_change(batch.cause(row)):
        summary = f"Policy {identifier}: {', '.join(changes) or 'no rule'} changed"
        fields = {"policy_id": identifier, "version": data["sequence"], "changes": changes}
        batch.report(row, "policy.updated", summary, fields)


def closed(batch: Batch, row: StoredEvent) -> None:
    """Mark the policy as closed."""
    mine = update(policies).where(policies.c.address == row.data["policy"])
    if batch.connection.execute(mine.values(closed=True, allowlist=None)).rowcount == 0:
        batch.note_orphan(row.data["policy"])
