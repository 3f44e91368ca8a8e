"""Tables of state that is not on the chain and is never rebuilt.

Times are Unix milliseconds, addresses base58, hashes lower-case hex.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    String,
    Table,
    UniqueConstraint,
)

from app.database.columns import SERIAL, U64, ActorText, metadata

wallet_details = Table(
    "wallet_details",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("vault", String, nullable=False, unique=True),
    Column("agent_id", String, nullable=False),
    Column("label", String, nullable=False),
    Column("tags", JSON, nullable=False, doc="the tags as given, so that showing a wallet takes one query"),
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
    Column("oldest_code", String, nullable=False, doc="the oldest revision whose code can use this schema"),
)
