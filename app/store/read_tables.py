"""Read models: tables computed from the chain, joined with data that only the service has.

The projector writes and can rebuild them. New attempts add their rows before the chain confirms them. Times are Unix
milliseconds, except where the chain keeps seconds (`session_expires_at`, `expiry`, `effective_at`, an approval's
`expires_at`, and the times of escrows and allowances other than `created_at`). Addresses are base58, hashes lower-case
hex.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
    func,
    text,
)

from app.database.columns import SERIAL, U64, metadata

reserves = Table(
    "reserves",
    metadata,
    Column("org", String, primary_key=True),
    Column("balance", U64, nullable=False),
    Column("slot", BigInteger, nullable=False, doc="slot of the balance"),
    Column("sequence", U64, nullable=False, doc="number of the Org's last event"),
    Column("authority", String, nullable=False),
    Column("operator", String, nullable=False),
    Column("arbiter", String, nullable=False),
    Column("verifier", String, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("authority_attaches", Boolean, nullable=False, doc="true if the authority co-signs attachments"),
)

wallets = Table(
    "wallets",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("vault", String, nullable=False, unique=True),
    Column("tokens", String, nullable=False),
    Column("policy", String, nullable=False, doc="address of the attached policy"),
    Column("budget", String, doc="address of the shared budget; null if it has none"),
    Column("agent_hash", String, nullable=False),
    Column("session_authority", String),
    Column("session_expires_at", BigInteger, nullable=False),
    Column("frozen", Integer, nullable=False, doc="0 no, 1 manual, 2 policy expired"),
    Column("archived", Boolean, nullable=False),
    Column("balance", U64, nullable=False),
    Column("balance_slot", BigInteger, nullable=False, doc="slot of the balance"),
    # Events may be applied out of order. Each of these is the number of the last event that set the balance, the policy
    # and session, the budget, or the freeze.
    Column("balance_sequence", U64, nullable=False),
    Column("balance_row", BigInteger, nullable=False, doc="id of the indexer's row that set the balance"),
    Column("config_sequence", U64, nullable=False),
    Column("budget_sequence", U64, nullable=False, server_default="0"),
    Column("frozen_sequence", U64, nullable=False),
    Column("funded", Boolean, nullable=False, doc="true if it ever held USDC"),
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
    Column("blocked_categories", BigInteger, nullable=False, doc="bit set over the category codes"),
    Column("restricted", Boolean, nullable=False),
    Column("max_open_escrows", BigInteger),
    Column("allow_allowances", Boolean, nullable=False),
    Column("allowlist", String),
    Column("version", U64, nullable=False),
    Column("immutable", Boolean, nullable=False),
    Column("closed", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
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

transactions = Table(
    "transactions",
    metadata,
    Column("tx_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("wallet_id", String, nullable=False),
    Column("type", String, nullable=False),
    Column("recipient", String, doc="as given by the client, or the address"),
    Column("recipient_address", String),
    Column("amount", U64, nullable=False),
    Column("status", String, nullable=False),
    Column("signature", String),
    Column("instruction_index", Integer, doc="index of the instruction; the id comes from its event"),
    Column("inner_index", Integer, doc="index of that event among the inner instructions"),
    Column("slot", BigInteger),
    Column("policy_id", String),
    Column("policy_triggered", Boolean, nullable=False),
    Column("memo", String),
    Column("attestation_hash", String),
    Column("violation", JSON),
    Column("error", String),
    Column("timestamp", BigInteger, nullable=False),
    Column("refusals", Integer, doc="number of refusals that a blocked row stands for; null in older ones"),
    # Every combination of filters reads one of these indexes in its order, or merges several. It reads one range for
    # each of the few values of an indexed column that the filter leaves open.
    Index("transactions_newest", "org", "timestamp", "tx_id"),
    Index("transactions_by_wallet", "wallet_id", "timestamp", "tx_id"),
    # The index contains the amount, so that sums of amounts need not read the rows.
    Index("transactions_by_kind", "org", "status", "type", "timestamp", "tx_id", "amount"),
    Index("transactions_by_wallet_kind", "wallet_id", "status", "type", "timestamp", "tx_id", "amount"),
    Index("transactions_by_address", "org", "recipient_address", "status", "type", "timestamp", "tx_id"),
    Index("transactions_by_wallet_address", "wallet_id", "recipient_address", "status", "type", "timestamp", "tx_id"),
    # Only for the few recipients that were given in another form than their address. The indexes by address find the
    # others.
    *(
        Index(
            *(name, scope, "recipient", "status", "type", "timestamp", "tx_id"),
            sqlite_where=text("recipient IS NOT recipient_address"),
            postgresql_where=text("recipient IS DISTINCT FROM recipient_address"),
        )
        for name, scope in (("transactions_by_recipient", "org"), ("transactions_by_wallet_recipient", "wallet_id"))
    ),
    Index("transactions_by_signature", "signature"),
)
REFUSALS = func.coalesce(transactions.c.refusals, 1)
"""The number of refusals that a blocked row stands for."""
RECIPIENT_GIVEN = transactions.c.recipient.is_distinct_from(transactions.c.recipient_address)
"""True for a transaction with a recipient given in another form than its address."""

BETWEEN_TWO = "other_wallet_id <> wallet_id"
"""True for an event between two wallets."""
ALERTING = "severity <> 'info'"
"""True for warnings and critical events."""

feed = Table(
    "feed",
    metadata,
    Column("position", SERIAL, primary_key=True, autoincrement=True),
    Column("event_id", String, nullable=False, unique=True),
    Column("org", String, nullable=False),
    Column("type", String, nullable=False),
    Column("timestamp", BigInteger, nullable=False),
    Column("wallet_id", String),
    Column("severity", String, nullable=False),
    Column("summary", String, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("signature", String, doc="signature of the reported transaction, if any"),
    Column("other_wallet_id", String, doc="the other of two wallets, if any"),
    # As with transactions, each list reads one index in its order, or merges several.
    Index("feed_newest", "org", "timestamp", "position"),
    Index("feed_by_kind", "org", "type", "severity", "timestamp", "position"),
    Index("feed_by_wallet", "wallet_id", "timestamp", "position"),
    Index("feed_by_wallet_kind", "wallet_id", "type", "severity", "timestamp", "position"),
    # Most events have no other wallet.
    Index(
        *("feed_by_other", "other_wallet_id", "timestamp", "position"),
        sqlite_where=text(BETWEEN_TWO),
        postgresql_where=text(BETWEEN_TWO),
    ),
    Index(
        "feed_by_other_kind",
        *("other_wallet_id", "type", "severity", "timestamp", "position"),
        sqlite_where=text(BETWEEN_TWO),
        postgresql_where=text(BETWEEN_TWO),
    ),
    Index("feed_by_signature", "signature"),
    # Few events are alerting. The index serves the count of alerting events after a person's read position.
    Index("feed_alerting", "org", "position", sqlite_where=text(ALERTING), postgresql_where=text(ALERTING)),
    sqlite_autoincrement=True,
)

projection = Table(
    "projection",
    metadata,
    Column("name", String, primary_key=True),
    Column("position", BigInteger, nullable=False, doc="id of the indexer's last applied row; 0 for an orphaned event"),
)

approvals = Table(
    "approvals",
    metadata,
    Column("address", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("vault", String, nullable=False),
    Column("recipient", String, nullable=False),
    Column("amount", U64, nullable=False),
    Column("purpose", String, nullable=False, server_default="payment", doc="payment, escrow or allowance"),
    Column("policy_version", U64, nullable=False),
    Column("expires_at", BigInteger, nullable=False, doc="Unix seconds"),
    Column("payer", String, nullable=False, doc="gets the account's rent back"),
    Column("state", String, nullable=False, doc="open, used or closed"),
    Index("approvals_by_vault", "vault", "recipient", "amount"),
)

escrows = Table(
    "escrows",
    metadata,
    Column("escrow_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("address", String, nullable=False, unique=True),
    Column("wallet_id", String, nullable=False, doc="the paying wallet"),
    Column("vault", String, nullable=False, doc="vault of the paying wallet"),
    Column("receiver", String, nullable=False, doc="address of the receiving vault, or another address"),
    Column("to_wallet", String, doc="the receiving wallet, if the receiver is a wallet"),
    Column("payer", String, nullable=False, doc="gets the accounts' rent back"),
    Column("policy", String, nullable=False, doc="address of the policy that allowed it"),
    Column("amount", U64, nullable=False),
    Column("task_hash", String, nullable=False),
    Column("output_commitment", String, doc="SHA-256 of the output's required hash"),
    Column("proof_kinds", Integer, nullable=False, doc="bit set over the codes of the kinds"),
    Column("counter", U64, nullable=False),
    # Events may be applied out of order. A settlement ends all disputes. Before it, the last dispute or withdrawal
    # counts; its number is `dispute_sequence`.
    Column("status", String, nullable=False, doc="pending, locked, disputed, released, refunded or settled"),
    Column("deadline", BigInteger, nullable=False),
    Column("due_at", BigInteger, doc="time to refund or collect it; null while pending and once empty"),
    Column("created_at", BigInteger, nullable=False),
    Column("tx_id", String, doc="the transaction that locked it"),
    Column("signature", String),
    Column("disputed_at", BigInteger),
    Column("disputed_by", String, doc="the signing address"),
    Column("reason_hash", String),
    Column("evidence_hash", String),
    Column("dispute_signature", String),
    Column("dispute_sequence", U64),
    Column("released", U64),
    Column("refunded", U64),
    Column("output_hash", String),
    Column("proof_kind", Integer),
    Column("settled_at", BigInteger),
    Column("settlement_signature", String),
    Column("settlement_sequence", U64, doc="number of the settlement or the last collection of an owed share"),
    Column("receiver_owed", Boolean, doc="true if the receiver is still owed its share"),
    Column("vault_owed", Boolean, doc="true if the paying wallet is still owed its share"),
    Index("escrows_newest", "org", "created_at", "escrow_id"),
    Index("escrows_by_status", "org", "status", "created_at", "escrow_id"),
    Index("escrows_by_wallet", "wallet_id", "created_at", "escrow_id"),
    Index("escrows_by_receiver", "to_wallet", "created_at", "escrow_id"),
    Index("escrows_by_wallet_status", "wallet_id", "status", "created_at", "escrow_id"),
    Index("escrows_by_receiver_status", "to_wallet", "status", "created_at", "escrow_id"),
    Index("escrows_by_transaction", "tx_id"),
    Index("escrows_due", "due_at"),
)

allowances = Table(
    "allowances",
    metadata,
    Column("allowance_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("address", String, nullable=False, unique=True),
    Column("wallet_id", String, nullable=False),
    Column("vault", String, nullable=False),
    Column("policy", String, nullable=False, doc="address of the policy that allowed it"),
    Column("policy_version", U64, doc="version of that policy; null while pending"),
    Column("recipient", String, nullable=False, doc="owner of the destination"),
    Column("destination", String, nullable=False, doc="token account that the delegate should pay"),
    Column("delegate", String, nullable=False),
    Column("tokens", String, nullable=False, doc="token account that the delegate pays from"),
    Column("payer", String, nullable=False, doc="gets the accounts' rent back"),
    Column("reference", String, nullable=False),
    Column("amount", U64, nullable=False),
    Column("counter", U64, nullable=False),
    Column("sequence", U64, doc="number of the vault's granting event; null while pending"),
    Column("status", String, nullable=False, doc="pending, outstanding or settled"),
    Column("expires_at", BigInteger, nullable=False, doc="Unix seconds"),
    Column("due_at", BigInteger, doc="time to settle it; null while pending and once settled"),
    Column("created_at", BigInteger, nullable=False),
    Column("tx_id", String, doc="the transaction that granted it"),
    Column("signature", String),
    Column("spent", U64),
    Column("returned", U64, doc="amount that the settlement moved back into the vault"),
    Column("settled_at", BigInteger, doc="Unix seconds"),
    Column("settlement_signature", String),
    Column("transfers", JSON, doc="signatures of the delegate's transfers; null until they are read"),
    Index("allowances_by_wallet", "wallet_id", "created_at", "allowance_id"),
    Index("allowances_by_wallet_status", "wallet_id", "status", "created_at", "allowance_id"),
    Index("allowances_by_transaction", "tx_id"),
    Index("allowances_due", "due_at"),
)
