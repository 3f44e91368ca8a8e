"""Request and response bodies of payments."""

from typing import Literal

from app.api.fields import Amount, Body, IdempotencyKey, Identifier, Memo, Recipient, ResponseBody, Time, Usdc, WalletId
from app.api.money_body import MoneyBody
from app.transactions.models import Payment


class PayFromWallet(MoneyBody):
    """Body of a payment from the wallet in the path."""

    to: Recipient
    amount: Amount
    currency: Literal["USDC"]
    memo: Memo | None = None
    allow_unverified_recipient: bool = False
    idempotency_key: IdempotencyKey | None = None


class CreatePayment(PayFromWallet):
    """Body of a payment."""

    wallet_id: Identifier


class SimulatePayment(Body):
    """Body of a simulated payment, with the same fields as a payment.

    `memo`, `allowUnverifiedRecipient`, `idempotencyKey` and `afterRestore` have no effect.
    """

    wallet_id: Identifier
    to: Recipient
    amount: Amount
    currency: Literal["USDC"] = "USDC"
    memo: Memo | None = None
    allow_unverified_recipient: bool = False
    idempotency_key: IdempotencyKey | None = None
    after_restore: bool = False


class QuickPayment(Payment):
    """A payment with `signature`, the quickstart's name for `tx_signature`."""

    signature: str | None


class RuleVerdict(ResponseBody):
    """The verdict of one rule. Money is a decimal string; other numbers are strings of digits.

    For `expiry`, `limit` and `attempted` are times. For `blocked_categories` they are names of categories. For
    `allowed_recipients` they are the number of entries and the recipient's address. `headroom` is null for rules that
    only allow or refuse.
    """

    rule: str
    set: bool
    passed: bool
    limit: str | None
    attempted: str | None
    headroom: str | None
    retry_at: Time | None


class Simulation(ResponseBody):
    """The verdict of every rule on a payment that is not sent, and warnings about its recipient."""

    wallet_id: WalletId
    recipient: str
    amount: Usdc
    currency: str
    allowed: bool
    usdc_balance: Usdc
    retry_at: Time | None
    rules: list[RuleVerdict]
    warnings: list[str]
