"""Off-chain details of a policy, known only to the service, such as its name and the permissions of paid requests."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import ConflictError
from app.core.identifiers import random_id
from app.policies.models import UpdatePolicy
from app.store.attempts import attempt
from app.store.audit import append
from app.store.feed import append_event
from app.store.policies import (
    DETAILS,
    PolicyDetails,
    PolicyRecord,
    policy,
    put_policy_details,
    record_policy_edit,
    version_made_by,
)
from app.submission.claim import Claim
from app.submission.context import Service


def begin_rule(conn: Connection, before: PolicyRecord, rule: Mapping[str, Any] | None, tx_id: str) -> None:
    """Note that a transaction puts the rule about approvals in force.

    Until its outcome is known, both rules apply. Raises ``version_conflict`` if the rule has changed since ``before``.
    """
    current = policy(conn, before.org, before.policy_id)
    if current is None or (current.approvals, current.approvals_next) != (before.approvals, None):
        raise ConflictError("version_conflict", "The policy's approvals were changed concurrently. Retry.")
    _put(conn, current, approvals_next={"tx_id": tx_id, "rule": rule})


def settle_rule(conn: Connection, org: str, policy_id: str) -> None:
    """Put a noted rule about approvals in force if its transaction has landed, and drop it if that has failed."""
    current = policy(conn, org, policy_id)
    if current is not None and (following := current.approvals_next) is not None:
        found = attempt(conn, following["tx_id"])
        if found is not None and found.status == "confirmed":
            _put(conn, current, approvals=following["rule"], approvals_next=None)
        elif found is None or found.status == "failed":
            _put(conn, current, approvals_next=None)


def _put(conn: Connection, current: PolicyRecord, **changed: Any) -> None:
    names = (field.name for field in fields(PolicyDetails))
    put_policy_details(conn, PolicyDetails(**{name: getattr(current, name) for name in names} | changed))


async def describe(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, found: PolicyRecord, body: UpdatePolicy, landed: str | None
) -> None:
    """Change the off-chain fields.

    If the same request also changed the rules, ``landed`` is the signature of that transaction. Both changes then share
    one entry of the policy's audit log.
    """
    now = service.clock.seen_ms()
    given = {name: getattr(body, name) for name in DETAILS if name in body.model_fields_set}

    def write(conn: Connection) -> None:
        current = policy(conn, found.org, found.policy_id)
        changed = {name: value for name, value in given.items() if current and getattr(current, name) != value}
        following = None if current is None else current.approvals_next
        made_by = None if following is None or landed is None else attempt(conn, following["tx_id"])
        if made_by is None or made_by.signature != landed:
            # A newer request may have changed the rule since this one landed.
            changed.pop("approvals", None)
        else:
            following = None
        if current is None or not changed:
            return
        changes = {name: {"from": getattr(current, name), "to": value} for name, value in changed.items()}
        _put(conn, current, **changed, approvals_next=following)
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
