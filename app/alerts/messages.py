"""What the e-mails of alerts say, and to whom."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import Connection

from app.core.identifiers import derived_id
from app.store.alert_kinds import HOUR, TYPE_OF, AlertType
from app.store.alert_mails import Mail, count_since
from app.store.alerts import AlertRule
from app.store.feed import FeedEvent
from app.store.wallets import labels

Rules = Mapping[tuple[str, AlertType], AlertRule]
"""Rules by scope and type."""
Compose = Callable[[Connection, Sequence[FeedEvent], Rules, int], list[Mail]]
"""Returns the e-mails of events, to be queued at that Unix millisecond."""

_log = structlog.get_logger(__name__)

_LAST = (
    "No further e-mail about such an event is sent to this address within the hour. GET /v1/events lists them all.\n"
)


@dataclass(frozen=True, slots=True)
class _Template:
    title: str
    sentence: str
    fields: tuple[tuple[str, str], ...]
    """Names of lines, and what stands there, with `{names}` of the event's payload."""


_TEMPLATES: Mapping[AlertType, _Template] = {
    "balance_low": _Template(
        "Balance low",
        "The balance of a wallet is below its threshold.",
        (("Balance", "{current_balance} USDC"), ("Threshold", "{threshold} USDC")),
    ),
    "policy_violation": _Template(
        "Policy violation",
        "The policy of a wallet refused a payment or an escrow. Nothing was sent.",
        (
            ("Amount", "{attempted_amount} USDC"),
            ("Recipient", "{recipient}"),
            ("Rule", "{violation[rule]}"),
            ("Limit", "{violation[limit]}"),
            ("Attempted", "{violation[attempted]}"),
        ),
    ),
    "inactivity": _Template(
        "Inactivity",
        "A wallet had no transaction for a long time.",
        (("Last", "{last_transaction_at}"), ("Threshold", "{threshold} hours")),
    ),
    "velocity_spike": _Template(
        "Velocity spike",
        "A wallet had many payments and escrows within one hour.",
        (("Count", "{transactions}"), ("Threshold", "{threshold} an hour")),
    ),
    "large_transaction": _Template(
        "Large transaction",
        "A wallet made a large payment or escrow.",
        (
            ("Amount", "{amount} USDC"),
            ("Threshold", "{threshold} USDC"),
            ("Recipient", "{recipient}"),
            ("Transaction", "{tx_id}"),
        ),
    ),
}


class Composer:
    """Makes e-mails: to each address at most `hourly` an hour about a type of alert; 0 is any number.

    They are counted for each organisation, so that none can use up what another's address gets. And for each type:
    refused payments cost nothing, and an agent that makes many is to hide none of the others.
    """

    def __init__(self, *, hourly: int) -> None:
        self._hourly = hourly

    def __call__(self, conn: Connection, events: Sequence[FeedEvent], rules: Rules, now: int) -> list[Mail]:
        """Return the e-mails of events, as the rules want them."""
        wanted = [(event, _recipients(event, rules)) for event in events]
        wanted = [(event, recipients) for event, recipients in wanted if recipients]
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
                if self._hourly and counts[counted] > self._hourly:
                    _log.warning("alert_mail_omitted", event_id=event.event_id, hourly=self._hourly)
                    continue
                last = counts[counted] == self._hourly
                mails.append(
                    Mail(
                        mail_id=derived_id("mail_", event.event_id, recipient),
                        event_id=event.event_id,
                        org=event.org,
                        type=kind,
                        recipient=recipient,
                        subject=subject,
                        body=f"{body}\n{_LAST}" if last else body,
                        status="pending",
                        attempts=0,
                        due_at=now,
                        created_at=now,
                    )
                )
        return mails


def _recipients(event: FeedEvent, rules: Rules) -> Sequence[str]:
    kind = TYPE_OF[event.type]
    own, common = rules.get((event.wallet_id or "", kind)), rules.get((event.org, kind))
    rule = own or common
    if rule is None or not rule.enabled:
        return ()
    chosen = rule if rule.emails is not None else common
    return (chosen.emails or ()) if chosen is not None else ()


def _text(event: FeedEvent, label: str) -> tuple[str, str]:
    """Return subject and text."""
    template = _TEMPLATES[TYPE_OF[event.type]]
    moment = datetime.fromtimestamp(event.timestamp // 1000, UTC)
    lines = [
        ("Wallet", f"{label} ({event.wallet_id})"),
        *((name, what.format_map(_Shown(event.payload))) for name, what in template.fields),
        ("Time", f"{moment:%Y-%m-%d %H:%M:%S} UTC"),
        ("Event", event.event_id),
    ]
    table = "".join(f"{name + ':':<13}{_line(text)}\n" for name, text in lines)
    return f"{template.title}: {_line(label) or event.wallet_id}", f"{template.sentence}\n\n{table}"


class _Shown(dict[str, Any]):
    """A payload, of which what is null is shown as none."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return "none" if found is None else found


def _line(text: str) -> str:
    """Return the text as one line: labels may hold line breaks, which could pass for other lines."""
    return " ".join(text.split())
