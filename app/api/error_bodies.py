"""The bodies of errors."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from app.api.fields import (
    AllowanceId,
    ApprovalId,
    BudgetId,
    PolicyId,
    RequestId,
    ResponseBody,
    TransactionId,
    WalletId,
    example,
)


class ErrorBody(ResponseBody):
    """The members of every error. Some codes add further members."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[str, Field(examples=["wallet_not_found"])]
    """The error's code for programs."""
    message: Annotated[str, example("The wallet's policy refuses the payment.")]
    """The error's message for people."""
    docs: Annotated[
        str,
        WithJsonSchema({"type": "string", "format": "uri"}),
        example("http://127.0.0.1:8402/docs/errors/policy_violation"),
    ]
    """The link to the documentation of the error code."""
    request_id: RequestId
    """The id of the request. Quote it when you ask for support."""


class ErrorEnvelope(ResponseBody):
    """The body of every error."""

    error: ErrorBody
    """The error: its code, a message for people, and further members of this code."""


class Violation(ResponseBody):
    """The rule that refused the payment, its limit, and the value that the payment would have reached."""

    rule: Annotated[str, example("max_per_tx")]
    """The rule that refused the payment. See the table of rules."""
    limit: Annotated[str, example("5.00")]
    """The limit of the rule."""
    attempted: Annotated[str, example("6.00")]
    """The value that the payment would have reached."""
    budget_id: BudgetId | None = None
    """The budget that refused the payment: the wallet's budget, or that budget's parent. If a rule of the policy
    refused it, the field is null, or absent in an error."""


class PolicyViolationBody(ErrorBody):
    """The error for a payment, an escrow or an allowance that the wallet's policy or budget refused.

    `tx_id` is the id of the refused expense in the list of transactions. Its status is `blocked`, or `failed` if the
    program refused the transaction only after it was sent. `approval_id` is the id of the request for an approval that
    would let the expense pass, if an approval helps. `open_allowances` lists outstanding allowances, if the expense
    would pass without the money that they hold.
    """

    model_config = ConfigDict(extra="allow")

    code: Literal["policy_violation"]
    """The code, always `policy_violation`."""
    violation: Violation
    """The rule that refused the payment, its limit, and the value that the payment would have reached."""
    wallet_id: WalletId
    """The paying wallet."""
    policy_id: PolicyId
    """The wallet's policy at the time of the refusal."""
    tx_id: TransactionId
    """The id of the refused payment or escrow in the list of transactions."""
    approval_id: ApprovalId = ""
    """The id of the request for an operator's approval. Absent if no approval helps."""
    open_allowances: tuple[AllowanceId, ...] = ()
    """The ids of the outstanding allowances. Present only if the payment would pass without the money that they hold.
    """


class PolicyViolationEnvelope(ResponseBody):
    """The body of the error `policy_violation`."""

    error: PolicyViolationBody
    """The error: its code, a message for people, and further members of this code."""
