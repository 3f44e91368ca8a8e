"""The events that report alerts."""

from typing import Any

from sqlalchemy import Connection

from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.money import format_usdc, parse_usdc
from app.core.timestamps import DAY, HOUR, MINUTE, iso_ms
from app.store.alert_kinds import EVENT_OF, AlertType
from app.store.alerts import AlertRule, AlertTransition, has_new_payee, mark, recent, velocity
from app.store.feed import FeedEvent, append_event


def append_lasting(conn: Connection, kind: AlertType, wallet: AlertTransition, event_id: str, now: int) -> None:
    """Add the event that reports the beginning of a low balance, inactivity or a velocity spike."""
    threshold: str | int = wallet.threshold
    fields: dict[str, str | int | None]
    if kind == "balance_low":
        balance, threshold = format_usdc(wallet.balance), format_usdc(wallet.threshold)
        fields, summary = {"current_balance": balance}, f"{balance} USDC left, below {threshold}"
    elif kind == "inactivity":
        last = None if wallet.last_transaction_at is None else iso_ms(wallet.last_transaction_at)
        fields, summary = {"last_transaction_at": last}, f"No payment, escrow or allowance for {threshold} hours"
    else:
        count = velocity(conn, wallet.wallet_id, now)
        fields, summary = {"transactions": count}, f"{count} transactions within an hour, above {threshold}"
    fields["threshold"] = threshold
    _append(conn, kind, wallet.wallet_id, fields, event_id=event_id, org=wallet.org, timestamp=now, summary=summary)


def append_triggered(conn: Connection, kind: AlertType, event: FeedEvent, rule: AlertRule) -> bool:
    """Add the event that reports a large transaction, many refusals or many new payees, if the rule's condition holds.

    `event` reports the payment, escrow, allowance or refusal that may trigger the alert. Each refusal and each new
    payee counts towards one alert only. Returns True if the event was added.
    """
    shown, threshold, wallet_id = event.payload, rule.threshold, event.wallet_id
    if threshold is None or wallet_id is None:
        return False
    # A rollback of the transaction also removes this event, which carries the transaction's signature. If the
    # transaction lands again, the event returns under the same id.
    event_id = derived_id(EVENT_PREFIX, event.event_id, EVENT_OF[kind])
    fields: dict[str, Any]
    if kind == "large_transaction":
        if parse_usdc(shown["amount"]) <= threshold:
            return False
        fields = {name: shown[name] for name in ("tx_id", "tx_signature", "amount", "on_chain_slot")}
        fields |= {"recipient": shown.get("recipient", shown.get("to_wallet")), "threshold": format_usdc(threshold)}
        summary = f"{shown['amount']} USDC in one transaction, above {fields['threshold']}"
    else:
        if kind == "new_payees" and not has_new_payee(conn, wallet_id, shown["tx_id"]):
            return False
        minutes, until = rule.minutes or DAY // MINUTE, event.timestamp
        if shown.get("refusals", 1) > 1 and minutes * MINUTE >= HOUR:
            # One event may report several refusals of an hour without their exact times. The period therefore ends with
            # that hour.
            until = (until // HOUR + 1) * HOUR - 1
        count = recent(conn, wallet_id, kind, until, minutes * MINUTE)
        if count < threshold:
            return False
        mark(conn, wallet_id, kind, event_id, until)
        fields = {"count": count, "threshold": threshold, "minutes": minutes}
        summary = f"{count} {'refusals' if kind == 'refusals' else 'new payees'} within {minutes} minutes"
    if rule.freezes:
        fields["freeze"], summary = True, f"{summary}; freezes the vault"
    _append(
        conn,
        kind,
        wallet_id,
        {**fields, "timestamp": shown["timestamp"]},
        event_id=event_id,
        signature=event.signature,
        org=event.org,
        timestamp=event.timestamp,
        summary=summary,
    )
    return True


def _append(conn: Connection, kind: AlertType, wallet_id: str | None, fields: dict[str, Any], **event: Any) -> None:
    payload = {"wallet_id": wallet_id, **fields}
    append_event(conn, type=EVENT_OF[kind], wallet_id=wallet_id, payload=payload, **event)
