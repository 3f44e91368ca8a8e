"""Settings of the service. Each is an environment variable with the prefix ``AGENT_VAULT_``."""

from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from app.core.email_address import parse_address
from app.core.fee_settings import FeeSettings
from app.core.hosts import AllowedHosts, is_loopback
from app.core.money import parse_usdc
from app.core.paths import Paths

#: Roles of a node; see `Settings.roles`.
ROLES = ("api", "indexer", "worker")


class Settings(FeeSettings):
    """The settings and their defaults. Durations are in seconds unless the name states another unit."""

    data_dir: Path = Path("data")
    """Folder of the databases and keys. It is created if missing, and only its owner can read it."""
    keys_dir: Path | None = None
    """Folder of the signing keys and the service's secret, if they are not in `keys` in the data folder. The service
    only reads it, so several nodes can share it. Copy it from the folder `keys` that the first node created."""
    roles: str = "api,indexer,worker"
    """Roles of this node, separated by commas. `api` serves the API and the dashboard. `indexer` follows the chain,
    keeps the read models and raises alerts. `worker` runs the keeper and the housekeeping, sends webhooks and e-mails,
    and writes exports. Several nodes may have the same role. A job that must run only once runs on one of these nodes.
    If that node dies, another takes over within ten seconds. Each role needs at least one running node. On SQLite, one
    process has all roles."""
    database_url: SecretStr | None = None
    """Address of a database on PostgreSQL 15 or newer for the service's state, its read models and the stored events of
    the chain, such as `postgresql://vault@db.example.com:5432/vault`. By default, they are in files in the data folder.
    Signing keys are never in the database. Create the schema with `agent-vault db upgrade`. Several nodes may share
    the database if all of them have `rpc_url`. Parts that the address omits are taken from the variables of libpq, such
    as `PGPASSWORD` and `PGSSLMODE`."""
    database_listen_url: SecretStr | None = None
    """Address at which a node listens for signals of the other nodes; by default `database_url`. If that address leads
    to a transaction pooler such as PgBouncer, which does not forward signals, name the database server itself here.
    Without signals, a node that waits for another node may wait up to a second longer."""
    database_prepare_threshold: int = Field(default=5, ge=0)
    """PostgreSQL prepares a statement at this use by the same connection: 5 means at the fifth use, 0 means never."""
    host: str = "127.0.0.1"
    """Address that the API listens on."""
    port: int = 8402
    """Port of the API."""
    localnet_port: int = 8899
    """JSON-RPC port of the embedded chain; its WebSocket uses the next port."""
    localnet_hosts: str = ""
    """Host names, separated by commas, that requests to the embedded chain may name in `Host` and `Origin`, in addition
    to `localhost` and loopback addresses. With `explorer.solana.com`, for example, pages of that explorer can read the
    chain."""
    rpc_url: str | None = None
    """JSON-RPC address of a cluster, or several addresses of the same cluster, separated by commas. Without it, the
    embedded chain runs. The node's genesis hash identifies the cluster. The cluster determines the mint of USDC, the
    explorer links, the prefix of API keys and the features that are limited to local networks. A data folder belongs to
    one chain, program and mint. No command uses the folder with others. With several nodes, the service sends to all of
    them and reads from the freshest one that answers. It trusts "not found" only from a node that has reached the
    newest slot seen on any node. It ignores nodes of another chain."""
    ws_url: str | None = None
    """WebSocket address of the cluster in `rpc_url`. By default, it is derived from each JSON-RPC address: the scheme
    becomes ws, or wss for https, and a port becomes the next port."""
    usdc_mint: str | None = None
    """USDC mint on the cluster in `rpc_url`; by default Circle's on mainnet and devnet.

    The embedded chain has its own mint."""
    program_id: str | None = None
    """Address of the program; by default the one in the IDL."""
    public_url: str | None = None
    """Address at which clients reach the service. The `docs` links of errors start with it. The `Host` header of a
    request must name this address's host (by default, the host in `host`) or a loopback address. Any other request is
    refused with `host_not_allowed`, so a proxy must forward `Host`. `/healthz` and `/readyz` answer under any name."""
    explorer_url_1: str = "https://explorer.solana.com/tx/{signature}{cluster}"
    """First explorer link; `{signature}` and `{cluster}` (the query that selects the cluster) are replaced."""
    explorer_url_2: str = "https://solscan.io/tx/{signature}{cluster}"
    """Second explorer link."""
    operator_key: str | None = None
    """The operator's key: the path of a key file, or a PKCS#11 URI (RFC 7512) for a key that stays in a token, such as
    `pkcs11:token=vault;object=operator?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/vault.pin`.
    By default, it is `keys/operator.json` in the data folder, which the first start creates."""
    authority_key: str | None = None
    """The authority's key, in the same forms as `operator_key`; by default `keys/authority.json`. Without that file,
    the service runs without the authority."""
    arbiter_key: str | None = None
    """The arbiter's key, in the same forms as `operator_key`; by default `keys/arbiter.json`. The first start creates
    that file. If it is missing later, the service runs without the arbiter."""
    fee_payer_key: str | None = None
    """The fee payer's key, in the same forms as `operator_key`; by default `keys/fee-payer.json`."""
    pkcs11_timeout: float = Field(default=5.0, gt=0)
    """Time that a hardware token may take to sign, or to be opened at startup. If signing takes longer, the request is
    answered with 503 `signer_unavailable`."""
    operator_daily_limit: str = "250000.00"
    """Maximum USDC that a new organisation's operator may move into vaults in 24 hours. It limits the damage of a
    leaked operator key."""
    funding_without_step_up: str = "100.00"
    """Maximum USDC that a vault receives within 24 hours, in fundings and top-ups together, without a step-up of the
    person who funds it in the dashboard. API keys are unaffected."""
    attestation_delay: int = Field(default=0, ge=0)
    """Seconds before a recipient counts as registered after the operator of a new organisation registers it."""
    confirm_timeout: float = 5.0
    """Time that a request waits for the confirmation of its transaction after sending it."""
    idempotency_wait: float = 10.0
    """Time that a duplicate of a running request waits for the first response."""
    recovery_interval: float = 2.0
    """Pause between two rounds of recovery, which finds the outcome of pending transactions, and between two rounds
    of watching issued payments."""
    x402_timeout: float = Field(default=15.0, gt=0)
    """Time that a paid resource may take to answer a request."""
    x402_max_bytes: int = Field(default=65_536, gt=0)
    """Maximum number of bytes of a paid resource's body that are read and returned. The rest is cut off."""
    x402_kept_bytes: int = Field(default=10_000_000, ge=0)
    """Bytes of paid responses that are stored for replays, for each wallet. Above this number, the oldest are deleted.
    """
    x402_at_once: int = Field(default=32, gt=0)
    """Requests to paid resources that an organisation may run on this node at the same time. The last quarter is for
    wallets without a running request. Each node counts only its own requests."""
    keeper: bool = True
    """True to run the keeper on this node, if it has the role `worker`. The keeper refunds escrows, settles allowances,
    freezes wallets with expired policies and makes top-ups. With several nodes, it runs on one at a time."""
    keeper_interval: float = Field(default=1.0, gt=0)
    """Pause between two rounds of the keeper."""
    max_waiting_payments: int = Field(default=64, ge=1)
    """Payments of one wallet that may wait to be sent on this node. The same limit applies separately to its escrow
    creations and to its grants of allowances. Further requests are answered with 429. Each node counts its own."""
    allowances_per_day: int = Field(default=1000, ge=0)
    """Allowances that a wallet may be granted in 24 hours. The fee payer pays two transactions for each."""
    exports: bool = True
    """True to write export files on this node, if it has the role `worker`. Of the nodes that share data, one writes at
    a time, and all serve the files."""
    export_lifetime: int = Field(default=86_400, gt=0)
    """Time that the file of an export is kept."""
    export_link_lifetime: int = Field(default=900, gt=0)
    """Time that a link to the file of an export is valid."""
    max_body_bytes: int = Field(default=65_536, gt=0)
    """Largest request body in bytes. An allowlist of 1,000 addresses takes 48,000."""
    request_timeout: float = Field(default=15.0, gt=0)
    """Time that the head of a request may take to arrive, and the same time again for the request's body."""
    shutdown_timeout: int = Field(default=15, ge=0)
    """Time that running requests have to finish when the service stops."""
    rate_limit: int = Field(default=100, ge=0)
    """Requests of weight 1 a second that each API key may make on average; 0 for no limit. The weight of a request
    depends on the rows that it reads and the bytes that it sends; a payment has the weight 1."""
    rate_limit_burst: int = Field(default=200, ge=1)
    """Sum of the weights of the requests that an API key may make in a burst; a multiple of `rate_limit`. The burst
    refills evenly at `rate_limit` a second. Freezes, pauses and withdrawals of transactions are counted separately,
    with the same limits."""
    failed_authentications: int = Field(default=60, ge=0)
    """Requests a minute without a valid API key that each client address may make before it gets 429 instead of 401. An
    address may begin five times this number of sign-ins at the dashboard. An IPv6 network of size /64 counts as one
    address. 0 for no limit."""
    live_streams: int = Field(default=16, ge=1)
    """Connections for live events in the dashboard that one person may have open on a node. A browser needs one."""
    trusted_proxies: str = ""
    """Addresses and networks of the proxies in front of the service, separated by commas, such as `10.0.0.5,
    10.1.0.0/16`. Only requests from these proxies may set `X-Forwarded-For` and `X-Forwarded-Proto`; the service
    ignores their values in all other requests."""
    key_rotation_overlap: int = Field(default=0, ge=0)
    """Time that a rotated API key continues to work, unless the rotation sets another."""
    event_retention_days: int = Field(default=90, ge=1)
    """Days that events and undecided requests for approvals are kept."""
    audit_retention_days: int = Field(default=365, ge=0)
    """Days that entries of the audit log are kept; 0 for ever.

    Deleted entries leave a checkpoint, from which the verification of the remaining entries continues."""
    request_log_size: int = Field(default=50_000, ge=0)
    """Requests of the last 24 hours that the request log keeps for each organisation. Housekeeping deletes the oldest
    ones above this number. 0 keeps none."""
    housekeeping_interval: float = Field(default=60.0, gt=0)
    """Pause between two rounds of housekeeping, which stores when keys were last used and deletes old events."""
    max_indexer_lag: int = Field(default=150, ge=0)
    """Slots that the indexer may lag behind the chain before `/readyz` reports `not_ready`."""
    disk_reserve: int = Field(default=100_000_000, ge=0)
    """Bytes that must be free on the disk of the data folder. With less, `/readyz` reports `not_ready`."""
    metrics_interval: float = Field(default=15.0, gt=0)
    """Pause between two readings of the values of the chain and the database in `/metrics`."""
    reconciliation: bool = True
    """True to compare reserves, wallets and open escrows with the chain on this node, if it has the role `indexer`."""
    reconciliation_interval: float = Field(default=300.0, gt=0)
    """Pause between two comparisons of the service with the chain."""
    webhooks: bool = True
    """True to send events to webhooks from this node, if it has the role `worker`."""
    webhook_interval: float = Field(default=0.2, gt=0)
    """Pause between two rounds of webhook deliveries."""
    webhooks_at_once: int = Field(default=64, gt=0)
    """Maximum number of webhooks that this node calls at the same time. The last quarter of this number is for
    organisations without a running call."""
    alerts: bool = True
    """True to raise alerts on this node, if it has the role `indexer`, and to send their e-mails, if it has the role
    `worker`."""
    alert_interval: float = Field(default=1.0, gt=0)
    """Pause between two rounds of alerts and of their e-mails."""
    alert_emails_per_hour: int = Field(default=100, ge=0)
    """E-mails an hour that one address gets from one organisation about one type of event. A wallet causes at most
    a quarter of them. Further e-mails are not sent; a summary states their number. 0 for no limit."""
    smtp_host: str | None = None
    """Mail server for the e-mails of alerts. Without a mail server, no e-mails are sent."""
    smtp_port: int = Field(default=587, gt=0, lt=65_536)
    """Port of the mail server; usually 465 with `smtp_tls` = `tls`."""
    smtp_tls: Literal["none", "starttls", "tls"] = "starttls"
    """Encryption of the connection to the mail server: none, after `STARTTLS`, or from the start. The certificate is
    checked against the system's authorities, or those in the file named by `SSL_CERT_FILE`."""
    smtp_username: str | None = None
    """User name for the mail server; requires `smtp_password` and an encrypted connection."""
    smtp_password: SecretStr | None = None
    """Password for the mail server."""
    smtp_from: str | None = None
    """Sender of the e-mails; required with `smtp_host`."""
    oidc_issuer: str | None = None
    """Issuer of the company's OpenID Connect provider, written exactly as the provider writes it. With this setting,
    invited people may sign in to the dashboard through the provider. Like the dashboard, the provider needs https,
    except on this machine. The service follows none of its redirects. It may have a private address. The certificate is
    checked against the system's authorities, or those in the file named by `SSL_CERT_FILE`. Register the dashboard's
    address followed by `/openid/return` as the redirect URI."""
    oidc_client_id: str | None = None
    """Client id of this service at the OpenID Connect provider; required with `oidc_issuer`."""
    oidc_client_secret: SecretStr | None = None
    """Client secret at the provider; required with `oidc_issuer`, unless the secret is in `oidc_client_secret_file`."""
    oidc_client_secret_file: Path | None = None
    """File with the client secret, read at the start. Spaces and line ends around the secret are ignored."""
    oidc_name: str = Field(default="company sign-in", min_length=1, max_length=60)
    """Name of the provider in the dashboard. The button says `Continue with` followed by this name."""
    oidc_timeout: float = Field(default=5.0, gt=0)
    """Time that the provider may take to answer a request."""
    domain_timeout: float = 3.0
    """Time that a domain may take to resolve to its address."""
    key_cache_seconds: float = 1.0
    """Time that a checked API key is cached. A key revoked by another process keeps working at most this much
    longer."""

    @model_validator(mode="after")
    def _burst_fits(self) -> "Settings":
        if self.rate_limit and self.rate_limit_burst % self.rate_limit:
            raise ValueError("rate_limit_burst must be a multiple of rate_limit")
        return self

    @model_validator(mode="after")
    def _mail_is_complete(self) -> "Settings":
        if self.smtp_host and self.smtp_from is None:
            raise ValueError("smtp_host requires smtp_from")
        if (self.smtp_username is None) != (self.smtp_password is None):
            raise ValueError("smtp_username and smtp_password must be set together")
        if self.smtp_username is not None and self.smtp_tls == "none":
            raise ValueError("smtp_username requires smtp_tls = starttls or tls")
        return self

    @model_validator(mode="after")
    def _company_sign_in_is_complete(self) -> "Settings":
        secrets = [one for one in (self.oidc_client_secret, self.oidc_client_secret_file) if one is not None]
        if self.oidc_issuer is None:
            if self.oidc_client_id is not None or secrets:
                raise ValueError("oidc_client_id and oidc_client_secret require oidc_issuer")
        elif not self.oidc_client_id or len(secrets) != 1:
            raise ValueError("oidc_issuer requires oidc_client_id and either oidc_client_secret or its file")
        return self

    @field_validator("data_dir", "keys_dir", mode="before")
    @classmethod
    def _is_a_folder(cls, folder: Any) -> Any:
        # Refuse an empty path, because it would mean the current folder.
        if folder == "":
            raise ValueError("must name a folder")
        return folder

    @field_validator("roles")
    @classmethod
    def _are_roles(cls, roles: str) -> str:
        given = [one.strip() for one in roles.split(",")]
        if unknown := sorted(set(given) - set(ROLES)):
            raise ValueError(f"{unknown[0] or 'nothing'} is not a role; the roles are {', '.join(ROLES)}")
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
            # Reading the port validates it.
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                raise ValueError("must begin with http:// or https:// and name a host")
        return url

    @field_validator("oidc_issuer")
    @classmethod
    def _is_an_issuer(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                raise ValueError("must begin with https://, unless its host is this machine")
            if parts.username is not None or "?" in url or "#" in url:
                raise ValueError("must have no user name, query or fragment")
        return url

    @field_validator("smtp_from")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        return None if address is None else parse_address(address)

    @field_validator("operator_daily_limit", "funding_without_step_up")
    @classmethod
    def _is_an_amount(cls, amount: str) -> str:
        parse_usdc(amount, allow_zero=True)
        return amount

    def has_role(self, role: str) -> bool:
        """Return True if this node has the role."""
        return role in [one.strip() for one in self.roles.split(",")]

    def rpc_urls(self) -> list[str]:
        """Return the addresses of the chain's nodes; an empty list with the embedded chain."""
        return [] if self.rpc_url is None else self.rpc_url.split(",")

    def paths(self) -> Paths:
        """Return the paths of the service's files and folders."""
        return Paths(self.data_dir, self.keys_dir)

    def api_hosts(self) -> AllowedHosts:
        """Return the hosts that requests to the API may name."""
        return AllowedHosts([urlsplit(self.base_url()).hostname or ""])

    def chain_hosts(self) -> AllowedHosts:
        """Return the hosts that requests to the embedded chain may name."""
        return AllowedHosts(name for part in self.localnet_hosts.split(",") if (name := part.strip()))

    def base_url(self) -> str:
        """Return the address that clients use, without a trailing slash."""
        # If the service listens on all addresses, use the loopback address, which works at least on its own machine.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - only compared
        place = f"[{host}]" if ":" in host else host
        return (self.public_url or f"http://{place}:{self.port}").rstrip("/")
