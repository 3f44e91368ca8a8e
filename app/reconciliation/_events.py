"""Appends the events of the reconciliation and of the index watch to the feed."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Connection

from app.core.identifiers import EVENT_PREFIX, derived_id
from app.store.feed import append_event
from app.store.reconciliation import Difference

INCOMPLETE = "index.incomplete"


def append_difference(connection: Connection, difference: Difference, slot: int, now: int) -> None:
    """Report a difference between the read models and the chain."""
    fields = ", ".join(difference.found)
    summary = f"The {difference.subject} {_name(difference)} differs from the chain: {fields}"
    found = {"differences": difference.found}
    _append(connection, "reconciliation.difference", difference, slot, now, summary, found)


def append_cleared(connection: Connection, difference: Difference, slot: int, now: int) -> None:
    """Report the end of a reported difference: the read models agree with the chain, or the subject has ended."""
    summary = f"The {difference.subject} {_name(difference)} agrees with the chain again"
    _append(connection, "reconciliation.cleared", difference, slot, now, summary, {})


def append_incomplete(connection: Connection, org: str, holes: int, gaps: Sequence[str], now: int) -> None:
    """Report holes and gaps of the index to an organisation."""
    append_event(
        connection,
        event_id=derived_id(EVENT_PREFIX, org, INCOMPLETE, str(now)),
        org=org,
        type=INCOMPLETE,
        timestamp=now,
        summary=f"The index lacks {holes} transactions, and events of {len(gaps)} accounts of the organisation",
        payload={"unreadable_transactions": holes, "missing_events": gaps},
    )


def _append(  # noqa: PLR0917
    connection: Connection,
    name: str,
    difference: Difference,
    slot: int,
    now: int,
    summary: str,
    fields: dict[str, Any],
) -> None:
    ids = {"wallet_id": difference.wallet_id, "escrow_id": difference.escrow_id}
    append_event(
        connection,
        event_id=derived_id(EVENT_PREFIX, difference.address, name, str(now), to_json(difference.found).decode()),
        org=difference.org,
        type=name,
        timestamp=now,
        wallet_id=difference.wallet_id,
        summary=summary,
        payload={
            "subject": difference.subject,
            "address": difference.address,
            **{field: identifier for field, identifier in ids.items() if identifier is not None},
            **fields,
            "on_chain_slot": slot,
        },
    )


def _name(difference: Difference) -> str:
    return difference.escrow_id or difference.wallet_id or difference.org
