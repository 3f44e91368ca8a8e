"""Events about budgets. Each event carries its organisation's sequence number, so that the newest state wins."""

from dataclasses import asdict

from sqlalchemy import select, update

from app.chain.rules import BudgetLimits
from app.core.identifiers import budget_id
from app.projection.batch import Batch, Values, address_or_none
from app.projection.differences import shown_limits
from app.store.budgets import budget_details
from app.store.read_tables import budgets
from indexer import StoredEvent


def created(batch: Batch, row: StoredEvent) -> None:
    """Add the budget and report it. A closed budget may be created again under its key."""
    data, connection = row.data, batch.connection
    key, limits = bytes.fromhex(data["key"]), BudgetLimits.from_event(data["limits"])
    parent = address_or_none(data["parent"])
    parent_id = None if parent is None else batch.budget_id(parent)
    if parent is not None and parent_id is None:
        batch.note_orphan(parent)
        return
    version = connection.scalar(select(budgets.c.version).where(budgets.c.address == data["budget"]))
    if version is None or version < data["sequence"]:
        mine = budget_details.c.address == data["budget"]
        made = connection.scalar(select(budget_details.c.created_at).where(mine))
        values = {
            "address": data["budget"],
            "budget_id": budget_id(key),
            "org": row.org,
            "key": key,
            **asdict(limits),
            "parent": parent,
            "frozen": False,
            "frozen_sequence": data["sequence"],
            "version": data["sequence"],
            "closed": False,
            "created_at": batch.moment(row) if made is None else made,
        }
        batch.put(budgets, values, keys=["address"])
    identifier = budget_id(key)
    _report(batch, row, "created", identifier, {**_limits(row, limits), "parent_id": parent_id})
    batch.adopt_orphans(row, data["budget"])


def updated(batch: Batch, row: StoredEvent) -> None:
    """Set the budget's limits and report the change."""
    limits = BudgetLimits.from_event(row.data["limits"])
    identifier = _change(batch, row, asdict(limits))
    if identifier is not None:
        _report(batch, row, "updated", identifier, _limits(row, limits))


def closed(batch: Batch, row: StoredEvent) -> None:
    """Mark the budget as closed and report it."""
    identifier = _change(batch, row, {"closed": True})
    if identifier is not None:
        _report(batch, row, "deleted", identifier, {})


def frozen(batch: Batch, row: StoredEvent) -> None:
    """Mark the budget as frozen and report it."""
    identifier = _change(batch, row, {"frozen": True}, counter="frozen_sequence")
    if identifier is not None:
        _report(batch, row, "frozen", identifier, {})


def unfrozen(batch: Batch, row: StoredEvent) -> None:
    """Mark the budget as active and report it."""
    identifier = _change(batch, row, {"frozen": False}, counter="frozen_sequence")
    if identifier is not None:
        _report(batch, row, "unfrozen", identifier, {})


def _change(batch: Batch, row: StoredEvent, values: Values, counter: str = "version") -> str | None:
    """Set columns of the event's budget unless a later event has set them.

    ``counter`` names the column with the sequence number of the event that last set them. Return the budget's id, or
    None if its creation has not been applied yet.
    """
    address, sequence = row.data["budget"], row.data["sequence"]
    identifier = batch.budget_id(address)
    if identifier is None:
        batch.note_orphan(address)
        return None
    newer = update(budgets).where(budgets.c.address == address, budgets.c[counter] < sequence)
    batch.connection.execute(newer.values({**values, counter: sequence}))
    return identifier


def _limits(row: StoredEvent, limits: BudgetLimits) -> Values:
    return {"version": row.data["sequence"], **shown_limits(limits)}


def _report(batch: Batch, row: StoredEvent, what: str, identifier: str, fields: Values) -> None:
    batch.report(row, f"budget.{what}", f"Budget {identifier} {what}", {"budget_id": identifier, **fields})
