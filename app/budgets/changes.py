"""Changes of budgets: one transaction changes the limits of all wallets in the budget.

A change names the budget version that it was made from, and the program refuses the change if the budget has another
version. A late change therefore cannot undo a newer one. The service makes a refused change again from the current
limits.
"""

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.api.fields import optional
from app.api.versioned_changes import OutdatedVersionError, VersionedChange
from app.budgets import service as budgets
from app.budgets.models import Budget, UpdateBudget
from app.core.errors import AuthenticationError, UnavailableError
from app.core.identifiers import random_id
from app.projection.differences import difference, shown_limits
from app.store.audit import NewLogEntry, append
from app.store.budgets import BudgetDetails, BudgetRecord, budget, put_budget_details
from app.store.feed import append_event
from app.submission.chain_state import known_account, stale_node_error
from app.submission.changes import carry_out_current, earlier_outcome
from app.submission.context import Service
from app.submission.offline import refuse_unneeded_offline
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Authority, Plan, PlanType

_UPDATE, _CLOSE = PlanType("update_budget"), PlanType("close_budget")
_FREEZE, _UNFREEZE = PlanType("freeze_budget", resent=False), PlanType("unfreeze_budget", resent=False)
PLAN_TYPES = (*budgets.PLAN_TYPES, _UPDATE, _CLOSE, _FREEZE, _UNFREEZE)
"""Plan types of all attempts to create, change, freeze, unfreeze or close a budget.

The `recipient` of each is the budget's id.
"""
CLOSE = _CLOSE.name
"""Plan type of attempts to close a budget."""


class BudgetChange(VersionedChange[BudgetRecord]):
    """A request to change or delete a budget."""

    thing = "budget"
    outdated = frozenset({"VersionMismatch", "WrongRentReceiver"})

    async def find(self) -> BudgetRecord:
        """Return the budget. Raises ``budget_not_found``."""
        return await budgets.find(self.service, self.principal.org, self.object_id)

    def check(self, found: BudgetRecord) -> None:
        """Raise ``version_conflict`` unless the request accepts the budget's version."""
        self.precondition.check(found.version, found.name)


async def update(request: BudgetChange, body: UpdateBudget) -> Budget:
    """Change the fields in the body.

    Raises ``version_conflict`` if the request does not accept the current version, and ``insufficient_permissions`` if
    an operator does anything but freeze the budget.
    """
    given = body.model_fields_set - {"idempotency_key"}
    if given and not body.brakes and request.principal.role != "admin":
        raise AuthenticationError("insufficient_permissions", "An operator may only freeze a budget.")
    if "status" in given:
        await _set_status(request, frozen=body.brakes)
    else:
        await request.update(
            given.intersection(budgets.LIMITS),
            given.intersection({"name"}),
            lambda before: _limit(request, before, body),
            lambda _landed: _rename(request, body.name),
        )
    return await budgets.get(request.service, request.principal, request.object_id)


async def delete(request: BudgetChange) -> Budget:
    """Delete a budget without wallets and without parts, and return it as it was.

    Raises ``budget_in_use`` if it has wallets or parts, and ``version_conflict`` if the request does not accept the
    current version.
    """
    await request.delete(lambda before: _close(request, before))
    return await deleted(request.service, request.principal.org, request.object_id)


async def deleted(service: Service, org: str, identifier: str) -> Budget:
    """Return a deleted budget as it was. Raises ``chain_unavailable`` if the read models lack it."""
    found = await service.db.read(lambda conn: budget(conn, org, identifier))
    if found is None:
        raise UnavailableError("chain_unavailable")
    return budgets.shown(found)


async def _set_status(request: BudgetChange, *, frozen: bool) -> None:
    """Freeze or unfreeze the budget on the chain, unless it already has that status.

    A freeze waits for no lock and no payment. An unfreeze names the freeze that it lifts, so it cannot lift a later
    freeze.
    """
    if frozen:
        refuse_unneeded_offline(request.claim)
    if await earlier_outcome(request.service, request.claim) is None:
        await carry_out_current(request.service, lambda: _status_plan(request, frozen=frozen), request.claim)


async def _status_plan(request: BudgetChange, *, frozen: bool) -> Plan | None:
    service, signers, before = request.service, request.service.signers, await request.find()
    if request.claim.first_called_at is None:
        request.check(before)
    state = await known_account(service, before.address)
    if max(state["created_version"], state["frozen_sequence"]) < before.frozen_sequence:
        raise stale_node_error()
    if bool(state["frozen"]) == frozen:
        # The response reports the status. An earlier change that lands after it would make that report wrong.
        kinds = {_FREEZE.name, _UNFREEZE.name}
        await require_no_pending_change(service, before.org, kinds, where=lambda one: one.recipient == before.budget_id)
        return None
    build, address, authority = service.instructions(before.org), Pubkey.from_string(before.address), None
    if frozen:
        instruction = build.freeze_budget(signer=signers.operator_address, budget=address)
    else:
        authority, sequence = await request.authority(), state["frozen_sequence"]
        instruction = build.unfreeze_budget(authority=authority.address, budget=address, expected_sequence=sequence)
    return Plan(
        org=before.org,
        type=_FREEZE if frozen else _UNFREEZE,
        instructions=[instruction],
        signers=[signers.operator] if frozen else [],
        authority=authority,
        recipient=before.budget_id,
        entry=request.principal.entry(f"budget.{'freeze' if frozen else 'unfreeze'}", before.budget_id),
    )


async def _limit(request: BudgetChange, before: BudgetRecord, body: UpdateBudget) -> str | None:
    """Send a change of the limits. Returns None if they already have the requested values."""
    service, org = request.service, request.principal.org
    limits = budgets.with_changes(before.limits, body)
    if limits == before.limits:
        # The response reports the current limits. An earlier change that lands after the response would make it wrong.
        mine = request.object_id
        await require_no_pending_change(service, org, {_UPDATE.name}, where=lambda earlier: earlier.recipient == mine)
        if (await request.find()).version != before.version:
            raise OutdatedVersionError
        return None
    authority = await request.authority()
    instruction = service.instructions(org).update_budget(
        authority=authority.address,
        budget=Pubkey.from_string(before.address),
        expected_version=before.version,
        limits=limits,
    )
    given = sorted(body.model_fields_set.intersection(budgets.LIMITS))
    changes = difference(shown_limits(before.limits), shown_limits(limits))
    entry = request.principal.entry("budget.update", request.object_id, fields=given, changes=changes)
    return await _submit(request, _UPDATE, instruction, authority, entry)


async def _close(request: BudgetChange, before: BudgetRecord) -> str | None:
    authority = await request.authority()
    instruction = request.service.instructions(before.org).close_budget(
        authority=authority.address,
        budget=Pubkey.from_string(before.address),
        parent=optional(Pubkey.from_string, before.parent),
        rent_receiver=(await known_account(request.service, before.address))["payer"],
        expected_version=before.version,
    )
    entry = request.principal.entry("budget.delete", request.object_id)
    return await _submit(request, _CLOSE, instruction, authority, entry)


async def _submit(
    request: BudgetChange, kind: PlanType, instruction: Instruction, authority: Authority, entry: NewLogEntry
) -> str | None:
    plan = Plan(
        org=request.principal.org,
        type=kind,
        instructions=[instruction],
        authority=authority,
        recipient=request.object_id,
        entry=entry,
    )
    return await request.submit(plan)


async def _rename(request: BudgetChange, name: str) -> None:
    """Change the name, which is not on the chain."""
    service, principal = request.service, request.principal
    now = service.clock.seen_ms()

    def write(conn: Connection) -> None:
        current = budget(conn, principal.org, request.object_id)
        if current is None or current.name == name:
            return
        ids = {one: getattr(current, one) for one in ("budget_id", "org", "address", "created_at")}
        put_budget_details(conn, BudgetDetails(**ids, name=name))
        append(conn, principal.entry("budget.update", current.budget_id, fields=["name"]))
        shown = {"budget_id": current.budget_id, "version": current.version, **shown_limits(current.limits)}
        append_event(
            conn,
            event_id=random_id("evt_"),
            org=current.org,
            type="budget.updated",
            timestamp=now,
            summary=f"Budget {current.budget_id} renamed",
            payload={**shown, "name": name},
        )

    await request.claim.store(write)
