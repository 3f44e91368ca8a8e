"""Tables of people: how they sign in to the dashboard, and who invited them.

Secrets are stored as SHA-256 only, which suffices because each is too random to guess. Times are Unix milliseconds.
"""

from sqlalchemy import BigInteger, Column, Index, LargeBinary, String, Table

from app.database.columns import ActorText, metadata

people = Table(
    "people",
    metadata,
    Column("person_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("removed_at", BigInteger),
    Column("created_by", ActorText, doc="the inviter; null only if created by code older than this column"),
    Index("people_by_org", "org", "created_at"),
)

passkeys = Table(
    "passkeys",
    metadata,
    Column("credential_id", String, primary_key=True, doc="base64url"),
    Column("person_id", String, nullable=False, index=True),
    Column("public_key", LargeBinary, nullable=False),
    Column("sign_count", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_used_at", BigInteger),
)

identities = Table(
    "identities",
    metadata,
    Column("issuer", String, primary_key=True, doc="the OpenID Connect provider"),
    Column("subject", String, primary_key=True, doc="`sub`: the person's id there"),
    Column("person_id", String, nullable=False, index=True),
    Column("created_at", BigInteger, nullable=False),
    Column("last_used_at", BigInteger),
)

browser_sessions = Table(
    "browser_sessions",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("digest", String, nullable=False, unique=True, doc="digest of the cookie"),
    Column("org", String, nullable=False),
    Column("actor", ActorText, nullable=False, doc="a person; an admin key while there are no people"),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("stepped_up_at", BigInteger, doc="when the person last confirmed their identity"),
    Column("address", String, doc="the browser's IP address"),
    Column("user_agent", String, nullable=False),
    Index("browser_sessions_by_actor", "org", "actor", "created_at"),
)

challenges = Table(
    "challenges",
    metadata,
    Column("challenge", String, primary_key=True, doc="base64url"),
    Column("holder", String, nullable=False, doc="digest of the requesting browser's cookie"),
    Column("purpose", String, nullable=False, doc="register, join, sign_in or step_up"),
    Column("person_id", String, doc="owner of the passkey to register or use"),
    Column("expires_at", BigInteger, nullable=False, index=True),
)

openid_requests = Table(
    "openid_requests",
    metadata,
    Column("state", String, primary_key=True),
    Column("holder", String, nullable=False, doc="digest of the requesting browser's cookie"),
    Column("purpose", String, nullable=False, doc="sign_in, join or step_up"),
    Column("nonce", String, nullable=False),
    Column("person_id", String, doc="person to confirm"),
    Column("invitation", String, doc="digest of the joining person's token"),
    Column("name", String, doc="name of the joining person"),
    Column("started_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
)

invitations = Table(
    "invitations",
    metadata,
    Column("invitation_id", String, primary_key=True),
    Column("digest", String, nullable=False, unique=True, doc="digest of the token in the link"),
    Column("org", String, nullable=False, index=True),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_at", BigInteger),
    # Idempotency key of the request: a repeat after a crash renews the invitation that it created.
    Column("created_under", String),
    Column("invited_by", ActorText, doc="null only if created by code older than this column"),
)
