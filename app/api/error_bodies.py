"""The bodies of errors."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from app.api.fields import ApprovalId, PolicyId, ResponseBody, TransactionId, WalletId


class ErrorBody(ResponseBody):
    """The members of every error. Some codes add further members."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[str, Field(examples=["wallet_not_found"])]
    message: str
    docs: Annotated[str, WithJsonSchema({"type": "string", "format": "uri"})]
    request_id: Annotated[str, WithJsonSchema({"type": "string", "pattern": "^req_[0-9A-Za-z]+$"})]


class ErrorEnvelope(ResponseBody):
    """The body of every error."""

    error: ErrorBody


class Violation(ResponseBody):
    """The rule that refused the payment, its limit, and the value that the payment would have reached."""

    rule: str
    limit: str
    attempted: str


class PolicyViolationBody(ErrorBody):
    """The error for a payment, an escrow or an allowance that the wallet's policy or budget refused.

    `tx_id` is the id of its row in the list of transactions. The row is `blocked`, or `failed` if the program refused
    the transaction only after it was sent. `approval_id` is the id of the approval that would let the payment,
    escrow or allowance pass, if there is one.
    """

    model_config = ConfigDict(extra="allow")

    code: Literal["policy_violation"]
    violation: Violation
    wallet_id: WalletId
    policy_id: PolicyId
    tx_id: TransactionId
    approval_id: ApprovalId = ""


class PolicyViolationEnvelope(ResponseBody):
    """The body of the error `policy_violation`."""

    error: PolicyViolationBody
