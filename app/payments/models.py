"""Request and response bodies of payments."""

from typing import Annotated, Literal

from app.api.fields import (
    AllowanceId,
    Amount,
    BudgetId,
    ChangeBody,
    Confirmation,
    Currency,
    Memo,
    Recipient,
    RecipientShown,
    ResponseBody,
    Signature,
    Time,
    Usdc,
    WalletId,
    WalletRef,
    Warnings,
    example,
)
from app.api.money_body import MoneyBody
from app.transactions.models import Payment


class PayFromWallet(MoneyBody):
    """Body of a payment from the wallet in the path."""

    to: Recipient
    """The recipient: an address, a domain or a wallet id."""
    amount: Amount
    """The amount in USDC: a decimal string with at most 6 decimals, such as `4.50`."""
    currency: Literal["USDC"]
    """The currency, always `USDC`."""
    memo: Memo | None = None
    """A note. It is not stored on the chain."""
    allow_unverified_recipient: Confirmation = False
    """True to pay an address without a known owner, which is otherwise refused with `recipient_unverified`. With an
    agent's key, the policy's `allowedRecipients` must also list the address.
    """


class CreatePayment(PayFromWallet):
    """Body of a payment."""

    wallet_id: WalletRef
    """The paying wallet."""


class SimulatePayment(ChangeBody):
    """Body of a simulated payment, with the same fields as a payment.

    `memo`, `allowUnverifiedRecipient`, `idempotencyKey` and `afterRestore` are accepted but have no effect.
    """

    wallet_id: WalletRef
    """The wallet that would pay."""
    to: Recipient
    """The recipient: an address, a domain or a wallet id."""
    amount: Amount
    """The amount in USDC: a decimal string with at most 6 decimals, such as `4.50`."""
    currency: Literal["USDC"] = "USDC"
    """The currency, always `USDC`."""
    memo: Memo | None = None
    """The payment's note. It has no effect in a simulation."""
    allow_unverified_recipient: Confirmation = False
    """Has no effect in a simulation, which warns about a recipient without a known owner instead of refusing it."""
    after_restore: Confirmation = False
    """Has no effect in a simulation. In a payment, it confirms that you have checked for an earlier payment."""


class QuickPayment(Payment):
    """A payment with `signature`, the quickstart's name for `tx_signature`."""

    signature: Signature | None
    """The signature, equal to `tx_signature`."""


class RuleVerdict(ResponseBody):
    """The verdict of one rule. Money is a decimal string; other numbers are strings of digits.

    For `expiry`, `limit` and `attempted` are times. For `blocked_categories`, both are names of categories. For
    `allowed_recipients`, `limit` is the number of entries and `attempted` is the recipient's address. `headroom` is
    null for rules that only allow or refuse.
    """

    rule: Annotated[str, example("max_per_tx")]
    """The name of the rule. `/docs/reference` explains each rule."""
    budget_id: BudgetId | None
    """The budget that has the rule: the wallet's or its parent. Null for a rule of the policy, a freeze or a pause."""
    set: bool
    """True if the policy or the budget sets the rule. Always true for `paused` and `frozen`."""
    passed: bool
    """True if the rule lets the payment pass."""
    limit: Annotated[str | None, example("5.00")]
    """The limit of the rule. Null if the rule is not set."""
    attempted: Annotated[str | None, example("6.00")]
    """The value that the payment would reach. Null if the rule is not set."""
    headroom: Annotated[str | None, example("0.50")]
    """The headroom of the limit before this payment. Null if the rule has no limit in money or numbers."""
    retry_at: Time | None
    """The first time when this rule lets the payment pass; the present time if it passes now. Null if waiting does not
    help.
    """


class Simulation(ResponseBody):
    """The verdict of every rule on a payment that is not sent, and warnings about its recipient.

    `error` is the code of the error that would stop the payment although it breaks no rule, such as a low balance.
    """

    wallet_id: WalletId
    """The wallet that would pay."""
    recipient: RecipientShown
    """The recipient from the request."""
    amount: Usdc
    """The amount from the request."""
    currency: Currency
    """The currency, always `USDC`."""
    allowed: bool
    """True if the payment would pass now: every rule passes and the balance suffices."""
    usdc_balance: Usdc
    """The vault's balance."""
    retry_at: Time | None
    """The first time when the same payment passes if nothing else is paid; the present time if it passes now. Null if
    waiting does not help, if only outstanding allowances cause the refusal, or if there is an `error`.
    """
    error: Annotated[str | None, example("wallet_insufficient_balance")]
    """The code of the error that would stop the payment although it breaks no rule, such as
    `wallet_insufficient_balance`. Null if there is none.
    """
    rules: list[RuleVerdict]
    """The verdict of each rule."""
    open_allowances: list[AllowanceId]
    """The outstanding allowances, if only the money that they hold causes the refusal. Settle them, or wait until they
    are settled.
    """
    warnings: Warnings
    """A warning if the recipient has no known owner; empty otherwise."""
