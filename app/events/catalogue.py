"""All types of events, with their meanings and the fields of their payloads."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.store.feed import SEVERITIES


@dataclass(frozen=True, slots=True)
class EventKind:
    """A type of event. ``fields`` are the fields of its payload, in addition to ``timestamp``.

    ``optional`` fields are present only in some cases. ``exception`` states when the severity differs.
    """

    type: str
    meaning: str
    fields: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    exception: str = ""

    @property
    def severity(self) -> str:
        """The severity, except in the cases that ``exception`` names."""
        return SEVERITIES.get(self.type, "info")


_SENT = ("wallet_id", "tx_id", "tx_signature", "amount")
_ESCROW = ("escrow_id", "from_wallet", "to_wallet", "tx_signature", "on_chain_slot")
_ALLOWANCE = ("allowance_id", "wallet_id", "amount", "tx_signature", "on_chain_slot")
_LIMITS = ("max_per_day", "max_per_month", "velocity_cap")
_COMPARED = ("subject", "address", "on_chain_slot")
_COMPARED_DIFFERENT = (*_COMPARED, "differences")
_KEY = ("key_id", "role", "name", "bound_wallet_id")
_PERSON = ("person_id", "role", "name")
_REPLACED = ("replaces", "replaced_until")
_COMPARED_IDS = ("wallet_id", "escrow_id")
_KINDS = (
    EventKind(
        "transaction.pending",
        "A payment is being sent to the chain and is not confirmed yet.",
        (*_SENT, "recipient"),
    ),
    EventKind(
        "transaction.completed",
        "The chain has confirmed a payment.",
        (*_SENT, "recipient", "policy_triggered", "on_chain_slot"),
    ),
    EventKind(
        "transaction.blocked",
        "The wallet's policy or budget refused a payment, an escrow or an allowance. Nothing was sent to the chain. "
        "After 1,000 refusals of a wallet in a UTC day, one event after each hour counts the hour's `refusals` of one "
        "type by one rule. Its other fields come from the first refusal.",
        ("wallet_id", "tx_id", "attempted_amount", "recipient", "violation", "refusals"),
        ("approval_id",),
    ),
    EventKind("wallet.created", "A wallet was created.", ("wallet_id", "agent_id", "chain_address")),
    EventKind("wallet.funded", "USDC moved from the reserve to a wallet.", (*_SENT, "usdc_balance", "on_chain_slot")),
    EventKind("wallet.frozen", "A wallet was frozen manually.", ("wallet_id", "reason")),
    EventKind("wallet.unfrozen", "A wallet was unfrozen.", ("wallet_id",)),
    EventKind(
        "balance.low",
        "A wallet's balance is below its threshold. Sent once, and again only after the balance or a change of the "
        "alert ended this state.",
        ("wallet_id", "current_balance", "threshold"),
    ),
    EventKind(
        "alert.inactivity",
        "A wallet had no transaction for `threshold` hours.",
        ("wallet_id", "last_transaction_at", "threshold"),
    ),
    EventKind(
        "alert.velocity_spike",
        "A wallet had more payments, escrows and grants of allowances within an hour than its `threshold`.",
        ("wallet_id", "transactions", "threshold"),
    ),
    EventKind(
        "alert.large_transaction",
        "A payment or an escrow was larger than the wallet's `threshold`. Grants of allowances do not count. "
        "`freeze` is true if the rule freezes the wallet for it.",
        (*_SENT, "recipient", "threshold", "on_chain_slot"),
        optional=("freeze",),
    ),
    EventKind(
        "alert.brake_repeated",
        "A freeze or pause (`brake`) had been lifted when its request was repeated under its idempotency key, so it "
        "was made again. `first_called_at` is the time of the first request. `wallet_id` is null for a pause.",
        ("wallet_id", "brake", "first_called_at"),
    ),
    EventKind(
        "alert.sol_limit",
        "The transactions of a wallet, or of all wallets of the organisation (`wallet_id` is null), have used 80 % of "
        "the SOL that the fee payer spends for them in a UTC day. At 100 %, payments, escrows and allowances are "
        "refused until `resets_at`.",
        ("wallet_id", "spent", "limit", "resets_at"),
    ),
    EventKind(
        "policy.updated",
        "A policy was changed. `changes` maps each changed field to its value before (`from`) and after (`to`).",
        ("policy_id", "version", "changes"),
    ),
    EventKind(
        "policy.expired",
        "A policy expired, and the wallet `wallet_id`, which is under the policy, was frozen.",
        ("wallet_id", "policy_id"),
    ),
    EventKind(
        "budget.created",
        "A budget was created. Wallets can share it.",
        ("budget_id", "version", *_LIMITS),
    ),
    EventKind(
        "budget.updated",
        "A budget was changed. The fields have its new limits; null means no limit.",
        ("budget_id", "version", *_LIMITS),
        ("name",),
    ),
    EventKind("budget.deleted", "A budget was deleted.", ("budget_id",)),
    EventKind(
        "wallet.budget_set",
        "A wallet was put into a budget, moved to another budget, or taken out of one (`budget_id` is null).",
        ("wallet_id", "budget_id", "previous_budget_id"),
    ),
    EventKind(
        "escrow.created",
        "An escrow was created and now holds the money.",
        (*_ESCROW, "amount", "chain_address", "task_hash", "expires_at", "tx_id"),
    ),
    EventKind(
        "escrow.completed",
        "A proof of completion was accepted. `escrow.released` follows.",
        (*_ESCROW, "amount", "output_hash"),
    ),
    EventKind("escrow.released", "An escrow's money, or a share of it, went to the receiver.", (*_ESCROW, "amount")),
    EventKind(
        "escrow.refunded",
        "An escrow's money, or a share of it, went back to the sender: after the deadline, by a decision on a dispute, "
        "or after 30 days without a decision.",
        (*_ESCROW, "amount", "reason"),
        exception="critical after a dispute",
    ),
    EventKind(
        "escrow.disputed",
        "A party disputed an escrow. The escrow now waits for the arbiter.",
        (*_ESCROW, "amount", "reason_hash", "evidence"),
    ),
    EventKind(
        "escrow.dispute_withdrawn",
        "The dispute of an escrow was withdrawn. `expires_at` is the new deadline: the time of the withdrawal plus the "
        "time that was left when the dispute was raised.",
        (*_ESCROW, "amount", "expires_at"),
    ),
    EventKind(
        "allowance.granted",
        "A wallet's money was set aside for a delegate, who can transfer the money until the allowance is settled.",
        (*_ALLOWANCE, "recipient", "destination", "delegate", "reference", "expires_at", "tx_id"),
    ),
    EventKind(
        "allowance.settled",
        "An allowance was settled. Of its `amount`, `spent` counts as spent by the delegate. `returned` moved back to "
        "the wallet.",
        (*_ALLOWANCE, "reference", "spent", "returned"),
    ),
    EventKind(
        "allowance.discrepancy",
        "The transfers out of an allowance do not match its grant. `seen` left in transfers (`transfers` has their "
        "signatures), the program reports `spent`, and `arrived` reached the destination. Treat the delegate's key as "
        "stolen.",
        (*_ALLOWANCE, "spent", "seen", "arrived", "signed_by_delegate", "transfers"),
    ),
    EventKind(
        "allowance.overdue",
        "An allowance is still outstanding a minute after its end, so its delegate can still pay. This event is sent "
        "once. The service keeps trying to settle the allowance, and anyone else may settle it too.",
        ("allowance_id", "wallet_id", "amount", "delegate", "expires_at"),
    ),
    EventKind(
        "org.deposit_confirmed",
        "USDC arrived in the organisation's reserve.",
        ("amount", "org_balance", "tx_signature", "on_chain_slot"),
    ),
    EventKind(
        "export.ready",
        "The file of an export is ready for download.",
        ("export_id", "wallet_id", "format", "rows", "expires_at"),
    ),
    EventKind(
        "reconciliation.difference",
        "The chain and the service disagree about a reserve, a wallet or an escrow. Two comparisons in a row showed "
        "this, with all transactions applied. `differences` maps each field to its value on the `chain` and in the "
        "`service`. This event is sent once, and again when the difference changes.",
        _COMPARED_DIFFERENT,
        _COMPARED_IDS,
    ),
    EventKind(
        "database.commits_lost",
        "The database has lost commits. For 24 hours, payments need `afterRestore` unless the gap is declared checked.",
    ),
    EventKind(
        "transaction.forgotten",
        "The database has lost a transaction of the service that moved money. A repeated request may pay twice.",
        ("tx_signature", "recipient", "amount", "on_chain_slot"),
        ("wallet_id", "tx_id"),
    ),
    EventKind(
        "index.incomplete",
        "The service cannot read transactions of the program (`unreadable_transactions` is their number), or lacks "
        "events of the organisation and its vaults (`missing_events` has the addresses). This event is sent when new "
        "unreadable transactions are found, and repeatedly while events are missing, but at most once an hour.",
        ("unreadable_transactions", "missing_events"),
    ),
    EventKind(
        "x402.paid_without_resource",
        "A payment for a resource has landed, but the resource did not answer with success. The service does not pay "
        "a second time. Contact the resource's operator.",
        (*_SENT, "url", "resource_status"),
    ),
    EventKind(
        "reconciliation.cleared",
        "A reported difference between the chain and the service is gone.",
        _COMPARED,
        _COMPARED_IDS,
    ),
    EventKind(
        "audit.head",
        "The number and hash of the newest entry of the organisation's audit log, sent daily. Keep them: with them, "
        "`agent-vault audit verify` proves that no entry up to this one was changed, or removed before its retention "
        "time.",
        ("number", "hash"),
    ),
    EventKind("key.issued", "An API key was created, or it replaced a rotated key.", (*_KEY, "actor"), _REPLACED),
    EventKind("key.revoked", "An API key was revoked.", (*_KEY, "actor", "revoked_at")),
    EventKind(
        "key.expiring",
        "An API key expires soon. This event is sent 14 days and 1 day before.",
        (*_KEY, "expires_at"),
    ),
    EventKind(
        "key.used_outside",
        "An API key was used from an address that it does not allow. This event is sent at most once an hour for each "
        "key and client network.",
        (*_KEY, "address"),
    ),
    EventKind("person.joined", "A person joined the organisation.", (*_PERSON, "actor")),
    EventKind("person.removed", "A person was removed from the organisation.", (*_PERSON, "actor")),
    EventKind("ping", "A test of a webhook. `GET /v1/events` does not list this event.", ("webhook_id",)),
)

#: Every type of event, by its name.
EVENTS: Mapping[str, EventKind] = {kind.type: kind for kind in _KINDS}
