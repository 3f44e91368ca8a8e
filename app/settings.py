"""Settings of the service; each can be set by an environment variable with the prefix ``AGENT_VAULT_``."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.money import parse_usdc

Cluster = Literal["mainnet-beta", "devnet", "testnet", "localnet"]


class Settings(BaseSettings):
    """What can be configured, with the values that hold otherwise. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="AGENT_VAULT_", frozen=True)

    #: Folder of the databases and keys; made on the first start, readable by its owner only.
    data_dir: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = 8402
    #: JSON-RPC port of the embedded chain; its WebSocket listens one above.
    localnet_port: int = 8899
    #: JSON-RPC address of a cluster; without one the embedded chain runs.
    rpc_url: str | None = None
    #: WebSocket address of that cluster; by default the JSON-RPC address with ws and, on a port, one above.
    ws_url: str | None = None
    #: Mint of USDC on that cluster. The embedded chain has its own.
    usdc_mint: str | None = None
    #: Address of the program; by default the one in the IDL.
    program_id: str | None = None
    cluster: Cluster = "localnet"
    #: Address under which clients reach the service; the `docs` links of errors start with it.
    public_url: str | None = None
    #: Explorer links; ``{signature}`` and ``{cluster}`` (the query that chooses the cluster) are replaced.
    explorer_url_1: str = "https://explorer.solana.com/tx/{signature}{cluster}"
    explorer_url_2: str = "https://solscan.io/tx/{signature}{cluster}"
    #: Most USDC that the operator of a new organisation moves into vaults in 24 hours: bounds a leaked operator key.
    operator_daily_limit: str = "250000.00"
    #: Seconds until a recipient that the operator of a new organisation registers counts as registered.
    attestation_delay: int = Field(default=0, ge=0)
    #: How long a payment's request waits for its confirmation after sending.
    confirm_timeout: float = 5.0
    #: How long a duplicate of a running request waits for the first one's answer.
    idempotency_wait: float = 10.0
    #: Pause between two looks at transactions whose outcome is unknown.
    settlement_interval: float = 2.0
    #: Token accounts of recipients that the service pays for, a wallet and 24 hours.
    token_accounts_per_day: int = 20
    #: Largest request body in bytes.
    max_body_bytes: int = 524_288
    #: Time in which a domain has to name its address.
    domain_timeout: float = 3.0
    #: How long a checked API key is remembered; a revoked one works at most this much longer.
    key_cache_seconds: float = 1.0
    #: How long payments reuse what they read of a wallet.
    wallet_cache_seconds: float = 1.0

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
