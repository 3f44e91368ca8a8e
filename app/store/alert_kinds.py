"""The types of alerts."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from app.core.event_catalogue import EVENTS

AlertType = Literal[
    "balance_low",
    "policy_violation",
    "inactivity",
    "velocity_spike",
    "large_transaction",
    "sol_limit",
    "refusals",
    "new_payees",
    "security",
    "approvals",
    "stopped_payments",
    "spending_limit",
    "pauses",
    "webhooks",
]
TYPES: Sequence[AlertType] = get_args(AlertType)
_NOTICES: Any = {one.type: one.alert for one in EVENTS.values() if one.alert}

EVENT_OF: Mapping[AlertType, str] = {
    **{kind: f"alert.{kind}" for kind in TYPES if kind not in _NOTICES.values()},
    "balance_low": "balance.low",
    "policy_violation": "transaction.blocked",
}
"""The event type that reports each alert type. Only alerts raised by a rule or a limit are listed."""
TYPE_OF: Mapping[str, AlertType] = {event: kind for kind, event in EVENT_OF.items()} | _NOTICES
"""For each event type, the alert type that sends e-mails about the event."""
SLACK_EVENTS = {event for event, kind in TYPE_OF.items() if kind == "approvals"}
"""Event types that are also reported to the organisation's Slack channels."""
UNCONDITIONAL = {"policy_violation", "sol_limit", *_NOTICES.values()}
"""Types without a threshold. Their events are created even without a rule; a rule only adds e-mails."""

_SPENDING = ("transaction.completed", "escrow.created")
TRIGGERS: Mapping[AlertType, tuple[str, ...]] = {
    "large_transaction": _SPENDING,
    "refusals": (EVENT_OF["policy_violation"],),
    "new_payees": (*_SPENDING, "allowance.granted"),
}
"""For each alert type, the event types that may raise it. Only rules for these alert types may freeze the wallet."""
