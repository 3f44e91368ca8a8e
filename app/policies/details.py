"""Off-chain details of a policy, known only to the service, such as its name and the permissions of paid requests."""

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.identifiers import random_id
from app.policies.models import UpdatePolicy
from app.store.audit import append
from app.store.feed import append_event
from app.store.policies import (
    DETAILS,
    RULE,
    PolicyRecord,
    details_of,
    policy,
    put_policy_details,
    record_policy_edit,
    version_made_by,
)
from app.submission.claim import Claim
from app.submission.context import Service


async def describe(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, found: PolicyRecord, body: UpdatePolicy, landed: str | None
) -> None:
    """Change the off-chain fields other than the rule about approvals, which changes with the policy's version.

    If the same request also changed the rules, ``landed`` is the signature of that transaction. Both changes then share
    one entry of the policy's audit log.
    """
    now = service.clock.seen_ms()
    given = {name: getattr(body, name) for name in DETAILS if name in body.model_fields_set and name != RULE}

    def write(conn: Connection) -> None:
        current = policy(conn, found.org, found.policy_id)
        changed = {name: value for name, value in given.items() if current and getattr(current, name) != value}
        if current is None or not changed:
            return
        changes = {name: {"from": getattr(current, name), "to": value} for name, value in changed.items()}
        put_policy_details(conn, details_of(current, **changed))
        record_policy_edit(
            conn,
            found.org,
            found.policy_id,
            version=None if landed is None else version_made_by(conn, found.address, landed),
            changed_by=principal.actor,
            changes=changes,
            now=now,
        )
        append(conn, principal.entry("policy.update", found.policy_id, fields=sorted(changes)))
        version = current.version
        append_event(
            conn,
            event_id=random_id("evt_"),
            org=found.org,
            type="policy.updated",
            timestamp=now,
            summary=f"Policy {found.policy_id}: {' and '.join(changes)} changed",
            payload={"policy_id": found.policy_id, "version": version, "changes": changes},
        )

    await claim.store(write)
