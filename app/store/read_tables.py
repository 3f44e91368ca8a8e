"""Read models: tables computed from the chain, joined with data that only the service has.

The projector writes and can rebuild them. New attempts add their rows before the chain confirms them. Times are Unix
milliseconds, except where the chain keeps seconds (`session_expires_at`, `expiry`, `effective_at`, the `expires_at`
of approvals and budgets, and the times of escrows and allowances other than `created_at`). Addresses are base58, hashes
lower-case hex.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DefaultClause,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
    false,
    func,
    text,
)

from app.core.transaction_types import Purpose, TransactionStatus, TransactionType
from app.database.columns import U64, metadata
from app.database.record_tables import table_of

wallets = Table(
    "wallets",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("vault", String, nullable=False, unique=True),
    Column("tokens", String, nullable=False),
    Column("policy", String, nullable=False, doc="address of the attached policy"),
    Column("budget", String, doc="address of the shared budget; null if the wallet has none"),
    Column("agent_hash", String, nullable=False),
    Column("session_authority", String),
    Column("session_expires_at", BigInteger, nullable=False),
    Column("frozen", Integer, nullable=False, doc="0 not frozen, 1 frozen manually, 2 frozen by the policy's expiry"),
    Column("archived", Boolean, nullable=False),
    Column("balance", U64, nullable=False),
    Column("balance_slot", BigInteger, nullable=False, doc="slot in which the vault had this balance"),
    # Events may be applied out of order. The columns that end in `_sequence` hold the number of the last event that set
    # the balance, the policy and session, the budget, or the freeze.
    Column("balance_sequence", U64, nullable=False),
    Column("balance_row", BigInteger, nullable=False, doc="id of the indexer's row that set the balance"),
    Column("config_sequence", U64, nullable=False),
    Column("budget_sequence", U64, nullable=False, server_default="0"),
    Column("frozen_sequence", U64, nullable=False),
    Column("funded", Boolean, nullable=False, doc="true if the wallet ever held USDC"),
    Column("sequence", U64, nullable=False, doc="number of the vault's last event"),
    Column("escrow_counter", U64, nullable=False, server_default="0", doc="number of the next escrow"),
    Column("allowance_counter", U64, nullable=False, server_default="0", doc="number of the next allowance"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("last_transaction_at", BigInteger),
    Column("blocked_at", BigInteger, doc="time of the last refused expense; null after a later transaction"),
    Index("wallets_newest", "org", "created_at", "wallet_id"),
    Index("wallets_by_policy", "org", "policy"),
    Index("wallets_by_budget", "org", "budget"),
)

policies = Table(
    "policies",
    metadata,
    Column("address", String, primary_key=True),
    Column("policy_id", String, nullable=False),
    Column("org", String, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("max_per_tx", U64),
    Column("max_per_day", U64),
    Column("max_per_month", U64),
    Column("velocity_cap", BigInteger),
    Column("require_co_sign", U64),
    Column("expiry", BigInteger),
    Column("blocked_categories", BigInteger, nullable=False, doc="bit set of category codes"),
    Column("restricted", Boolean, nullable=False),
    Column("max_open_escrows", BigInteger),
    Column("allow_allowances", Boolean, nullable=False),
    Column("allowlist", String),
    Column("version", U64, nullable=False),
    Column("immutable", Boolean, nullable=False),
    Column("closed", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("new_recipient_cap", U64),
    UniqueConstraint("org", "policy_id"),
    # The keeper looks for expired policies every second.
    Index("policies_by_expiry", "expiry"),
)

budgets = Table(
    "budgets",
    metadata,
    Column("address", String, primary_key=True),
    Column("budget_id", String, nullable=False),
    Column("org", String, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("max_per_day", U64),
    Column("max_per_month", U64),
    Column("velocity_cap", BigInteger),
    Column("version", U64, nullable=False, doc="number of the event that last set limits or `closed`"),
    Column("closed", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("max_total", U64),
    Column("expires_at", BigInteger),
    Column("parent", String, doc="address of the parent budget; null if it has none"),
    Column("frozen", Boolean, nullable=False, server_default=false()),
    Column("frozen_sequence", U64, nullable=False, server_default="0", doc="number of the event that set `frozen`"),
    UniqueConstraint("org", "budget_id"),
)

policy_versions = Table(
    "policy_versions",
    metadata,
    Column("address", String, primary_key=True),
    Column("version", U64, primary_key=True),
    Column("changes", JSON, nullable=False),
    Column("timestamp", BigInteger, nullable=False),
    Column("signature", String, nullable=False),
)

recipients = Table(
    "recipients",
    metadata,
    Column("org", String, primary_key=True),
    Column("address", String, primary_key=True),
    Column("domain_hash", String),
    Column("category", Integer, nullable=False),
    Column("effective_at", BigInteger, nullable=False),
    Column("sequence", U64, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("recipients_by_domain", "org", "domain_hash"),
    Index("recipients_newest", "org", "updated_at", "address"),
)


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A movement of money, or an attempt at one. `amount` is in micro-USDC."""

    currency: ClassVar = "USDC"
    tx_id: str
    org: str
    wallet_id: str
    type: TransactionType
    recipient: str | None
    """The recipient as given by the client, or the recipient's address."""
    recipient_address: str | None
    amount: Annotated[int, U64()]
    status: TransactionStatus
    signature: str | None
    instruction_index: Annotated[int | None, Integer()]
    """Index of the instruction. The id of the transaction is derived from this instruction's event."""
    inner_index: Annotated[int | None, Integer()]
    """Index of the instruction's event among the inner instructions."""
    slot: int | None
    policy_id: str | None
    policy_triggered: bool
    memo: str | None
    attestation_hash: str | None
    violation: dict[str, Any] | None
    error: str | None
    timestamp: int
    refusals: Annotated[int | None, Integer()]
    """Number of refusals that a blocked row stands for; null in rows stored by older code."""


transactions = table_of(
    "transactions",
    TransactionRecord,
    # Every combination of filters reads one of these indexes in its order, or merges several. For an indexed column
    # that the filter leaves open, the query reads one range for each of its few values.
    Index("transactions_newest", "org", "timestamp", "tx_id"),
    Index("transactions_by_wallet", "wallet_id", "timestamp", "tx_id"),
    # The index contains the amount, so that sums of amounts need not read the rows.
    Index("transactions_by_kind", "org", "status", "type", "timestamp", "tx_id", "amount"),
    Index("transactions_by_wallet_kind", "wallet_id", "status", "type", "timestamp", "tx_id", "amount"),
    Index("transactions_by_address", "org", "recipient_address", "status", "type", "timestamp", "tx_id"),
    Index("transactions_by_wallet_address", "wallet_id", "recipient_address", "status", "type", "timestamp", "tx_id"),
    # These indexes contain only the few recipients that were given in another form than their address. The indexes by
    # address find all others.
    *(
        Index(
            *(name, scope, "recipient", "status", "type", "timestamp", "tx_id"),
            sqlite_where=text("recipient IS NOT recipient_address"),
            postgresql_where=text("recipient IS DISTINCT FROM recipient_address"),
        )
        for name, scope in (("transactions_by_recipient", "org"), ("transactions_by_wallet_recipient", "wallet_id"))
    ),
    Index("transactions_by_signature", "signature"),
    key=["tx_id"],
)
REFUSALS = func.coalesce(transactions.c.refusals, 1)
"""The number of refusals that a blocked row stands for."""
RECIPIENT_GIVEN = transactions.c.recipient.is_distinct_from(transactions.c.recipient_address)
"""True for a transaction whose recipient was given in another form than its address."""

projection = Table(
    "projection",
    metadata,
    Column("name", String, primary_key=True),
    Column("position", BigInteger, nullable=False, doc="id of the indexer's last applied row; 0 for an orphaned event"),
)


@dataclass(frozen=True, slots=True)
class OnChainApproval:
    """An approval of one payment, escrow or allowance of exactly `amount` (micro-USDC) from `vault` to `recipient`."""

    address: str
    org: str
    vault: str
    recipient: str
    amount: Annotated[int, U64()]
    purpose: Annotated[Purpose, DefaultClause("payment")]
    policy_version: Annotated[int, U64()]
    expires_at: int
    """Expiry of the approval in Unix seconds."""
    payer: str
    """Address that gets the rent of the approval's account back."""
    state: str
    """The state: `open`, `used` or `closed`."""
    terms: str | None
    """Hash of an escrow's terms, as hex."""


approvals = table_of(
    "approvals",
    OnChainApproval,
    Index("approvals_by_vault", "vault", "recipient", "amount"),
    key=["address"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowRow:
    """An escrow as the chain has it. Amounts are micro-USDC, times Unix seconds, `created_at` milliseconds.

    Events may be applied out of order. A settlement ends all disputes. Before the settlement, the last dispute or
    withdrawal of a dispute counts; the number of that event is `dispute_sequence`.
    """

    currency: ClassVar = "USDC"
    escrow_id: str
    org: str
    address: str
    wallet_id: str
    """Id of the paying wallet."""
    vault: str
    """Vault of the paying wallet."""
    receiver: str
    """Address of the receiving vault, or another address."""
    to_wallet: str | None
    """Id of the receiving wallet; null if the receiver is another address."""
    payer: str
    """Address that gets the rent of the escrow's accounts back."""
    policy: str
    """Address of the policy that allowed the escrow."""
    amount: Annotated[int, U64()]
    task_hash: str
    output_commitment: str | None
    """SHA-256 of the required hash of the output, in hex."""
    proof_kinds: Annotated[int, Integer()]
    """Bit set of the accepted kinds of proof, by their codes."""
    counter: Annotated[int, U64()]
    status: str
    """The status: `pending`, `locked`, `disputed`, `released`, `refunded` or `settled`."""
    deadline: int
    due_at: int | None = None
    """Time to refund the escrow or collect its shares; null while pending and once the escrow is empty."""
    created_at: int
    tx_id: str | None = None
    """Id of the transaction that locked the escrow."""
    signature: str | None = None
    disputed_at: int | None = None
    disputed_by: str | None = None
    """Address of the key that signed the dispute."""
    reason_hash: str | None = None
    evidence_hash: str | None = None
    dispute_signature: str | None = None
    dispute_sequence: Annotated[int | None, U64()] = None
    released: Annotated[int | None, U64()] = None
    refunded: Annotated[int | None, U64()] = None
    output_hash: str | None = None
    proof_kind: Annotated[int | None, Integer()] = None
    settled_at: int | None = None
    settlement_signature: str | None = None
    settlement_sequence: Annotated[int | None, U64()] = None
    """Number of the event that settled the escrow or that last paid out an owed share."""
    receiver_owed: bool | None = None
    """True if the receiver is still owed its share."""
    vault_owed: bool | None = None
    """True if the paying wallet is still owed its share."""
    surplus: Annotated[int | None, U64()] = None
    """Deposits of third parties, paid with the shares; null until settlement."""


escrows = table_of(
    "escrows",
    EscrowRow,
    UniqueConstraint("address"),
    Index("escrows_newest", "org", "created_at", "escrow_id"),
    Index("escrows_by_status", "org", "status", "created_at", "escrow_id"),
    Index("escrows_by_wallet", "wallet_id", "created_at", "escrow_id"),
    Index("escrows_by_receiver", "to_wallet", "created_at", "escrow_id"),
    Index("escrows_by_wallet_status", "wallet_id", "status", "created_at", "escrow_id"),
    Index("escrows_by_receiver_status", "to_wallet", "status", "created_at", "escrow_id"),
    Index("escrows_by_transaction", "tx_id"),
    Index("escrows_due", "due_at"),
    key=["escrow_id"],
)
