"""Events about policies."""

from dataclasses import asdict

from sqlalchemy import select, update

from app.chain.rules import Rules
from app.core.identifiers import event_id, policy_id
from app.core.timestamps import iso_ms
from app.projection import orphans
from app.projection.batch import Batch
from app.projection.differences import difference, shown
from app.projection.rows import ChainRow, address_or_none
from app.store.policies import allowlist_entries, is_change
from app.store.read_tables import policies, policy_versions
from app.store.state_tables import policy_details

_FIRST_VERSION = 1


def created(batch: Batch, row: ChainRow) -> bool:
    """Add the policy; returns whether events about it came before."""
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
        "version": _FIRST_VERSION,
        "immutable": data["immutable"],
        "closed": False,
        "created_at": batch.moment(row) if made is None else made,
    }
    batch.put(policies, values, keys=["address"], replace=False)
    return orphans.adopt(batch, data["policy"])


def updated(batch: Batch, row: ChainRow) -> bool:
    """Set the rules and add an audit entry and, for a change, a feed event that say what changed."""
    data, connection = row.data, batch.connection
    identifier = batch.policy_id(data["policy"])
    if identifier is None:
        orphans.note(batch, data["policy"])
        return False
    rules, previous = Rules.from_event(data["rules"]), Rules.from_event(data["previous"])
    allowlist = address_or_none(data["allowlist"])
    newer = update(policies).where(policies.c.address == data["policy"], policies.c.version < data["version"])
    connection.execute(newer.values(**asdict(rules), allowlist=allowlist, version=data["version"]))
    changes = difference(
        shown(previous, allowlist_entries(connection, address_or_none(data["previous_allowlist"]))),
        shown(rules, allowlist_entries(connection, allowlist)),
    )
    version = {
        "address": data["policy"],
        "version": data["version"],
        "changes": changes,
        "timestamp": batch.moment(row),
        "signature": row.signature,
    }
    batch.put(policy_versions, version, keys=["address", "version"])
    if not is_change(batch.cause(row)):
        return False
    batch.report(
        event_id=event_id(row.signature, row.instruction, row.inner, "policy.updated"),
        org=str(row.org),
        type="policy.updated",
        timestamp=batch.moment(row),
        signature=row.signature,
        summary=f"Policy {identifier}: {', '.join(changes) or 'no rule'} changed",
        payload={
            "policy_id": identifier,
            "version": data["version"],
            "changes": changes,
            "timestamp": iso_ms(batch.moment(row)),
        },
    )
    return False


def closed(batch: Batch, row: ChainRow) -> bool:
    """Mark the policy as closed."""
    mine = update(policies).where(policies.c.address == row.data["policy"])
    if batch.connection.execute(mine.values(closed=True, allowlist=None)).rowcount == 0:
        orphans.note(batch, row.data["policy"])
    return False
