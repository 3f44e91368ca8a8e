"""The events that report alerts."""

from typing import Any

from sqlalchemy import Connection

from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.store.alert_kinds import BALANCE_LOW, EVENT_OF, INACTIVITY, LARGE_TRANSACTION, AlertType
from app.store.alerts import AlertTransition, velocity
from app.store.feed import FeedEvent, append_event


def append_lasting(conn: Connection, kind: AlertType, wallet: AlertTransition, event_id: str, now: int) -> None:
    """Add the event that reports the beginning of a low balance, inactivity or a velocity spike."""
    threshold: str | int = wallet.threshold
    fields: dict[str, str | int | None]
    if kind == BALANCE_LOW:
        balance, threshold = format_usdc(wallet.balance), format_usdc(wallet.threshold)
        fields, summary = {"current_balance": balance}, f"{balance} USDC left, below {threshold}"
    elif kind == INACTIVITY:
        last = None if wallet.last_transaction_at is None else iso_ms(wallet.last_transaction_at)
        fields, summary = {"last_transaction_at": last}, f"No transaction for {threshold} hours"
    else:
        count = velocity(conn, wallet.wallet_id, now)
        fields, summary = {"transactions": count}, f"{count} transactions within an hour, above {threshold}"
    fields |= {"threshold": threshold, "timestamp": iso_ms(now)}
    _append(conn, kind, wallet.wallet_id, fields, event_id=event_id, org=wallet.org, timestamp=now, summary=summary)


def append_large(conn: Connection, event: FeedEvent, limit: int, *, freeze: bool) -> None:
    """Add the event that reports a payment or escrow above `limit`, in micro-USDC.

    `event` is the event of the payment or escrow itself. With `freeze`, the rule freezes the wallet.
    """
    shown, threshold = event.payload, format_usdc(limit)
    fields = {name: shown[name] for name in ("tx_id", "tx_signature", "amount", "on_chain_slot", "timestamp")}
    if freeze:
        fields["freeze"] = True
    _append(
        conn,
        LARGE_TRANSACTION,
        event.wallet_id,
        {**fields, "recipient": shown.get("recipient", shown.get("to_wallet")), "threshold": threshold},
        # If the transaction is rolled back, this event is removed by the transaction's signature. If it lands again,
        # the event returns under the same id.
        event_id=derived_id(EVENT_PREFIX, event.event_id, EVENT_OF[LARGE_TRANSACTION]),
        signature=event.signature,
        org=event.org,
        timestamp=event.timestamp,
        summary=f"{shown['amount']} USDC in one transaction, above {threshold}" + "; freezes the vault" * freeze,
    )


def _append(conn: Connection, kind: AlertType, wallet_id: str | None, fields: dict[str, Any], **event: Any) -> None:
    payload = {"wallet_id": wallet_id, **fields}
    append_event(conn, type=EVENT_OF[kind], wallet_id=wallet_id, payload=payload, **event)
