"""The bodies of errors."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from app.api.fields import ApprovalId, PolicyId, ResponseBody, TransactionId, WalletId


class ErrorBody(ResponseBody):
    """The members of every error. Some codes add more."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[str, Field(examples=["wallet_not_found"])]
    message: str
    docs: Annotated[str, WithJsonSchema({"type": "string", "format": "uri"})]
    request_id: Annotated[str, WithJsonSchema({"type": "string", "pattern": "^req_[0-9A-Za-z]+$"})]


class ErrorEnvelope(ResponseBody):
    """The body of every error."""

    error: ErrorBody


class Violation(ResponseBody):
    """The rule that refused, its limit, and the value that the payment would have reached."""

    rule: str
    limit: str
    attempted: str


class PolicyViolationBody(ErrorBody):
    """The error of a payment or an escrow that the wallet's policy refused.

    `tx_id` names its row in the list of transactions: `blocked`, or `failed` if the policy changed after it was sent.
    `approval_id` names the approval with which it would pass, if there is one.
    """

    model_config = ConfigDict(extra="allow")

    code: Literal["policy_violation"]
    violation: Violation
    wallet_id: WalletId
    policy_id: PolicyId
    tx_id: TransactionId
    approval_id: ApprovalId = ""


class PolicyViolationEnvelope(ResponseBody):
    """The body of a refusal by the policy."""

    error: PolicyViolationBody
