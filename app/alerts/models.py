"""Requests and responses of alert rules."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.fields import Amount, Body, IdempotencyKey, ResponseBody, Time, Usdc, WalletId
from app.core.email_address import parse_address
from app.store.alerts import MAX_THRESHOLD

MAX_EMAILS = 10
"""Maximum number of addresses per type of alert."""
_MAX_HOURS = 365 * 24
_MAX_PER_HOUR = 1_000_000


def _address(value: str) -> str:
    try:
        return parse_address(value)
    except ValueError:
        raise PydanticCustomError("email", "must be an e-mail address such as ops@example.com") from None


def _once(addresses: list[str]) -> list[str]:
    return list(dict.fromkeys(addresses))


def _storable(value: int) -> int:
    if value > MAX_THRESHOLD:
        raise PydanticCustomError("invalid_amount", "is too large")
    return value


Address = Annotated[
    str,
    StringConstraints(min_length=3, max_length=254),
    AfterValidator(_address),
    WithJsonSchema({"type": "string", "format": "email", "maxLength": 254, "examples": ["ops@example.com"]}),
]
Addresses = Annotated[list[Address], Field(max_length=MAX_EMAILS), AfterValidator(_once)]
Money = Annotated[Amount, AfterValidator(_storable)]


class _PutAlert(Body):
    emails: Addresses | None = None


class PutMoneyAlert(_PutAlert):
    """An alert with an amount as its threshold. A null threshold turns it off."""

    threshold: Money | None


class PutLargeAlert(PutMoneyAlert):
    """An alert about a large payment or escrow. With `freeze`, it freezes the wallet. A null threshold turns it off."""

    freeze: bool = False


class PutInactivityAlert(_PutAlert):
    """An alert after `threshold` hours without a transaction. A null threshold turns it off."""

    threshold: Annotated[int, Field(ge=1, le=_MAX_HOURS)] | None


class PutVelocityAlert(_PutAlert):
    """An alert above `threshold` payments, escrows and grants of allowances within an hour.

    A null threshold turns it off.
    """

    threshold: Annotated[int, Field(ge=1, le=_MAX_PER_HOUR)] | None


class PutViolationAlert(_PutAlert):
    """E-mails about payments, escrows and allowances refused by a policy or budget.

    The event `transaction.blocked` is sent to webhooks and listed in either case.
    """

    enabled: bool


class PutAlerts(Body):
    """Body of alert rules. They replace all earlier rules of the organisation, or of the wallet."""

    balance_low: PutMoneyAlert | None = None
    policy_violation: PutViolationAlert | None = None
    inactivity: PutInactivityAlert | None = None
    velocity_spike: PutVelocityAlert | None = None
    large_transaction: PutLargeAlert | None = None
    idempotency_key: IdempotencyKey | None = None


class _Alert(ResponseBody):
    emails: list[str]
    inherited: bool


class MoneyAlert(_Alert):
    """An alert with an amount as its threshold. The threshold is null if the alert is off."""

    threshold: Usdc | None


class LargeAlert(MoneyAlert):
    """The alert about a large payment or escrow. `freeze` is true if it freezes the wallet."""

    freeze: bool


class CountAlert(_Alert):
    """An alert with hours, or transactions per hour, as its threshold. The threshold is null if the alert is off."""

    threshold: int | None


class ViolationAlert(_Alert):
    """The alert about refused payments, escrows and allowances. `enabled` is true if it sends e-mails to `emails`."""

    enabled: bool


class Alerts(ResponseBody):
    """The alerts of wallets without their own. `inherited` is true for types without a rule of the organisation."""

    balance_low: MoneyAlert
    policy_violation: ViolationAlert
    inactivity: CountAlert
    velocity_spike: CountAlert
    large_transaction: LargeAlert
    updated_at: Time | None


class WalletAlerts(Alerts):
    """The alerts that apply to a wallet. `inherited` is true for types without a rule of the wallet."""

    wallet_id: WalletId
    id: WalletId
