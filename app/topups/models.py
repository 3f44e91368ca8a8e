"""Request and response bodies of the auto-topup rule."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from app.api.fields import Amount, Body, IdempotencyKey, Limit, ReadFrom, ResponseBody, Time, Usdc, WalletId
from app.store.topups import MAX_AMOUNT


def _storable(value: int) -> int:
    if value > MAX_AMOUNT:
        raise PydanticCustomError("invalid_amount", "the amount is too large")
    return value


class PutTopupRule(Body):
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
    trigger_below: Annotated[Limit, AfterValidator(_storable)] | None = None
    topup_amount: Annotated[Amount, AfterValidator(_storable)] | None = None
    idempotency_key: IdempotencyKey | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> "PutTopupRule":
        if self.enabled and (self.trigger_below is None or self.topup_amount is None):
            raise PydanticCustomError("incomplete_rule", "an enabled rule needs triggerBelow and topupAmount")
        return self


class TopupRule(ResponseBody):
    """A wallet's auto-topup rule. An amount that is not set is null."""

    wallet_id: WalletId
    id: Annotated[WalletId, ReadFrom("wallet_id")]
    enabled: bool
    trigger_below: Usdc | None
    topup_amount: Usdc | None
    updated_at: Time | None
