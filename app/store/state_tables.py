"""Tables of state that is not on the chain and is never rebuilt.

Times are Unix milliseconds, addresses base58, hashes lower-case hex.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
    false,
    text,
)

from app.database.columns import SERIAL, U64, ActorText, metadata

organisations = Table(
    "organisations",
    metadata,
    Column("org", String, primary_key=True, doc="address of the Org account"),
    Column("org_id", String, nullable=False, unique=True),
    Column("name", String, nullable=False),
    Column("creator", String, nullable=False),
    Column("mint", String, nullable=False),
    Column("reserve", String, nullable=False, doc="token account of the reserve"),
    Column("created_at", BigInteger, nullable=False),
    Column("restricts_keys", Boolean, nullable=False, server_default=false(), doc="new keys need an end and addresses"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String, primary_key=True),
    Column("org", String, nullable=False, index=True),
    Column("role", String, nullable=False),
    Column("wallet_id", String, doc="the only wallet of an agent's key"),
    Column("name", String, nullable=False),
    Column("digest", String, nullable=False, unique=True, doc="HMAC of the key; the key itself is not kept"),
    Column("hint", String, nullable=False, doc="enough of the key to recognise it"),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("expires_at", BigInteger),
    Column("allowed_addresses", JSON(none_as_null=True), doc="networks in CIDR notation; null for any address"),
    Column("created_by", ActorText, doc="null only if the audit log no longer had it"),
    Column("replaces", String, doc="id of the key that was rotated to this one"),
)

wallet_details = Table(
    "wallet_details",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("vault", String, nullable=False, unique=True),
    Column("agent_id", String, nullable=False),
    Column("label", String, nullable=False),
    Column("tags", JSON, nullable=False, doc="as given, so that showing a wallet takes one query"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    UniqueConstraint("org", "agent_id"),
)

wallet_tags = Table(
    "wallet_tags",
    metadata,
    Column("wallet_id", String, ForeignKey("wallet_details.wallet_id", ondelete="CASCADE"), primary_key=True),
    Column("tag", String, primary_key=True),
)

policy_details = Table(
    "policy_details",
    metadata,
    Column("address", String, primary_key=True),
    Column("policy_id", String, nullable=False),
    Column("org", String, nullable=False),
    Column("name", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("x402_hosts", JSON, doc="hosts allowed for paid requests; null for the default"),
    UniqueConstraint("org", "policy_id"),
)

budget_details = Table(
    "budget_details",
    metadata,
    Column("address", String, primary_key=True),
    Column("budget_id", String, nullable=False),
    Column("org", String, nullable=False),
    Column("name", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("org", "budget_id"),
)

policy_edits = Table(
    "policy_edits",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("org", String, nullable=False),
    Column("policy_id", String, nullable=False),
    Column("version", U64, doc="policy version after the edit; null if no rule changed"),
    Column("changed_by", ActorText, nullable=False),
    Column("changes", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("policy_edits_by_policy", "org", "policy_id"),
)

allowlists = Table(
    "allowlists",
    metadata,
    Column("allowlist", String, primary_key=True, doc="address of one version of a policy's list"),
    Column("policy_id", String, nullable=False),
    Column("entries", JSON, nullable=False, doc="addresses and domains as given by the client"),
)

domains = Table(
    "domains",
    metadata,
    Column("domain_hash", String, primary_key=True),
    Column("domain", String, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("tx_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("wallet_id", String),
    Column("type", String, nullable=False),
    Column("status", String, nullable=False, doc="awaiting_signature, pending, confirmed, blocked or failed"),
    Column("recipient", String, doc="as given by the client: an address, a wallet or a domain"),
    Column("recipient_address", String),
    Column("amount", U64, nullable=False),
    Column("policy_id", String),
    Column("policy_triggered", Boolean, nullable=False),
    Column("memo", String),
    Column("actor", ActorText, doc="requesting actor, if the policy history or the audit log needs it"),
    Column("subject", String, doc="object of the request's entry in the audit log, if any"),
    Column("reference", LargeBinary),
    Column("signature", String, unique=True, doc="null if blocked, unsigned or sent by a third party"),
    Column("message_hash", String, unique=True, doc="hash of the signed message; stored events have it as well"),
    Column("instruction_index", Integer, doc="index of the instruction; the id comes from its event"),
    Column("inner_index", Integer, doc="index of that event among the inner instructions"),
    Column("raw", LargeBinary, doc="the transaction, stored before it is signed or sent"),
    Column("last_valid_block_height", BigInteger),
    Column("attestation_hash", String),
    Column("violation", JSON),
    Column("error", String),
    Column("stopped_by", String, doc="kind of the brake that overtook it; it is not resent"),
    Column("slot", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("nonce_account", String, doc="account with the nonce that replaces a blockhash"),
    Column("nonce", String),
    Column("refusals", Integer, doc="number of refusals that a blocked one stands for; null in older ones"),
    Index("attempts_by_status", "status", "created_at"),
    Index(
        *("attempts_unreported", "created_at"),
        sqlite_where=text("refusals IS NOT NULL AND ended_at IS NULL"),
        postgresql_where=text("refusals IS NOT NULL AND ended_at IS NULL"),
    ),
    Index("attempts_by_wallet", "wallet_id", "created_at"),
)

unsigned_transactions = Table(
    "unsigned_transactions",
    metadata,
    Column("tx_id", String, primary_key=True, doc="id of the attempt with this transaction"),
    Column("org", String, nullable=False),
    Column("message_hash", String, nullable=False, unique=True),
    Column("authority", String, nullable=False, doc="address that has to sign"),
    Column("accounts", JSON, nullable=False, doc="changed accounts as read at its creation, in base64 by address"),
    Column("expires_at", BigInteger, nullable=False),
)

brakes = Table(
    "brakes",
    metadata,
    Column("scope", String, primary_key=True, doc="a wallet's id, or the address of an Org account"),
    Column("kind", String, primary_key=True, doc="freeze, pause or session"),
    Column("node", String, primary_key=True, doc="node of its request, or that took it over; empty on SQLite"),
    Column("org", String, nullable=False),
    Column("actor", ActorText, nullable=False, doc="requesting actor"),
    Column("since", BigInteger, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("org", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("method", String, nullable=False),
    Column("path", String, nullable=False),
    Column("body_hash", String, nullable=False),
    Column("state", String, nullable=False, doc="running or done"),
    Column("status_code", Integer),
    Column("response", String),
    Column("tx_id", String),
    Column("sealed_for", String, doc="HMAC of the API key that seals a secret response"),
    Column("node", String, doc="node that runs the request; null if none, and on SQLite"),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    Column("scope", String, doc="wallet, viewer's API key or empty; null if from a version without scopes"),
    Column("kept_for", String, doc="wallet with the response in its quota; null if it cannot be reduced"),
    Column("kept_bytes", Integer, doc="size of such a response"),
    Column("reduced", String, doc="replaces the response once the quota is full; null if it is not to be replaced"),
    Index(
        *("idempotency_kept", "kept_for", "created_at", "kept_bytes"),
        sqlite_where=text("reduced IS NOT NULL"),
        postgresql_where=text("reduced IS NOT NULL"),
    ),
)

escrow_details = Table(
    "escrow_details",
    metadata,
    Column("escrow_id", String, primary_key=True),
    # The chain holds the hashes of these texts. A text is shown only if its hash matches.
    Column("task_description", String),
    Column("expected_output", String, doc="required hash of the output, in hex"),
    Column("output_hash", String, doc="hash of the output at output_url, in hex"),
    Column("output_url", String),
    Column("dispute_reason", String),
    Column("disputed_by", String, doc="id of the wallet that the dispute was raised for"),
)

setting_values = Table(
    "setting_values",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", String, nullable=False),
)

schema_versions = Table(
    "schema_versions",
    metadata,
    Column("revision", String, primary_key=True, doc="schema revision"),
    Column("oldest_code", String, nullable=False, doc="the oldest revision with code that works on it"),
)
