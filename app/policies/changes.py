"""Changes to policies: one transaction changes the rules for all attached vaults simultaneously.

A change names the policy version that it was made from, and the program refuses it at any other version. A late change
therefore undoes nothing. The service makes the change again from the policy's current terms.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.api.versioned_changes import OutdatedVersionError, VersionedChange
from app.core.errors import BusinessError, ConflictError, UnavailableError
from app.policies import consent
from app.policies import service as policies
from app.policies.allowlists import WRITE, Step, draft, is_written, steps, store_texts
from app.policies.details import describe
from app.policies.models import Policy, UpdatePolicy
from app.policies.terms import Terms, apply_changes, require_owners, terms_of, with_recipients
from app.projection.differences import difference, shown
from app.store.attempts import Attempt
from app.store.audit import NewLogEntry
from app.store.policies import (
    DETAILS,
    RULE,
    UPDATE,
    PolicyRecord,
    begin_rule,
    end_rule,
    policy,
    policy_audit_log,
    recipients_before,
)
from app.submission.chain_state import known_account
from app.submission.context import Service
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Hook, Plan, PlanType, nothing


def _drop_rule(conn: Connection, failed: Attempt) -> None:
    end_rule(conn, failed, None, 0)


_UPDATE = PlanType(UPDATE, on_failed=_drop_rule)
_CLOSE, _DISCARD = PlanType("close_policy"), PlanType("close_allowlist")
PLAN_TYPES = (WRITE, _UPDATE, _CLOSE, _DISCARD)
_OFF_CHAIN = frozenset({*DETAILS, "allow_unverified_recipient", "idempotency_key"}) - {RULE}


class PolicyChange(VersionedChange[PolicyRecord]):
    """A request to change or delete a policy."""

    thing = "policy"
    outdated = frozenset(
        {
            *("VersionMismatch", "WrongAllowlist", "AllowlistRequired", "AllowlistGap", "AllowlistSealed"),
            *("AllowlistNotSealed", "AllowlistMismatch", "RentReceiverRequired", "WrongRentReceiver"),
        }
    )
    preparing = (WRITE.name, _DISCARD.name)

    async def find(self) -> PolicyRecord:
        """Return the policy. Raises ``policy_not_found``."""
        return await policies.find(self.service, self.principal.org, self.object_id)

    def check(self, found: PolicyRecord) -> None:
        """Raise ``version_conflict`` unless the request accepts the policy's version."""
        self.precondition.check(found.version, *(getattr(found, name) for name in DETAILS))

    async def find_changeable(self) -> PolicyRecord:
        """Return the policy. Raises ``policy_not_found``, and ``policy_immutable`` for a preset."""
        found = await self.find()
        if found.immutable:
            raise BusinessError("policy_immutable")
        return found


async def update(request: PolicyChange, body: UpdatePolicy) -> Policy:
    """Change the fields in the body.

    Raises ``policy_immutable`` for a preset, and ``version_conflict`` if the request does not accept the current
    version.
    """
    given = body.model_fields_set

    async def details(landed: str | None) -> None:
        await describe(request.service, request.principal, request.claim, await request.find(), body, landed)

    await request.update(
        given - _OFF_CHAIN,
        given.intersection(DETAILS) - {RULE},
        lambda before: _update(request, before, body),
        details,
    )
    return policies.shown(await with_recipients(request.service, await request.find()))


async def _require_approvals(request: PolicyChange, before: PolicyRecord, body: UpdatePolicy) -> None:
    """Raise an error if the new rule requires too many people, or if too few people agree to weaken the old rule."""
    service, by = request.service, request.principal
    await consent.require_people(service, by.org, body.approvals)
    if before.approvals is not None and consent.weakens(before.approvals, body.approvals):
        made = await service.db.read(lambda conn: len(policy_audit_log(conn, by.org, before.policy_id)))
        await consent.require_consent(service, by, before.policy_id, before.approvals, body.approvals, made)


async def delete(request: PolicyChange) -> Policy:
    """Delete a policy without attached vaults, and return it as it was.

    Raises ``policy_in_use`` if vaults are attached, ``policy_immutable`` for a preset, and ``version_conflict`` if the
    request does not accept the current version.
    """
    if request.claim.attempt is None:
        await request.find_changeable()
    landed = await request.delete(lambda before: _close(request, before))
    org, identifier = request.principal.org, request.object_id
    return await request.service.db.read(lambda conn: deleted_policy(conn, org, identifier, landed or ""))


def deleted_policy(conn: Connection, org: str, identifier: str, closing: str) -> Policy:
    """Return a deleted policy as it was before the transaction that closed it."""
    deleted = policy(conn, org, identifier)
    if deleted is None:
        raise UnavailableError("chain_unavailable")
    return policies.shown(replace(deleted, allowed_recipients=recipients_before(conn, deleted.address, closing)))


async def _send(
    request: PolicyChange,
    kind: PlanType,
    step: Step,
    on_store: Hook = nothing,
    entry: NewLogEntry | None = None,
) -> str | None:
    """Send one transaction of a change and return its signature once confirmed.

    Pass `entry`, the change's audit log entry, only with the last transaction.
    """
    plan = Plan(
        org=request.principal.org,
        type=kind,
        instructions=step.instructions,
        signers=[] if step.by_authority else [request.service.signers.operator],
        authority=await request.authority() if step.by_authority else None,
        policy_id=request.object_id,
        actor=request.principal.actor,
        entry=entry,
        on_store=on_store,
    )
    return await request.submit(plan)


async def _update(request: PolicyChange, before: PolicyRecord, body: UpdatePolicy) -> str | None:
    """Send a change to the rules. If a new allowlist does not fit in the same transaction, its writes are sent first.

    Returns None if nothing changes.
    """
    service = request.service
    listed = "allowed_recipients" in body.model_fields_set
    old = await terms_of(service, before) if listed else Terms(before.rules, {})
    new = await apply_changes(service, before.org, old, body)
    rule = body.approvals if "approvals" in body.model_fields_set else before.approvals
    if rule != before.approvals:
        await _require_approvals(request, before, body)
    new = consent.with_co_signature(new, rule, body.model_fields_set)
    if new == old and rule == before.approvals:
        # The response reports the current rules. It would be wrong if an earlier, pending change landed afterwards.
        await _wait_for_earlier(request, {UPDATE})
        if (await request.find()).version != before.version:
            raise OutdatedVersionError
        return None
    await require_owners(service, old, new, body)
    entry = request.principal.entry(
        "policy.update",
        request.object_id,
        fields=sorted(body.model_fields_set - _OFF_CHAIN),
        # An allowlist can be too long for the audit log.
        changes=difference(shown(before.rules, ()), shown(new.rules, ())),
    )

    def store_rule(conn: Connection, attempt: Attempt) -> None:
        if rule != before.approvals and not begin_rule(conn, before, rule, attempt.tx_id):
            raise ConflictError("version_conflict", "Another request is changing the policy's approvals. Retry.")

    authority = await request.authority()
    if new.entries == old.entries or not new.entries:
        dropped = before.allowlist if before.rules.restricted and not new.rules.restricted else None
        switch = await _switch(request, before, new, dropped=dropped)
        return await _send(request, _UPDATE, Step([switch]), store_rule, entry)
    await _wait_for_earlier(request)
    version: int = (await _account(service, before))["next_allowlist_version"]
    policy_address = Pubkey.from_string(before.address)
    allowlist = service.addresses.allowlist(policy_address, version)
    switch = await _switch(request, before, new, dropped=before.allowlist, listed=allowlist)
    written = await draft(service, allowlist)
    if is_written(written, new.entries):
        todo = [Step([switch])]
    elif written is not None and written["sealed"]:
        await _discard(request, before, version, written)
        raise OutdatedVersionError
    else:
        build = service.instructions(before.org)
        todo = steps(service, build, authority, policy_address, version, list(new.entries), switch)

    def store_list(conn: Connection, _attempt: Attempt) -> None:
        store_texts(conn, allowlist, before.policy_id, new.entries)

    def store_both(conn: Connection, attempt: Attempt) -> None:
        store_list(conn, attempt)
        store_rule(conn, attempt)

    # Other writers of the draft cannot change the result: the last step names the digest of the requested list.
    *earlier, last = todo
    for chunk in earlier:
        await _send(request, WRITE, chunk, store_list)
    return await _send(request, _UPDATE, last, store_both, entry)


async def _discard(request: PolicyChange, before: PolicyRecord, version: int, written: Mapping[str, Any]) -> None:
    """Discard a sealed draft that was never put in force. The next draft gets another version."""
    discard = request.service.instructions(before.org).close_allowlist(
        authority=(await request.authority()).address,
        policy=Pubkey.from_string(before.address),
        version=version,
        rent_receiver=written["payer"],
    )
    await _send(request, _DISCARD, Step([discard]))


async def _switch(
    request: PolicyChange, before: PolicyRecord, terms: Terms, *, dropped: str | None, listed: Pubkey | None = None
) -> Instruction:
    """Return the instruction that sets the rules, closes the list ``dropped`` and puts a new list in force."""
    service, old = request.service, None if dropped is None else Pubkey.from_string(dropped)
    return service.instructions(before.org).update_policy(
        authority=(await request.authority()).address,
        policy=Pubkey.from_string(before.address),
        expected_version=before.version,
        rules=terms.rules,
        new_allowlist=listed,
        entries=list(terms.entries),
        old_allowlist=old,
        rent_receiver=None if old is None else (await known_account(service, old))["payer"],
    )


async def _close(request: PolicyChange, before: PolicyRecord) -> str | None:
    """Close a policy, its list, and any draft that was never put in force."""
    service = request.service
    await _wait_for_earlier(request)
    address = Pubkey.from_string(before.address)
    account = await _account(service, before)
    allowlist = None if before.allowlist is None else Pubkey.from_string(before.allowlist)
    version: int = account["next_allowlist_version"]
    written = await draft(service, service.addresses.allowlist(address, version))
    closing = service.instructions(before.org).close_policy(
        authority=(await request.authority()).address,
        policy=address,
        policy_rent_receiver=account["payer"],
        expected_version=before.version,
        next_version=version,
        allowlist=allowlist,
        allowlist_rent_receiver=None if allowlist is None else (await known_account(service, allowlist))["payer"],
        next_rent_receiver=None if written is None else written["payer"],
    )
    entry = request.principal.entry("policy.delete", request.object_id)
    return await _send(request, _CLOSE, Step([closing]), entry=entry)


async def _wait_for_earlier(request: PolicyChange, types: Collection[str] = (*PolicyChange.preparing, UPDATE)) -> None:
    """Require that no earlier change to the policy, and no chunk of a draft, can still land.

    Raises ``chain_unavailable`` while one can. A change to the rules alone need not wait: the program accepts only the
    first of two changes that start from the same version.
    """
    org, mine = request.principal.org, request.object_id
    await require_no_pending_change(request.service, org, types, where=lambda earlier: earlier.policy_id == mine)


async def _account(service: Service, before: PolicyRecord) -> dict[str, Any]:
    """Return the policy's account. Raises OutdatedVersionError if its version differs from the read models."""
    account = await known_account(service, before.address)
    if account["version"] != before.version:
        raise OutdatedVersionError
    return account
