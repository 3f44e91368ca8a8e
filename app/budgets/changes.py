"""Changes of budgets: one transaction changes the limits of all wallets in the budget.

A change names the budget version that it was made from, and the program refuses it at any other version. A late change
therefore undoes nothing. The service makes the change again from the current limits.
"""

from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.versions import Precondition
from app.budgets import service as budgets
from app.budgets.models import Budget, UpdateBudget
from app.core.errors import UnavailableError
from app.core.identifiers import random_id
from app.core.timestamps import iso_ms
from app.projection.differences import shown_limits
from app.store.audit import NewLogEntry, append
from app.store.budgets import BudgetDetails, BudgetRecord, budget, put_budget_details
from app.store.feed import append_event
from app.submission.changes import earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.offline import authority_of, refuse_unneeded_offline
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Authority, Plan, PlanType
from app.submission.versioned_changes import OutdatedVersionError, send_versioned, submit_versioned

_UPDATE, _CLOSE = PlanType("update_budget"), PlanType("close_budget")
PLAN_TYPES = (*budgets.PLAN_TYPES, _UPDATE, _CLOSE)
"""Plan types of all attempts to create, change or close a budget. The `recipient` of each is the budget's id."""
CLOSE = _CLOSE.name
"""Plan type of attempts to close a budget."""
_OUTDATED = frozenset({"VersionMismatch", "WrongRentReceiver"})


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """A request to change a budget: the principal, the budget, and the versions that the request accepts."""

    service: Service
    principal: Principal
    claim: Claim
    budget_id: str
    precondition: Precondition

    async def find(self) -> BudgetRecord:
        """Return the budget. Raises ``budget_not_found``."""
        return await budgets.find(self.service, self.principal.org, self.budget_id)

    def check(self, found: BudgetRecord) -> None:
        """Raise ``version_conflict`` unless the request accepts the budget's version."""
        self.precondition.check(found.version, found.name)


async def update(request: BudgetChange, body: UpdateBudget) -> Budget:
    """Change the fields in the body. Raises ``version_conflict`` if the request does not accept the current version."""
    service, org = request.service, request.principal.org
    # The last step, the rename, claims the key without a transaction. If it has happened, only the response is missing.
    done = request.claim.repeats and request.claim.attempt is None
    if request.claim.attempt is None:
        await request.find()
    if "name" in body.model_fields_set:
        refuse_unneeded_offline(request.claim, field="name")
    async with service.locks.hold(LockScope.POLICY, f"{org}/{request.budget_id}"):
        if not done:
            landed = await earlier_outcome(service, request.claim) is not None
            if not landed and body.model_fields_set.intersection(budgets.LIMITS):
                await send_versioned(request, "budget", lambda before: _limit(request, before, body))
            elif not landed:
                request.check(await request.find())
            if "name" in body.model_fields_set:
                await _rename(request, body.name)
    return await budgets.get(service, request.principal, request.budget_id)


async def delete(request: BudgetChange) -> Budget:
    """Delete a budget without wallets, and return it as it was.

    Raises ``budget_in_use`` if wallets are in it, and ``version_conflict`` if the request does not accept the current
    version.
    """
    service, org = request.service, request.principal.org
    async with service.locks.hold(LockScope.POLICY, f"{org}/{request.budget_id}"):
        if await earlier_outcome(service, request.claim) is None:
            await send_versioned(request, "budget", lambda before: _close(request, before))
    return await deleted(service, org, request.budget_id)


async def deleted(service: Service, org: str, identifier: str) -> Budget:
    """Return a deleted budget as it was."""
    found = await service.db.read(lambda conn: budget(conn, org, identifier))
    if found is None:
        raise UnavailableError("chain_unavailable")
    return budgets.shown(found)


async def _limit(request: BudgetChange, before: BudgetRecord, body: UpdateBudget) -> None:
    """Send a change of the limits, unless they already have the requested values."""
    service, org = request.service, request.principal.org
    limits = budgets.with_changes(before.limits, body)
    if limits == before.limits:
        # The response reports the current limits. An earlier change that lands after it would make that report wrong.
        mine = request.budget_id
        await require_no_pending_change(service, org, {_UPDATE.name}, where=lambda earlier: earlier.recipient == mine)
        if (await request.find()).version != before.version:
            raise OutdatedVersionError
        return
    authority = await authority_of(service, org, request.claim)
    instruction = service.instructions(org).update_budget(
        authority=authority.address,
        budget=Pubkey.from_string(before.address),
        expected_version=before.version,
        limits=limits,
    )
    given = sorted(body.model_fields_set.intersection(budgets.LIMITS))
    entry = request.principal.entry("budget.update", request.budget_id, fields=given)
    await _submit(request, _UPDATE, instruction, authority, entry)


async def _close(request: BudgetChange, before: BudgetRecord) -> None:
    service, org = request.service, request.principal.org
    account = await service.chain.account(before.address)
    if account is None:
        # The read models know the account, so the node that answered is stale.
        raise UnavailableError("chain_unavailable")
    authority = await authority_of(service, org, request.claim)
    instruction = service.instructions(org).close_budget(
        authority=authority.address,
        budget=Pubkey.from_string(before.address),
        rent_receiver=account.decode(service.codec).data["payer"],
    )
    entry = request.principal.entry("budget.delete", request.budget_id)
    await _submit(request, _CLOSE, instruction, authority, entry)


async def _submit(
    request: BudgetChange, kind: PlanType, instruction: Instruction, authority: Authority, entry: NewLogEntry
) -> None:
    plan = Plan(
        org=request.principal.org,
        type=kind,
        instructions=[instruction],
        signers=[],
        authority=authority,
        recipient=request.budget_id,
        entry=entry,
    )
    await submit_versioned(request.service, plan, request.claim, outdated=_OUTDATED)


async def _rename(request: BudgetChange, name: str) -> None:
    """Change the name, which is not on the chain."""
    service, principal = request.service, request.principal
    now = service.clock.seen_ms()

    def write(conn: Connection) -> None:
        current = budget(conn, principal.org, request.budget_id)
        if current is None or current.name == name:
            return
        ids = (current.budget_id, current.org, current.address)
        put_budget_details(conn, BudgetDetails(*ids, name=name, created_at=current.created_at))
        append(conn, principal.entry("budget.update", current.budget_id, fields=["name"]))
        shown = {"budget_id": current.budget_id, "version": current.version, **shown_limits(current.limits)}
        append_event(
            conn,
            event_id=random_id("evt_"),
            org=current.org,
            type="budget.updated",
            timestamp=now,
            summary=f"Budget {current.budget_id} renamed",
            payload={**shown, "name": name, "timestamp": iso_ms(now)},
        )

    await request.claim.store(write)
