"""Requests and responses of alert rules."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.fields import Amount, Body, ChangeBody, ResponseBody, Time, Usdc, WalletId, example
from app.core.email_address import parse_address
from app.store.alerts import MAX_THRESHOLD

MAX_EMAILS = 10
"""Maximum number of addresses per type of alert."""
_MAX_HOURS = 365 * 24
_MAX_PER_HOUR = 1_000_000
_MAX_MINUTES = 24 * 60


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
    """The e-mail addresses for the alert, at most 10. If omitted, a wallet's rule uses the organisation's addresses."""


class PutMoneyAlert(_PutAlert):
    """An alert with an amount of USDC as its threshold. A null threshold turns the alert off."""

    threshold: Money | None
    """The amount in USDC. Null turns the alert off."""


class PutLargeAlert(PutMoneyAlert):
    """An alert about a large payment or escrow. With `freeze`, it freezes the wallet. A null threshold turns it off."""

    freeze: bool = False
    """True to freeze the wallet when a payment or escrow exceeds the threshold."""


class PutInactivityAlert(_PutAlert):
    """An alert after `threshold` hours without a transaction. A null threshold turns it off."""

    threshold: Annotated[Annotated[int, Field(ge=1, le=_MAX_HOURS)] | None, example(24)]
    """The number of hours, 1 to 8,760. Null turns the alert off."""


class PutVelocityAlert(_PutAlert):
    """An alert when payments, escrows and allowance grants within an hour exceed `threshold` in total.

    A null threshold turns it off.
    """

    threshold: Annotated[Annotated[int, Field(ge=1, le=_MAX_PER_HOUR)] | None, example(24)]
    """The number of payments, escrows and grants of allowances within an hour, 1 to 1,000,000. Null turns the alert
    off.
    """


class PutViolationAlert(_PutAlert):
    """E-mails about payments, escrows and allowances that a policy or budget refuses.

    The event `transaction.blocked` is sent to webhooks and listed even if `enabled` is false.
    """

    enabled: bool
    """True to send e-mails. The event `transaction.blocked` is created even if this is false."""


class PutSolAlert(PutViolationAlert):
    """E-mails when a wallet or the organisation has used 80 % of its daily SOL.

    The event `alert.sol_limit` is sent to webhooks and listed even if `enabled` is false.
    """

    enabled: bool
    """True to send e-mails. The event `alert.sol_limit` is created even if this is false."""


class PutRefusalsAlert(_PutAlert):
    """An alert at `threshold` refusals within `minutes`. With `freeze`, it freezes the wallet.

    A null threshold turns it off.
    """

    threshold: Annotated[Annotated[int, Field(ge=1, le=_MAX_PER_HOUR)] | None, example(24)]
    """The number of refusals, 1 to 1,000,000. Null turns the alert off."""
    minutes: Annotated[Annotated[int, Field(ge=1, le=_MAX_MINUTES)], example(60)] = 60
    """The length of the counted period in minutes, 1 to 1,440."""
    freeze: bool = False
    """True to freeze the wallet when it reaches the threshold."""


class PutPayeesAlert(_PutAlert):
    """An alert when a wallet pays `threshold` new payees within 24 hours.

    A payee is new if the wallet never paid it before. With `freeze`, it freezes the wallet. A null threshold turns it
    off.
    """

    threshold: Annotated[Annotated[int, Field(ge=1, le=_MAX_PER_HOUR)] | None, example(24)]
    """The number of new payees, 1 to 1,000,000. Null turns the alert off."""
    freeze: bool = False
    """True to freeze the wallet when it reaches the threshold."""


class PutSecurityAlert(PutViolationAlert):
    """E-mails about API keys, people and repeated brakes. The events are created even if `enabled` is false."""

    enabled: bool
    """True to send e-mails. The events are created even if this is false."""


class PutNoticeAlert(PutViolationAlert):
    """E-mails about approvals, refused payments, used-up limits, pauses or webhooks.

    The events are created even if `enabled` is false.
    """

    enabled: bool
    """True to send e-mails. The events are created even if this is false."""


class PutAlerts(ChangeBody):
    """Body of alert rules. They replace all earlier rules of the organisation, or of the wallet."""

    balance_low: Annotated[PutMoneyAlert | None, example({"threshold": "10.00", "emails": ["ops@example.com"]})] = None
    """The alert for a balance below the threshold. If omitted or null, the organisation's alert is off, and a wallet
    inherits the organisation's alert.
    """
    policy_violation: PutViolationAlert | None = None
    """The e-mails about refused payments, escrows and allowances."""
    inactivity: PutInactivityAlert | None = None
    """The alert for a wallet without a transaction for `threshold` hours."""
    velocity_spike: PutVelocityAlert | None = None
    """The alert for more than `threshold` payments, escrows and grants of allowances within an hour."""
    large_transaction: PutLargeAlert | None = None
    """The alert for a payment or an escrow above the threshold."""
    sol_limit: PutSolAlert | None = None
    """The e-mails when 80 % of a daily limit in SOL is used."""
    refusals: PutRefusalsAlert | None = None
    """The alert at `threshold` refusals within `minutes`."""
    new_payees: PutPayeesAlert | None = None
    """The alert when a wallet pays `threshold` payees within 24 hours that it never paid before."""
    security: PutSecurityAlert | None = None
    """The e-mails about API keys, people and repeated brakes."""
    approvals: PutNoticeAlert | None = None
    """The e-mails about requested, decided and expired approvals."""
    stopped_payments: PutNoticeAlert | None = None
    """The e-mails about payments refused by a frozen, paused or empty wallet."""
    spending_limit: PutNoticeAlert | None = None
    """The e-mails sent when 80 % of a limit of a budget, or of a wallet's monthly limit, is used."""
    pauses: PutNoticeAlert | None = None
    """The e-mails about pauses of the organisation and their end."""
    webhooks: PutNoticeAlert | None = None
    """The e-mails about degraded webhooks."""


class _Alert(ResponseBody):
    emails: Annotated[list[str], example(["ops@example.com"])]
    """The addresses that get an e-mail."""
    inherited: bool
    """True if the rule is inherited: by a wallet from the organisation, or by the organisation from the defaults."""


class MoneyAlert(_Alert):
    """An alert with an amount of USDC as its threshold. The threshold is null if the alert is off."""

    threshold: Usdc | None
    """The amount in USDC. Null if the alert is off."""


class LargeAlert(MoneyAlert):
    """The alert about a large payment or escrow. `freeze` is true if it freezes the wallet."""

    freeze: bool
    """True if the alert freezes the wallet."""


class CountAlert(_Alert):
    """An alert with a number of hours or payments as its threshold. The threshold is null if the alert is off."""

    threshold: Annotated[int | None, example(24)]
    """The number of hours, or of payments, escrows and grants of allowances within an hour. Null if the alert is off.
    """


class ViolationAlert(_Alert):
    """The alert about refused payments, escrows and allowances. `enabled` is true if it sends e-mails to `emails`."""

    enabled: bool
    """True if e-mails are sent to `emails`."""


class SolAlert(ViolationAlert):
    """The alert about the daily limits in SOL. `enabled` is true if it sends e-mails to `emails`."""


class PayeesAlert(CountAlert):
    """The alert about new payees. `freeze` is true if it freezes the wallet."""

    threshold: Annotated[int | None, example(24)]
    """The number of new payees. Null if the alert is off."""
    freeze: bool
    """True if the alert freezes the wallet."""


class RefusalsAlert(PayeesAlert):
    """The alert about refusals within `minutes`. `freeze` is true if it freezes the wallet."""

    threshold: Annotated[int | None, example(24)]
    """The number of refusals. Null if the alert is off."""
    minutes: Annotated[int | None, example(60)]
    """The length of the counted period in minutes. Null if there is no rule."""


class SecurityAlert(ViolationAlert):
    """The alert about API keys, people and repeated brakes. `enabled` is true if it sends e-mails to `emails`."""


class NoticeAlert(ViolationAlert):
    """An alert about pending work or a limit. `enabled` is true if it sends e-mails to `emails`."""


class Alerts(ResponseBody):
    """The alerts that apply to every wallet without its own alert of the same type.

    `inherited` is true for each type without a rule of the organisation.
    """

    balance_low: MoneyAlert
    """The alert for a low balance."""
    policy_violation: ViolationAlert
    """The e-mails about refused payments, escrows and allowances."""
    inactivity: CountAlert
    """The alert for inactivity."""
    velocity_spike: CountAlert
    """The alert for many payments within an hour."""
    large_transaction: LargeAlert
    """The alert for a large payment or escrow."""
    sol_limit: SolAlert
    """The e-mails about the daily limits in SOL."""
    refusals: RefusalsAlert
    """The alert for many refusals."""
    new_payees: PayeesAlert
    """The alert for many new payees."""
    security: SecurityAlert
    """The e-mails about API keys, people and repeated brakes."""
    approvals: NoticeAlert
    """The e-mails about requested, decided and expired approvals."""
    stopped_payments: NoticeAlert
    """The e-mails about payments refused by a frozen, paused or empty wallet."""
    spending_limit: NoticeAlert
    """The e-mails sent when 80 % of a limit of a budget, or of a wallet's monthly limit, is used."""
    pauses: NoticeAlert
    """The e-mails about pauses of the organisation and their end."""
    webhooks: NoticeAlert
    """The e-mails about degraded webhooks."""
    updated_at: Time | None
    """The time when the current rules were set. Null if no rules are set."""


class WalletAlerts(Alerts):
    """The alerts that apply to a wallet. `inherited` is true for each type without a rule of the wallet."""

    wallet_id: WalletId
    """The wallet of the rules."""
    id: WalletId
    """The wallet of the rules."""
