"""Reports an allowance that is overdue, because it was not settled in time."""

from sqlalchemy import Connection

from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.store.allowances import AllowanceRecord
from app.store.feed import append_event

_OVERDUE = "allowance.overdue"


def append_overdue(connection: Connection, found: AllowanceRecord, now: int) -> None:
    """Report an allowance as overdue, only once. `now` is in Unix milliseconds."""
    append_event(
        connection,
        event_id=derived_id(EVENT_PREFIX, found.address, _OVERDUE),
        org=found.org,
        type=_OVERDUE,
        timestamp=now,
        wallet_id=found.wallet_id,
        summary=f"Allowance {found.allowance_id} of {format_usdc(found.amount)} USDC is still unsettled after its end",
        payload={
            "allowance_id": found.allowance_id,
            "wallet_id": found.wallet_id,
            "amount": format_usdc(found.amount),
            "delegate": found.delegate,
            "expires_at": iso(found.expires_at),
        },
    )
