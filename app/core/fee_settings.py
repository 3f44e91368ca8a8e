"""Settings of the fee payer's SOL. `Settings` inherits them."""

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.core.money import parse_sol

OFF = "off"
"""The value of a setting that means no limit."""


class FeeSettings(BaseSettings):
    """The limits of the fee payer's SOL. On the embedded chain, a limit in SOL applies only if it is set."""

    model_config = SettingsConfigDict(
        env_prefix="AGENT_VAULT_", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    token_accounts_per_day: int = Field(default=20, ge=0)
    """Token accounts of recipients that the service opens and pays for, per wallet and UTC day."""
    sol_per_wallet_day: str = "0.5"
    """SOL that the transactions of a wallet may cost the fee payer in a UTC day: fees, and rent that does not return.
    Above this limit, payments, escrows and allowances are answered with 429. `off` for no limit, the default on the
    embedded chain."""
    sol_per_day: str = "20"
    """SOL that the transactions of all wallets of an organisation together may cost the fee payer in a UTC day. In
    all other respects, the limit works like `sol_per_wallet_day`."""
    sol_held_per_wallet: str = "0.5"
    """SOL that may be locked as rent in a wallet's open escrows and allowances. The rent returns when they are settled.
    `off` for no limit, the default on the embedded chain."""
    fee_payer_reserve: str = "0.05"
    """SOL of the fee payer that payments, escrows and allowances cannot use. It is kept for freezes and pauses."""

    @field_validator("sol_per_wallet_day", "sol_per_day", "sol_held_per_wallet", "fee_payer_reserve")
    @classmethod
    def _is_sol(cls, text: str) -> str:
        if text != OFF:
            parse_sol(text)
        return text

    def lamports(self, name: str) -> int | None:
        """Return the lamports of one of these settings, or None for no limit."""
        text = getattr(self, name)
        return None if text == OFF else parse_sol(text)
