"""Settings of the service. Each is an environment variable with the prefix ``AGENT_VAULT_``."""

from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.core.email_address import parse_address
from app.core.hosts import AllowedHosts, is_loopback
from app.core.money import parse_usdc
from app.core.paths import Paths

#: What a node may do; see `Settings.roles`.
ROLES = ("api", "indexer", "worker")


class Settings(BaseSettings):
    """The settings and their defaults. Durations are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="AGENT_VAULT_", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    data_dir: Path = Path("data")
    """Folder of the databases and keys; created when missing, readable by its owner only."""
    keys_dir: Path | None = None
    """Folder of the signing keys and the service's secret, if they are not in `keys` in the data folder. The service
    only reads it, so several nodes can share it. It is a copy of the folder `keys` that the first node made."""
    roles: str = "api,indexer,worker"
    """What this node does, separated by commas: `api` serves the API and the dashboard; `indexer` follows the chain,
    keeps the read models and raises alerts; `worker` runs the keeper and the housekeeping, sends webhooks and e-mails,
    and writes exports. Several nodes may have a role: what must be single, one of them does, and another goes on within
    ten seconds of its death. Each role needs a living node. On SQLite one process has all roles."""
    database_url: SecretStr | None = None
    """Address of a database on PostgreSQL 15 or newer for the service's state and its read models, such as
    `postgresql://vault@db.example.com:5432/vault`; by default they are in a file in the data folder. `agent-vault db
    upgrade` gives it the schema. Several nodes may serve on it, all with `rpc_url`. What the address leaves out is
    taken from the variables of libpq, such as `PGPASSWORD` and `PGSSLMODE`. The stored events of the chain are there,
    too; the keys stay in files."""
    database_listen_url: SecretStr | None = None
    """Address at which a node hears from the others that something is new; by default `database_url`. Name the server
    itself here if that leads to a pool of transactions, such as PgBouncer's, which passes no signals on. Without
    signals, what one node waits for from another takes up to a second longer."""
    database_prepare_threshold: int = Field(default=5, ge=0)
    """After how many executions of a statement on a connection PostgreSQL keeps it prepared; 0 for never."""
    host: str = "127.0.0.1"
    """Address that the API listens on."""
    port: int = 8402
    """Port of the API."""
    localnet_port: int = 8899
    """JSON-RPC port of the embedded chain; its WebSocket uses the next port."""
    localnet_hosts: str = ""
    """Host names, separated by commas, that requests to the embedded chain may name in `Host` and `Origin`, in addition
    to `localhost` and loopback addresses; for example `explorer.solana.com`, whose pages then read the chain."""
    rpc_url: str | None = None
    """JSON-RPC address of a cluster, or several of the same, separated by commas. Without it, the embedded chain runs.
    The node's genesis hash says which cluster it is; that determines the mint of USDC, the explorer links, the prefix
    of API keys and what only a local network allows. A data folder belongs to one chain, program and mint, and no
    command uses it with another. Of several nodes the service reads from the freshest that answers and sends to all; it
    believes that something does not exist only one that has seen what any has shown. A node of another chain is left
    out."""
    ws_url: str | None = None
    """WebSocket address of that cluster; by default the JSON-RPC address with ws and the next port, if it names one."""
    usdc_mint: str | None = None
    """Mint of USDC on that cluster; by default Circle's on mainnet and devnet. The embedded chain has its own."""
    program_id: str | None = None
    """Address of the program; by default the one in the IDL."""
    public_url: str | None = None
    """Address at which clients reach the service; the `docs` links of errors start with it. Requests that name another
    host than this one, or without it the one in `host`, or the machine itself are refused with `host_not_allowed`, so
    a proxy must pass on `Host`. `/healthz` and `/readyz` answer under any name."""
    explorer_url_1: str = "https://explorer.solana.com/tx/{signature}{cluster}"
    """First explorer link; `{signature}` and `{cluster}` (the query that selects the cluster) are replaced."""
    explorer_url_2: str = "https://solscan.io/tx/{signature}{cluster}"
    """Second explorer link."""
    operator_key: str | None = None
    """The operator's key: the path of a key file, or a PKCS#11 URI (RFC 7512), for a key that stays in a token, such as
    `pkcs11:token=vault;object=operator?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/vault.pin`.
    By default it is `keys/operator.json` in the data folder, made at the first start."""
    authority_key: str | None = None
    """The authority's key, likewise; by default `keys/authority.json`. Without that file, the service runs without the
    authority."""
    arbiter_key: str | None = None
    """The arbiter's key, likewise; by default `keys/arbiter.json`. Without that file, the service runs without the
    arbiter."""
    fee_payer_key: str | None = None
    """The fee payer's key, likewise; by default `keys/fee-payer.json`."""
    pkcs11_timeout: float = Field(default=5.0, gt=0)
    """How long a token may take to sign, or to open at the start; after that, the request is answered with 503
    `signer_unavailable`."""
    operator_daily_limit: str = "250000.00"
    """Most USDC that a new organisation's operator may move into vaults in 24 hours; bounds a leaked operator key."""
    attestation_delay: int = Field(default=0, ge=0)
    """Seconds until a recipient counts as registered, if a new organisation's operator registered it."""
    confirm_timeout: float = 5.0
    """How long a payment request waits for the confirmation after sending."""
    idempotency_wait: float = 10.0
    """How long a duplicate of a running request waits for the first answer."""
    recovery_interval: float = 2.0
    """Pause between two rounds of recovery, which looks at transactions whose outcome is unknown."""
    x402_timeout: float = Field(default=15.0, gt=0)
    """How long a resource that is paid for may take to answer a request."""
    x402_max_bytes: int = Field(default=65_536, gt=0)
    """Bytes of a paid resource's body that are read and answered; the rest is cut off."""
    x402_at_once: int = Field(default=16, gt=0)
    """Requests to paid resources that an organisation may have running on this node at the same time; each of several
    nodes counts its own."""
    keeper: bool = True
    """Whether this node runs the keeper, if it has the role `worker`: refunds, settlements of allowances, freezes of
    expired policies, top-ups. Of several nodes, one does at a time."""
    keeper_interval: float = Field(default=1.0, gt=0)
    """Pause between two rounds of the keeper."""
    max_waiting_payments: int = Field(default=64, ge=1)
    """Payments and escrow creations of one wallet that may wait to be sent on this node; more are answered with 429.
    Each of several nodes counts its own."""
    token_accounts_per_day: int = 20
    """Token accounts of recipients that the service pays for, per wallet and 24 hours."""
    allowances_per_day: int = Field(default=1000, ge=0)
    """Allowances that a wallet may be granted in 24 hours: the fee payer pays two transactions for each."""
    exports: bool = True
    """Whether this node writes the files of exports, if it has the role `worker`. Of the nodes on one data folder, one
    does at a time; all serve the files."""
    export_lifetime: int = Field(default=86_400, gt=0)
    """How long the file of an export is kept."""
    export_link_lifetime: int = Field(default=900, gt=0)
    """How long a link to the file of an export is valid."""
    max_body_bytes: int = Field(default=65_536, gt=0)
    """Largest request body in bytes. An allowlist of 1,000 addresses takes 48,000."""
    request_timeout: float = Field(default=15.0, gt=0)
    """Time in which a whole request must arrive."""
    shutdown_timeout: int = Field(default=15, ge=0)
    """How long running requests may take to finish when the service stops."""
    rate_limit: int = Field(default=100, ge=0)
    """Requests a second that each API key may make on average; 0 for no limit."""
    rate_limit_burst: int = Field(default=200, ge=1)
    """Requests that an API key may make at once, a multiple of `rate_limit`. With 100 and 200, any 2 seconds allow at
    most 200."""
    failed_authentications: int = Field(default=60, ge=0)
    """Requests a minute without a valid API key that each client address may make before it gets 429 instead of 401; it
    may begin five times as many sign-ins at the dashboard. 0 for no limit."""
    live_streams: int = Field(default=16, ge=1)
    """Connections for live events in the dashboard that one person may have open on a node; a browser needs one."""
    trusted_proxies: str = ""
    """Addresses and networks of the proxies in front of the service, separated by commas, such as `10.0.0.5,
    10.1.0.0/16`. Only in their requests `X-Forwarded-For` and `X-Forwarded-Proto` count; with none, never."""
    key_rotation_overlap: int = Field(default=0, ge=0)
    """How long a rotated API key works on, unless the rotation says otherwise."""
    event_retention_days: int = Field(default=90, ge=1)
    """Days for which events and undecided requests for approvals are kept."""
    audit_retention_days: int = Field(default=365, ge=0)
    """Days for which entries of the audit log are kept; 0 for ever. What is deleted leaves a checkpoint, from which the
    verification of the rest goes on."""
    request_log_size: int = Field(default=100_000, ge=0)
    """Requests of the last 24 hours that the request log keeps for each organisation, the newest ones; what exceeds it
    goes with the next housekeeping. 0 keeps none."""
    housekeeping_interval: float = Field(default=60.0, gt=0)
    """Pause between two rounds of housekeeping, which stores when keys were last used and deletes old events."""
    max_indexer_lag: int = Field(default=150, ge=0)
    """Slots by which the indexer may lag behind the chain before `/readyz` reports `not_ready`."""
    metrics_interval: float = Field(default=15.0, gt=0)
    """Pause between two readings of what `/metrics` shows of the chain and the database."""
    reconciliation: bool = True
    """Whether this node compares reserves, wallets and open escrows with the chain, if it has the role `indexer`."""
    reconciliation_interval: float = Field(default=300.0, gt=0)
    """Pause between two such comparisons."""
    webhooks: bool = True
    """Whether this node sends events to webhooks, if it has the role `worker`."""
    webhook_interval: float = Field(default=0.2, gt=0)
    """Pause between two rounds of webhook deliveries."""
    webhooks_at_once: int = Field(default=64, gt=0)
    """Webhooks that are called at the same time."""
    alerts: bool = True
    """Whether this node raises alerts, if it has the role `indexer`, and sends their e-mails, if it has the role
    `worker`."""
    alert_interval: float = Field(default=1.0, gt=0)
    """Pause between two rounds of alerts and of their e-mails."""
    alert_emails_per_hour: int = Field(default=100, ge=0)
    """E-mails an hour that one address gets from one organisation about one type of alert; more are not sent. 0 for no
    limit."""
    smtp_host: str | None = None
    """Mail server for the e-mails of alerts. Without it, none are sent."""
    smtp_port: int = Field(default=587, gt=0, lt=65_536)
    """Port of the mail server; usually 465 with `smtp_tls` = `tls`."""
    smtp_tls: Literal["none", "starttls", "tls"] = "starttls"
    """How the connection to the mail server is encrypted: not at all, after `STARTTLS`, or from the start. The
    certificate is checked against the system's authorities, or those in the file named by `SSL_CERT_FILE`."""
    smtp_username: str | None = None
    """User name for the mail server; needs `smtp_password` and an encrypted connection."""
    smtp_password: SecretStr | None = None
    """Password for the mail server."""
    smtp_from: str | None = None
    """Sender of the e-mails; required with `smtp_host`."""
    oidc_issuer: str | None = None
    """Issuer of the company's OpenID Connect provider, written as the provider writes it. With it, invited people may
    sign in to the dashboard there. Like the dashboard it needs https, except on this machine. Redirections are not
    followed; a private address is allowed. The certificate is checked against the system's authorities, or those in the
    file named by `SSL_CERT_FILE`. The redirect URI to register is the dashboard's address and `/openid/return`."""
    oidc_client_id: str | None = None
    """Client id of this service at that provider; required with `oidc_issuer`."""
    oidc_client_secret: SecretStr | None = None
    """Its client secret; required with `oidc_issuer`, unless `oidc_client_secret_file` names it."""
    oidc_client_secret_file: Path | None = None
    """File that holds the client secret, read at the start; spaces and line ends around it do not count."""
    oidc_name: str = Field(default="company sign-in", min_length=1, max_length=60)
    """What the dashboard calls it: the button says `Continue with` this name."""
    oidc_timeout: float = Field(default=5.0, gt=0)
    """How long the provider may take to answer a request."""
    domain_timeout: float = 3.0
    """Time in which a domain must resolve to its address."""
    key_cache_seconds: float = 1.0
    """How long a checked API key is cached. A key revoked by another process works at most this much longer."""

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
            raise ValueError("smtp_username and smtp_password must be set together")
        if self.smtp_username is not None and self.smtp_tls == "none":
            raise ValueError("smtp_username needs smtp_tls = starttls or tls")
        return self

    @model_validator(mode="after")
    def _company_sign_in_is_complete(self) -> "Settings":
        secrets = [one for one in (self.oidc_client_secret, self.oidc_client_secret_file) if one is not None]
        if self.oidc_issuer is None:
            if self.oidc_client_id is not None or secrets:
                raise ValueError("oidc_client_id and oidc_client_secret need oidc_issuer")
        elif not self.oidc_client_id or len(secrets) != 1:
            raise ValueError("oidc_issuer needs oidc_client_id and either oidc_client_secret or its file")
        return self

    @field_validator("data_dir", "keys_dir", mode="before")
    @classmethod
    def _is_a_folder(cls, folder: Any) -> Any:
        # As a path, nothing is the current folder.
        if folder == "":
            raise ValueError("must name a folder")
        return folder

    @field_validator("roles")
    @classmethod
    def _are_roles(cls, roles: str) -> str:
        given = [one.strip() for one in roles.split(",")]
        if unknown := sorted(set(given) - set(ROLES)):
            raise ValueError(f"{unknown[0] or 'nothing'} is none of {', '.join(ROLES)}")
        return roles

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, proxies: str) -> str:
        for one in filter(None, map(str.strip, proxies.split(","))):
            try:
                ip_network(one)
            except ValueError:
                raise ValueError(f"{one} is neither an address nor a network") from None
        return proxies

    @field_validator("rpc_url", "public_url", "oidc_issuer")
    @classmethod
    def _is_a_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        several = () if url is None else url.split(",") if info.field_name == "rpc_url" else (url,)
        for one in several:
            parts = urlsplit(one)
            # Reading the port checks it.
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                raise ValueError("must begin with http:// or https:// and name a host")
        return url

    @field_validator("oidc_issuer")
    @classmethod
    def _is_an_issuer(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                raise ValueError("must begin with https://, except on this machine")
            if parts.username is not None or "?" in url or "#" in url:
                raise ValueError("must have no user name, query or fragment")
        return url

    @field_validator("smtp_from")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        return None if address is None else parse_address(address)

    @field_validator("operator_daily_limit")
    @classmethod
    def _is_an_amount(cls, amount: str) -> str:
        parse_usdc(amount, allow_zero=True)
        return amount

    def has_role(self, role: str) -> bool:
        """Whether this node has a role."""
        return role in [one.strip() for one in self.roles.split(",")]

    def rpc_urls(self) -> list[str]:
        """Return the addresses of the chain's nodes; none with the embedded chain."""
        return [] if self.rpc_url is None else self.rpc_url.split(",")

    def paths(self) -> Paths:
        """Return where things lie on the disk."""
        return Paths(self.data_dir, self.keys_dir)

    def api_hosts(self) -> AllowedHosts:
        """Return the hosts that requests to the API may name."""
        return AllowedHosts([urlsplit(self.base_url()).hostname or ""])

    def chain_hosts(self) -> AllowedHosts:
        """Return the hosts that requests to the embedded chain may name."""
        return AllowedHosts(name for part in self.localnet_hosts.split(",") if (name := part.strip()))

    def base_url(self) -> str:
        """Return the address that clients use, without a trailing slash."""
        # A service that listens everywhere can at least be reached from its own machine.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - only compared
        place = f"[{host}]" if ":" in host else host
        return (self.public_url or f"http://{place}:{self.port}").rstrip("/")
