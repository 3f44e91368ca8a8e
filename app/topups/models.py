"""Request and response bodies of the auto-topup rule."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from app.api.fields import Amount, ChangeBody, Limit, ReadFrom, ResponseBody, Time, Usdc, WalletId, example
from app.store.topups import MAX_AMOUNT


def _storable(value: int) -> int:
    if value > MAX_AMOUNT:
        raise PydanticCustomError("invalid_amount", "the amount is too large")
    return value


class PutTopupRule(ChangeBody):
    """Body of the auto-topup rule. An enabled rule needs both amounts."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"enabled": {"const": True}}},
            "then": {
                "required": ["triggerBelow", "topupAmount"],
                "properties": {"triggerBelow": {"type": "string"}, "topupAmount": {"type": "string"}},
            },
        }
    )

    enabled: bool
    """True to put the rule in force, false to disable it."""
    trigger_below: Annotated[Annotated[Limit, AfterValidator(_storable)] | None, example("10.00")] = None
    """The balance below which the wallet is topped up. An enabled rule needs it."""
    topup_amount: Annotated[Annotated[Amount, AfterValidator(_storable)] | None, example("50.00")] = None
    """The amount of each top-up. An enabled rule needs it."""

    @model_validator(mode="after")
    def _is_complete(self) -> "PutTopupRule":
        if self.enabled and (self.trigger_below is None or self.topup_amount is None):
            raise PydanticCustomError("incomplete_rule", "an enabled rule needs triggerBelow and topupAmount")
        return self


class TopupRule(ResponseBody):
    """A wallet's auto-topup rule. An amount that is not set is null."""

    wallet_id: WalletId
    """The wallet of the rule."""
    id: Annotated[WalletId, ReadFrom("wallet_id")]
    """The wallet of the rule."""
    enabled: bool
    """True if the keeper applies the rule."""
    trigger_below: Usdc | None
    """The balance below which the keeper tops up the wallet."""
    topup_amount: Usdc | None
    """The amount of each top-up."""
    updated_at: Time | None
    """The time of the last change."""
