"""The texts and recipients of alert e-mails."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import structlog
from sqlalchemy import Connection

from app.alerts._rules import Rules, effective
from app.core.identifiers import derived_id
from app.core.timestamps import HOUR
from app.store.alert_kinds import TYPE_OF, AlertType
from app.store.alert_mails import Mail, count_since
from app.store.feed import FeedEvent
from app.store.wallets import labels

_log = structlog.get_logger(__name__)

_LAST = (
    "This address has reached the hourly limit of e-mails about this type of alert. Further ones are omitted until "
    "fewer were queued within the past hour. GET /v1/events lists all events.\n"
)
_TEMPLATES: Mapping[AlertType, tuple[str, str, Mapping[str, str]]] = {
    "balance_low": (
        "Balance low",
        "The balance of a wallet is below its threshold.",
        {"Balance": "{current_balance} USDC", "Threshold": "{threshold} USDC"},
    ),
    "policy_violation": (
        "Policy violation",
        "The policy or budget of a wallet refused a payment, an escrow or an allowance. Nothing was sent.",
        {
            "Amount": "{attempted_amount} USDC",
            "Recipient": "{recipient}",
            "Rule": "{violation[rule]}",
            "Limit": "{violation[limit]}",
            "Attempted": "{violation[attempted]}",
            "Refusals": "{refusals}",
        },
    ),
    "inactivity": (
        "Inactivity",
        "A wallet had no transaction for a long time.",
        {"Last": "{last_transaction_at}", "Threshold": "{threshold} hours"},
    ),
    "velocity_spike": (
        "Velocity spike",
        "A wallet had many payments, escrows and allowances within one hour.",
        {"Count": "{transactions}", "Threshold": "{threshold} an hour"},
    ),
    "large_transaction": (
        "Large transaction",
        "A wallet made a large payment or escrow.",
        {
            "Amount": "{amount} USDC",
            "Threshold": "{threshold} USDC",
            "Recipient": "{recipient}",
            "Transaction": "{tx_id}",
        },
    ),
}
"""Title, sentence and lines of each type's e-mail. The lines contain `{names}` of fields in the event's payload."""


def compose(conn: Connection, events: Sequence[FeedEvent], rules: Rules, now: int, *, hourly: int) -> list[Mail]:
    """Return the e-mails that the rules require for events, as queued at the Unix millisecond `now`.

    An address gets at most `hourly` e-mails an hour about a type of alert; 0 means no limit. The limit is per
    organisation, so that no organisation uses up the limit of another. It is also per type: refused payments cost
    nothing, and an agent that makes many of them must not suppress other alerts.
    """
    wanted = [(event, recipients) for event in events if (recipients := _recipients(event, rules))]
    names = labels(conn, {event.wallet_id for event, _ in wanted if event.wallet_id is not None})
    counts: Counter[tuple[str, AlertType, str]] = Counter()
    mails = []
    for event, recipients in wanted:
        kind, (subject, body) = TYPE_OF[event.type], _text(event, names.get(event.wallet_id or "", ""))
        for recipient in recipients:
            counted = (event.org, kind, recipient)
            if counted not in counts:
                counts[counted] = count_since(conn, *counted, now - HOUR)
            counts[counted] += 1
            if hourly and counts[counted] > hourly:
                _log.warning("alert_mail_omitted", event_id=event.event_id, hourly=hourly)
                continue
            mails.append(
                Mail(
                    mail_id=derived_id("mail_", event.event_id, recipient),
                    event_id=event.event_id,
                    org=event.org,
                    type=kind,
                    recipient=recipient,
                    subject=subject,
                    body=f"{body}\n{_LAST}" if counts[counted] == hourly else body,
                    status="pending",
                    attempts=0,
                    due_at=now,
                    created_at=now,
                )
            )
    return mails


def _recipients(event: FeedEvent, rules: Rules) -> Sequence[str]:
    rule, emails = effective(rules, TYPE_OF[event.type], event.org, event.wallet_id)
    return emails if rule is not None and rule.enabled else ()


def _text(event: FeedEvent, label: str) -> tuple[str, str]:
    """Return the subject and the body of the e-mail about an event. `label` is the wallet's name."""
    title, sentence, fields = _TEMPLATES[TYPE_OF[event.type]]
    if event.payload.get("freeze"):
        sentence += " The rule freezes the wallet for this reason."
    # Refusals reported by an earlier version have no number.
    payload = {"refusals": 1} | {name: "none" if value is None else value for name, value in event.payload.items()}
    lines = {
        "Wallet": f"{label} ({event.wallet_id})",
        **{name: template.format_map(payload) for name, template in fields.items()},
        "Time": f"{datetime.fromtimestamp(event.timestamp // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC",
        "Event": event.event_id,
    }
    table = "".join(f"{name + ':':<13}{_line(text)}\n" for name, text in lines.items())
    return f"{title}: {_line(label) or event.wallet_id}", f"{sentence}\n\n{table}"


def _line(text: str) -> str:
    """Return the text on one line. A label's line breaks could otherwise imitate further lines."""
    return " ".join(text.split())
