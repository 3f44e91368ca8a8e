"""Every event of the service: what it tells and what its payload holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.store.feed import SEVERITIES


@dataclass(frozen=True, slots=True)
class EventKind:
    """What a type of event means; ``fields`` are those of its payload beside ``timestamp``.

    ``optional`` fields are there in some cases only. ``exception`` tells when the severity is another one.
    """

    type: str
    meaning: str
    fields: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    exception: str = ""

    @property
    def severity(self) -> str:
        """Severity, but for the exception."""
        return SEVERITIES.get(self.type, "info")


_SENT = ("wallet_id", "tx_id", "tx_signature", "amount")
_ESCROW = ("escrow_id", "from_wallet", "to_wallet", "tx_signature", "on_chain_slot")
_KINDS = (
    EventKind(
        "transaction.pending",
        "A payment is on its way to the chain and not yet confirmed.",
        (*_SENT, "recipient"),
    ),
    EventKind(
        "transaction.completed",
        "The chain has confirmed a payment.",
        (*_SENT, "recipient", "policy_triggered", "on_chain_slot"),
    ),
    EventKind(
        "transaction.blocked",
        "The wallet's policy refused a payment or an escrow. Nothing was sent to the chain.",
        ("wallet_id", "tx_id", "attempted_amount", "recipient", "violation"),
        ("approval_id",),
    ),
    EventKind("wallet.created", "A wallet was created.", ("wallet_id", "agent_id", "chain_address")),
    EventKind("wallet.funded", "USDC came from the reserve into a wallet.", (*_SENT, "usdc_balance", "on_chain_slot")),
    EventKind("wallet.frozen", "A wallet was frozen by hand.", ("wallet_id", "reason")),
    EventKind("wallet.unfrozen", "A wallet was unfrozen.", ("wallet_id",)),
    EventKind(
        "balance.low",
        "A wallet's balance fell below its threshold.",
        ("wallet_id", "current_balance", "threshold"),
    ),
    EventKind(
        "alert.inactivity",
        "A wallet had no transaction for `threshold` hours.",
        ("wallet_id", "last_transaction_at", "threshold"),
    ),
    EventKind(
        "alert.velocity_spike",
        "A wallet had more payments and escrows within an hour than its `threshold`.",
        ("wallet_id", "transactions", "threshold"),
    ),
    EventKind(
        "alert.large_transaction",
        "A payment or an escrow was larger than the wallet's `threshold`.",
        (*_SENT, "recipient", "threshold", "on_chain_slot"),
    ),
    EventKind(
        "policy.updated",
        "A policy was changed. `changes` maps each changed field to its value before (`from`) and after (`to`).",
        ("policy_id", "version", "changes"),
    ),
    EventKind(
        "policy.expired",
        "A policy's time is over, and this wallet of it was frozen.",
        ("wallet_id", "policy_id"),
    ),
    EventKind(
        "escrow.created",
        "An escrow was made; it holds the money now.",
        (*_ESCROW, "amount", "chain_address", "task_hash", "expires_at", "tx_id"),
    ),
    EventKind(
        "escrow.completed",
        "A proof of completion was accepted. `escrow.released` follows.",
        (*_ESCROW, "amount", "output_hash"),
    ),
    EventKind("escrow.released", "Money of an escrow went to the receiver.", (*_ESCROW, "amount")),
    EventKind(
        "escrow.refunded",
        "Money of an escrow went back to the sender: after its deadline, or by a decision of a dispute.",
        (*_ESCROW, "amount", "reason"),
        exception="critical after a dispute",
    ),
    EventKind(
        "escrow.disputed",
        "A party disputes an escrow, which waits for the arbiter now.",
        (*_ESCROW, "amount", "reason_hash", "evidence"),
    ),
    EventKind(
        "org.deposit_confirmed",
        "USDC arrived in the organisation's reserve.",
        ("amount", "org_balance", "tx_signature", "on_chain_slot"),
    ),
    EventKind(
        "export.ready",
        "The file of an export can be fetched.",
        ("export_id", "wallet_id", "format", "rows", "expires_at"),
    ),
    EventKind("ping", "A webhook is tested. `GET /v1/events` does not list it.", ("webhook_id",)),
)

#: Every type of event, by its name.
EVENTS: Mapping[str, EventKind] = {kind.type: kind for kind in _KINDS}
