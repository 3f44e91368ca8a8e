"""Changes of policies: a change of the rules is one transaction on the chain and binds every attached vault at once.

The chain lets a change pass only while the policy has the version that the change was made from, so one that lands
late undoes nothing; what was asked for is then made anew from what the policy says by now.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import BusinessError, NotFoundError
from app.core.identifiers import random_id
from app.core.timestamps import iso_ms, now_ms
from app.policies import allowlists as policy_lists
from app.policies import service as policies
from app.policies.allowlists import WRITE
from app.policies.models import Policy, UpdatePolicy
from app.policies.terms import Expected, Terms, changed, changed_meanwhile, named, terms_of
from app.store.attempts import Attempt
from app.store.feed import append_event
from app.store.policies import (
    UPDATE,
    PolicyRecord,
    insert_policy_details,
    policy,
    recipients_before,
    record_policy_edit,
    version_made_by,
)
from app.submission.changes import resumed
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.locks import LockScope
from app.submission.plan import Hook, Outcome, Plan, PlanType, RefusedError, nothing
from app.submission.refusals import business_error, error_name, require_confirmed

_UPDATE, _CLOSE = PlanType(UPDATE), PlanType("close_policy")
PLAN_TYPES = (WRITE, _UPDATE, _CLOSE)
#: Refusals that say that the policy or its draft has changed since it was read.
_CHANGED_MEANWHILE = frozenset({"VersionMismatch", "WrongAllowlist", "AllowlistGap", "AllowlistNotSealed"})
_TRIES = 3
_OFF_CHAIN = frozenset({"name", "idempotency_key"})


class _ChangedMeanwhileError(Exception):
    """The policy or its draft is not any more what it was when it was read."""


@dataclass(frozen=True, slots=True)
class _PolicyStep:
    """A transaction of a change, and what is written when it is stored."""

    type: PlanType
    instructions: Sequence[Instruction]
    on_store: Hook = nothing


_Steps = Callable[[PolicyRecord], AsyncGenerator[_PolicyStep]]


@dataclass(frozen=True, slots=True)
class _ChangeRequest:
    """Who asks for a change of which policy, and in which state that has to be."""

    service: Service
    principal: Principal
    claim: Claim
    identifier: str
    expected: Expected

    async def find(self) -> PolicyRecord:
        return await policies.find(self.service, self.principal.org, self.identifier)

    async def find_changeable(self) -> PolicyRecord:
        found = await self.find()
        if found.immutable:
            raise BusinessError("policy_immutable")
        return found


async def update(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, identifier: str, body: UpdatePolicy, expected: Expected
) -> Policy:
    """Change the fields in the body, the others stay. Raises ``policy_immutable`` and ``version_conflict``."""
    # Its key is claimed without a transaction by the last step, the name: an earlier run only could not answer.
    done = claim.repeats and claim.attempt is None
    request = _ChangeRequest(service, principal, claim, identifier, expected)
    await request.find_changeable()
    async with service.locks.hold(LockScope.POLICY, f"{principal.org}/{identifier}"):
        if not done:
            await _change(request, body)
    changed_policy = await request.find()
    return policies.shown(await named(service, changed_policy))


async def _change(request: _ChangeRequest, body: UpdatePolicy) -> None:
    landed = await _resumed(request)
    if landed is None and body.model_fields_set - _OFF_CHAIN:
        landed = await _carry_out(request, lambda before: _update(request, before, body))
    elif landed is None:
        request.expected.check(await request.find())
    if "name" in body.model_fields_set:
        await _rename(request, body.name, landed)


async def delete(service: Service, principal: Principal, claim: Claim, identifier: str, expected: Expected) -> Policy:
    """Delete a policy to which no vault is attached, and return it as it was.

    Raises ``policy_in_use``, ``policy_immutable`` and ``version_conflict``.
    """
    request = _ChangeRequest(service, principal, claim, identifier, expected)
    async with service.locks.hold(LockScope.POLICY, f"{principal.org}/{identifier}"):
        landed = await _resumed(request)
        if landed is None:
            await request.find_changeable()
            landed = await _carry_out(request, lambda before: _close(request, before))
    return await service.db.read(lambda conn: _deleted(conn, principal.org, identifier, landed or ""))


def _deleted(conn: Connection, org: str, identifier: str, closing: str) -> Policy:
    deleted = policy(conn, org, identifier)
    if deleted is None:
        raise NotFoundError("policy_not_found")
    return policies.shown(replace(deleted, allowed_recipients=recipients_before(conn, deleted.address, closing)))


async def _resumed(request: _ChangeRequest) -> str | None:
    """Return the signature of the change that an earlier run of the request has made, if it has.

    Raises while that is not known. A chunk of an allowlist is not the change yet.
    """
    outcome = await resumed(request.service, request.claim)
    return None if outcome is None or outcome.attempt.type == WRITE.name else outcome.attempt.signature


async def _carry_out(request: _ChangeRequest, steps: _Steps) -> str | None:
    """Send the steps from the policy as it is, and return the signature of the last; None when there was none.

    When the policy has changed meanwhile they are made anew.
    """
    service = request.service
    for _ in range(_TRIES):
        signature = None
        await service.catch_up()
        before = await request.find()
        request.expected.check(before)
        try:
            async with aclosing(steps(before)) as following:
                async for step in following:
                    signature = await _send(request, step)
        except _ChangedMeanwhileError:
            continue
        return signature
    raise changed_meanwhile()


async def _send(request: _ChangeRequest, step: _PolicyStep) -> str | None:
    service = request.service
    plan = Plan(
        org=request.principal.org,
        type=step.type,
        instructions=step.instructions,
        signers=[service.signers.require_authority()],
        policy_id=request.identifier,
        actor=request.principal.key_id,
        on_store=step.on_store,
    )
    failure: RefusedError | Outcome
    try:
        failure = outcome = await service.submitter.submit(plan, request.claim)
    except RefusedError as refused:
        failure = refused
    else:
        if outcome.status != "failed":
            require_confirmed(service.codec, outcome)
            return outcome.attempt.signature
    if error_name(service.codec, failure) in _CHANGED_MEANWHILE:
        raise _ChangedMeanwhileError
    raise business_error(service.codec, failure) from None


async def _update(request: _ChangeRequest, before: PolicyRecord, body: UpdatePolicy) -> AsyncGenerator[_PolicyStep]:
    """Yield the transactions of a change of rules: one, or before it those that write a longer allowlist."""
    service = request.service
    listed = "allowed_recipients" in body.model_fields_set
    says = await terms_of(service, before) if listed else Terms(before.rules, {})
    wanted = await changed(service, before.org, says, body)
    if wanted == says:
        # An earlier change that still lands would undo what is asked for here, and answered as done.
        await policy_lists.wait_for_earlier(service, before.org, before.policy_id, (UPDATE,))
        if (await policies.find(service, before.org, before.policy_id)).version != before.version:
            raise _ChangedMeanwhileError
        return
    authority = service.signers.require_authority().pubkey()
    address = Pubkey.from_string(before.address)
    if wanted.entries == says.entries or not wanted.entries:
        dropped = before.allowlist if before.rules.restricted and not wanted.rules.restricted else None
        yield _PolicyStep(_UPDATE, [await _switch(service, before, wanted, dropped=dropped)])
        return
    await policy_lists.wait_for_earlier(service, before.org, before.policy_id)
    version = (await _on_chain(service, before))["allowlist_version"] + 1
    new, entries = service.addresses.allowlist(address, version), list(wanted.entries)
    payer = service.signers.fee_payer_address
    writes = policy_lists.writes(
        service.instructions(before.org), address, version, entries, payer=payer, authority=authority
    )
    switch = await _switch(service, before, wanted, dropped=before.allowlist, new=new)

    def remember(conn: Connection, _attempt: Attempt) -> None:
        policy_lists.remember(conn, new, before.policy_id, list(wanted.entries.values()))

    if policy_lists.fit([*writes, switch], payer, signatures=2):
        yield _PolicyStep(_UPDATE, [*writes, switch], remember)
        return
    for write in writes:
        yield _PolicyStep(WRITE, [write], remember)
    # Nothing but what was asked for comes into force, whoever else wrote meanwhile.
    if not await policy_lists.written(service, new, entries):
        raise _ChangedMeanwhileError
    yield _PolicyStep(_UPDATE, [switch], remember)


async def _switch(
    service: Service, before: PolicyRecord, wanted: Terms, *, dropped: str | None, new: Pubkey | None = None
) -> Instruction:
    """Return the instruction that sets the rules, closes the list that is ``dropped`` and puts the new one in force."""
    old = None if dropped is None else Pubkey.from_string(dropped)
    return service.instructions(before.org).update_policy(
        authority=service.signers.require_authority().pubkey(),
        policy=Pubkey.from_string(before.address),
        expected_version=before.version,
        rules=wanted.rules,
        new_allowlist=new,
        old_allowlist=old,
        rent_receiver=None if old is None else (await _decoded(service, old))["payer"],
    )


async def _close(request: _ChangeRequest, before: PolicyRecord) -> AsyncGenerator[_PolicyStep]:
    """Yield the transaction that closes a policy, its list, and a draft that never came into force.

    The program closes only the list in force, so such a draft is emptied and put in force first.
    """
    service = request.service
    build, authority = service.instructions(before.org), service.signers.require_authority().pubkey()
    await policy_lists.wait_for_earlier(service, before.org, before.policy_id)
    address = Pubkey.from_string(before.address)
    stands = await _on_chain(service, before)
    closed = None if before.allowlist is None else Pubkey.from_string(before.allowlist)
    front: list[Instruction] = []
    version = stands["allowlist_version"] + 1
    draft = service.addresses.allowlist(address, version)
    if await service.chain.account(draft) is not None:
        emptied = Terms(replace(before.rules, restricted=True), {})
        front = [
            build.write_allowlist(
                payer=service.signers.fee_payer_address,
                authority=authority,
                policy=address,
                version=version,
                offset=0,
                entries=[],
                seal=True,
            ),
            await _switch(service, before, emptied, dropped=before.allowlist, new=draft),
        ]
        closed = draft
    close = build.close_policy(
        authority=authority,
        policy=address,
        policy_rent_receiver=stands["payer"],
        allowlist=closed,
        allowlist_rent_receiver=None if closed is None else (await _decoded(service, closed))["payer"],
    )
    yield _PolicyStep(_CLOSE, [*front, close])


async def _on_chain(service: Service, before: PolicyRecord) -> dict[str, Any]:
    """Return the policy's account, if it is still in the version that the read models show."""
    stands = await _decoded(service, Pubkey.from_string(before.address))
    if stands["version"] != before.version:
        raise _ChangedMeanwhileError
    return stands


async def _decoded(service: Service, address: Pubkey) -> dict[str, Any]:
    account = await service.chain.account(address)
    if account is None:
        raise _ChangedMeanwhileError
    return service.codec.decode_account(account.data).data


async def _rename(request: _ChangeRequest, name: str, landed: str | None) -> None:
    """Give the policy a name, which only the service knows; with the change of rules that landed, it is one entry."""
    found = await request.find()

    def write(conn: Connection) -> None:
        current = policy(conn, found.org, found.policy_id)
        if current is None or current.name == name:
            return
        now = now_ms()
        changes = {"name": {"from": current.name, "to": name}}
        insert_policy_details(conn, found.policy_id, found.org, found.address, name, found.created_at)
        record_policy_edit(
            conn,
            found.org,
            found.policy_id,
            version=None if landed is None else version_made_by(conn, found.address, landed),
            changed_by=request.principal.key_id,
            changes=changes,
            now=now,
        )
        append_event(
            conn,
            event_id=random_id("evt_"),
            org=found.org,
            type="policy.updated",
            timestamp=now,
            summary=f"Policy {found.policy_id}: name changed",
            payload={
                "policy_id": found.policy_id,
                "version": current.version,
                "changes": changes,
                "timestamp": iso_ms(now),
            },
        )

    await request.claim.store(write)
