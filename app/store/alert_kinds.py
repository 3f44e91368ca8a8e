"""The types of alerts."""

from collections.abc import Mapping
from typing import Literal

AlertType = Literal["balance_low", "policy_violation", "inactivity", "velocity_spike", "large_transaction"]

BALANCE_LOW: AlertType = "balance_low"
POLICY_VIOLATION: AlertType = "policy_violation"
INACTIVITY: AlertType = "inactivity"
VELOCITY_SPIKE: AlertType = "velocity_spike"
LARGE_TRANSACTION: AlertType = "large_transaction"

EVENT_OF: Mapping[AlertType, str] = {
    BALANCE_LOW: "balance.low",
    POLICY_VIOLATION: "transaction.blocked",
    INACTIVITY: "alert.inactivity",
    VELOCITY_SPIKE: "alert.velocity_spike",
    LARGE_TRANSACTION: "alert.large_transaction",
}
"""The type of event that reports each type of alert."""
TYPE_OF: Mapping[str, AlertType] = {event: kind for kind, event in EVENT_OF.items()}
