"""Settings of the service; each can be set by an environment variable with the prefix ``AGENT_VAULT_``."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.core.email_address import parse_address
from app.core.money import parse_usdc

Cluster = Literal["mainnet-beta", "devnet", "testnet", "localnet"]


class Settings(BaseSettings):
    """What can be configured, with the values that hold otherwise. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="AGENT_VAULT_", frozen=True, use_attribute_docstrings=True)

    data_dir: Path = Path("data")
    """Folder of the databases and keys; made on the first start, readable by its owner only."""
    host: str = "127.0.0.1"
    """Address that the API listens on."""
    port: int = 8402
    """Port of the API."""
    localnet_port: int = 8899
    """JSON-RPC port of the embedded chain; its WebSocket listens one above."""
    rpc_url: str | None = None
    """JSON-RPC address of a cluster; without one the embedded chain runs."""
    ws_url: str | None = None
    """WebSocket address of that cluster; by default the JSON-RPC address with ws and, on a port, one above."""
    usdc_mint: str | None = None
    """Mint of USDC on that cluster. The embedded chain has its own."""
    program_id: str | None = None
    """Address of the program; by default the one in the IDL."""
    cluster: Cluster = "localnet"
    """The chain: decides about the mint of USDC, explorer links and the prefix of API keys."""
    public_url: str | None = None
    """Address under which clients reach the service; the `docs` links of errors start with it."""
    explorer_url_1: str = "https://explorer.solana.com/tx/{signature}{cluster}"
    """First explorer link; `{signature}` and `{cluster}` (the query that chooses the cluster) are replaced."""
    explorer_url_2: str = "https://solscan.io/tx/{signature}{cluster}"
    """Second explorer link."""
    operator_daily_limit: str = "250000.00"
    """Most USDC that the operator of a new organisation moves into vaults in 24 hours: bounds a leaked operator key."""
    attestation_delay: int = Field(default=0, ge=0)
    """Seconds until a recipient that the operator of a new organisation registers counts as registered."""
    confirm_timeout: float = 5.0
    """How long a payment's request waits for its confirmation after sending."""
    idempotency_wait: float = 10.0
    """How long a duplicate of a running request waits for the first one's answer."""
    recovery_interval: float = 2.0
    """Pause between two looks at transactions whose outcome is unknown."""
    keeper: bool = True
    """Whether this node does what is due without being asked: refunds, freezes of expired policies, top-ups. Several
    may; one is enough."""
    keeper_interval: float = Field(default=1.0, gt=0)
    """Pause between two looks at what is due."""
    token_accounts_per_day: int = 20
    """Token accounts of recipients that the service pays for, a wallet and 24 hours."""
    export_lifetime: int = Field(default=86_400, gt=0)
    """Time for which the file of an export is kept, and a link to it is good."""
    export_link_lifetime: int = Field(default=900, gt=0)
    """Time for which one link to the file of an export is good."""
    max_body_bytes: int = Field(default=65_536, gt=0)
    """Largest request body in bytes. An allowlist of 1,000 addresses takes 48,000."""
    request_timeout: float = Field(default=15.0, gt=0)
    """Time in which a request must have arrived whole."""
    shutdown_timeout: int = Field(default=15, ge=0)
    """Time that running requests get to end when the service is told to stop."""
    rate_limit: int = Field(default=100, ge=0)
    """Requests a second that each API key may make on average; 0 for any number."""
    rate_limit_burst: int = Field(default=200, ge=1)
    """Requests that an API key may make at once, a multiple of `rate_limit`: with 100 and 200, any 2 seconds hold at
    most 200."""
    failed_authentications: int = Field(default=60, ge=0)
    """Requests a minute without a valid API key that are answered with 401 for each client address, further ones with
    429; 0 for any number."""
    key_rotation_overlap: int = Field(default=86_400, ge=0)
    """How long an API key works on after its rotation, unless the rotation says otherwise."""
    event_retention_days: int = Field(default=90, ge=1)
    """Days for which events are kept, and requests for approvals that nobody decided on."""
    housekeeping_interval: float = Field(default=60.0, gt=0)
    """Pause between two rounds of housekeeping: noting when keys were last used, deleting old events."""
    max_indexer_lag: int = Field(default=150, ge=0)
    """Slots by which the indexer may be behind the chain before `/readyz` says that the service is not ready."""
    webhooks: bool = True
    """Whether this node sends events to webhooks. One alone may: several would send everything several times."""
    webhook_interval: float = Field(default=0.2, gt=0)
    """Pause between two looks at the events and the deliveries that are due."""
    webhooks_at_once: int = Field(default=64, gt=0)
    """Webhooks that are sent to at the same time."""
    alerts: bool = True
    """Whether this node looks for alerts and sends their e-mails. One alone may: several would tell things twice."""
    alert_interval: float = Field(default=1.0, gt=0)
    """Pause between two looks at what is to be told, and at the e-mails that are due."""
    alert_emails_per_hour: int = Field(default=100, ge=0)
    """E-mails that one address gets within an hour from one organisation about one type of alert, further ones are left
    out; 0 for any number."""
    smtp_host: str | None = None
    """Mail server for the e-mails of alerts; without one there are none."""
    smtp_port: int = Field(default=587, gt=0, lt=65_536)
    """Port of the mail server; with `smtp_tls` of `tls` it is mostly 465."""
    smtp_tls: Literal["none", "starttls", "tls"] = "starttls"
    """How the connection to the mail server is encrypted: not at all, after `STARTTLS`, or from its beginning on. The
    certificate is checked by the system's authorities, or by those in the file that `SSL_CERT_FILE` names."""
    smtp_username: str | None = None
    """Name under which the service logs in to the mail server; needs `smtp_password` and an encrypted connection."""
    smtp_password: SecretStr | None = None
    """Password for the mail server."""
    smtp_from: str | None = None
    """Address that the e-mails come from; needed with `smtp_host`."""
    domain_timeout: float = 3.0
    """Time in which a domain has to name its address."""
    key_cache_seconds: float = 1.0
    """How long a checked API key is remembered; a revoked one works at most this much longer."""

    @model_validator(mode="after")
    def _burst_fits(self) -> "Settings":
        if self.rate_limit and self.rate_limit_burst % self.rate_limit:
            raise ValueError("rate_limit_burst must be a multiple of rate_limit")
        return self

    @model_validator(mode="after")
    def _mail_is_complete(self) -> "Settings":
        if self.smtp_host and self.smtp_from is None:
            raise ValueError("smtp_host needs smtp_from")
        if (self.smtp_username is None) != (self.smtp_password is None):
            raise ValueError("smtp_username and smtp_password need each other")
        if self.smtp_username is not None and self.smtp_tls == "none":
            raise ValueError("smtp_username needs smtp_tls of starttls or tls")
        return self

    @field_validator("smtp_from")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        return None if address is None else parse_address(address)

    @field_validator("operator_daily_limit")
    @classmethod
    def _is_an_amount(cls, amount: str) -> str:
        parse_usdc(amount, allow_zero=True)
        return amount

    def base_url(self) -> str:
        """Address that clients use, without a slash at its end."""
        # One that listens everywhere is reached at least from the machine itself.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - only compared
        place = f"[{host}]" if ":" in host else host
        return (self.public_url or f"http://{place}:{self.port}").rstrip("/")
