"""Budgets: limits that several wallets share."""

from app.access.auth import ADMINS, OPERATORS, READERS
from app.api.fields import EmptyBody
from app.api.operation import Call, operation
from app.budgets import changes
from app.budgets import service as budgets
from app.budgets.changes import BudgetChange
from app.budgets.models import Budget, BudgetList, CreateBudget, UpdateBudget

_WRITING = ("invalid_amount", "transaction_failed")
_CHANGING = ("budget_not_found", "version_conflict", "transaction_failed")


@operation(
    "POST /v1/budgets",
    roles=ADMINS,
    tagged=True,
    errors=(*_WRITING, "budget_not_found", "budget_nested"),
    signable=True,
)
async def create_budget(call: Call, body: CreateBudget) -> Budget:
    """Create a budget.

    An omitted limit is not set. A budget can be part of another one, its parent: then each payment counts in both, and
    each of them can refuse it. Every payment, escrow and allowance of the budget's wallets counts, in addition to the
    limits of each wallet's own policy. The organisation's authority signs the creation.
    """
    return await budgets.create(call.service, call.principal, call.claim, body)


@operation("GET /v1/budgets", roles=READERS, errors=("chain_unavailable",))
async def list_budgets(call: Call) -> BudgetList:
    """List budgets, oldest first."""
    return await budgets.list_all(call.service, call.principal)


@operation("GET /v1/budgets/{budget_id}", roles=READERS, tagged=True, errors=("budget_not_found", "chain_unavailable"))
async def get_budget(call: Call) -> Budget:
    """Get a budget.

    Returns the consumption by the budget's wallets, and the headroom of the limits of the budget and of its parent. The
    header `ETag` identifies the budget's version and name. Send it as `If-Match` with a change, so that you do not undo
    a concurrent change.
    """
    return await budgets.get(call.service, call.principal, call.path("budget_id"))


@operation(
    "PATCH /v1/budgets/{budget_id}",
    roles=OPERATORS,
    tagged=True,
    errors=("invalid_amount", *_CHANGING),
    version=True,
    brakes=True,
    signable=True,
)
async def update_budget(call: Call, body: UpdateBudget) -> Budget:
    """Update, freeze or unfreeze a budget.

    An omitted field keeps its value; `null` clears a limit. Past spending still counts. With `If-Match`, the budget
    changes only if it still has that `ETag`. Set `status` alone to `frozen` to stop all wallets of the budget and of
    the budgets that are part of it, and to `active` to let them pay again. An operator's key can only freeze. All other
    changes need an admin's key.
    """
    return await changes.update(BudgetChange.of(call, "budget_id"), body)


@operation(
    "DELETE /v1/budgets/{budget_id}",
    roles=ADMINS,
    tagged=True,
    errors=("budget_in_use", *_CHANGING),
    version=True,
    signable=True,
)
async def delete_budget(call: Call, _body: EmptyBody) -> Budget:
    """Delete a budget.

    The budget must not contain any wallet, and no budget may be part of it. Returns the budget as it was, without
    consumption and headroom.
    """
    return await changes.delete(BudgetChange.of(call, "budget_id"))
