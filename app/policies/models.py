"""Request and response bodies of policies."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.api.error_bodies import Violation
from app.api.fields import (
    Category,
    Confirmation,
    Limit,
    LimitText,
    Name,
    PolicyId,
    ReadFrom,
    Recipient,
    RecipientShown,
    ResponseBody,
    Time,
    Timestamp,
    TransactionId,
    Usdc,
    WalletId,
    Warnings,
    example,
)
from app.api.hosts import Host
from app.api.partial_body import PartialBody
from app.api.whole_list import WholeList
from app.core.actors import Actor

#: Hosts that paid requests may go to.
Hosts = Annotated[list[Host], Field(max_length=100)]
#: Maximum number of entries that an on-chain allowlist may hold.
MAX_RECIPIENTS = 1_000
#: Maximum number of open escrows of a wallet whose policy sets no lower limit.
MAX_OPEN_ESCROWS = 64


class ApprovalRule(TypedDict):
    """The people who must approve every payment, escrow and allowance above an amount, each by passkey."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, extra="forbid", strict=True)  # type: ignore[misc]

    required: Annotated[int, Field(ge=1, le=3), example(2)]
    """The number of operators or admins who must approve. The requester does not count."""
    above: Annotated[LimitText, example("500.00")]
    """The amount above which people must approve. `requireCoSign` may not be higher than this amount. If
    `requireCoSign` is not set, it becomes this amount.
    """


class RuleFields(PartialBody):
    """Fields of a body that set a policy's rules."""

    max_per_tx: Annotated[Limit | None, example("5.00")] = None
    """The maximum amount of one payment. Null means no limit; zero is a limit."""
    max_per_day: Annotated[Limit | None, example("50.00")] = None
    """The maximum amount in any 24 hours. The period moves in steps of 15 minutes."""
    max_per_month: Limit | None = None
    """The maximum amount in a UTC calendar month."""
    velocity_cap: Annotated[Annotated[int, Field(ge=0, le=2**32 - 1)] | None, example(20)] = None
    """The maximum number of payments in any hour."""
    allowed_recipients: Annotated[list[Recipient], Field(max_length=MAX_RECIPIENTS)] = Field(default=[])
    """The only recipients that may be paid. An empty list allows all."""
    blocked_categories: Annotated[list[Category], Field(max_length=32), example(["gambling"])] = Field(default=[])
    """The categories of recipients that may not be paid."""
    require_co_sign: Limit | None = None
    """The amount above which an operator must sign too."""
    expiry: Timestamp | None = None
    """The expiry. Afterwards nothing is paid and the wallets are frozen."""
    new_recipient_cap: Limit | None = None
    """The maximum sum for an address until 24 hours after its first payment. An approved payment lifts the cap for its
    recipient at once, and listed recipients have none.
    """
    max_open_escrows: Annotated[int, Field(ge=0, le=MAX_OPEN_ESCROWS), example(8)] | None = None
    """The maximum number of open escrows of a wallet. Null means 64."""
    allow_allowances: bool = False
    """True if a wallet may grant allowances to a delegate."""
    allow_unverified_recipient: Confirmation = False
    """True to list addresses without a known owner, which are otherwise refused with `recipient_unverified`. Entries
    already listed are not checked again.
    """


class CreatePolicy(RuleFields):
    """Body of a policy creation. An omitted rule is not set, and an omitted permission is false."""

    name: Name
    """A display name for people."""
    x402_hosts: Hosts | None = None
    """The hosts that paid requests may address, without ports; `*` allows all. Null sets the default: all hosts on a
    local network and none elsewhere.
    """
    opens_accounts: Annotated[bool, example(True)] = False
    """True to let paid requests out of an allowance open the USDC account of a payee that has none. The fee payer pays
    the account's rent, within the wallet's daily limits.
    """
    approvals: ApprovalRule | None = None
    """The approvals by people above an amount. Null means none."""


class UpdatePolicy(CreatePolicy):
    """Body of a policy update. An omitted field keeps its value; `null` or an empty list clears a rule."""

    name: Name = Field(default="")
    """The new name."""


class ClonePolicy(CreatePolicy):
    """Body of a policy clone. An omitted rule or permission is copied; `null` or an empty list clears a rule."""


class PreviewPolicy(UpdatePolicy):
    """Body of a preview, with the same fields as an update.

    `name`, `x402Hosts`, `opensAccounts`, `approvals`, `maxOpenEscrows`, `allowAllowances`, `allowUnverifiedRecipient`
    and the idempotency key have no effect here. The response contains a warning about each recipient without a known
    owner.
    """


class Policy(ResponseBody):
    """A policy. `version` increases with every change of its rules.

    No two policies of an organisation share a version number.
    """

    policy_id: PolicyId
    """The policy's id. It begins with `pol_`."""
    id: Annotated[PolicyId, ReadFrom("policy_id")]
    """The policy's id, equal to `policy_id`."""
    name: Annotated[str, example("Shopping")]
    """The name as last set."""
    max_per_tx: Usdc | None
    """The maximum amount of one payment. Null means no limit; zero is a limit."""
    max_per_day: Usdc | None
    """The maximum amount in any 24 hours. The period moves in steps of 15 minutes."""
    max_per_month: Usdc | None
    """The maximum amount in a UTC calendar month."""
    velocity_cap: Annotated[int | None, example(20)]
    """The maximum number of payments in any hour."""
    allowed_recipients: list[RecipientShown]
    """The only recipients that may be paid. An empty list allows all."""
    blocked_categories: Annotated[list[str], example(["gambling"])]
    """The categories of recipients that may not be paid."""
    require_co_sign: Usdc | None
    """The amount above which an operator must sign too."""
    expiry: Time | None
    """The expiry. Afterwards nothing is paid and the wallets are frozen."""
    new_recipient_cap: Usdc | None
    """The maximum sum for an address until 24 hours after its first payment. Null means no cap."""
    max_open_escrows: Annotated[int | None, example(8)]
    """The maximum number of open escrows of a wallet. Null means 64."""
    allow_allowances: Annotated[bool, example(True)]
    """True if a wallet may grant allowances to a delegate; false in the presets."""
    x402_hosts: Annotated[list[str] | None, example(["api.example.com"])]
    """The hosts that paid requests may address. Null means the default."""
    opens_accounts: Annotated[bool, example(True)]
    """True if paid requests may open the USDC account of a payee."""
    approvals: Annotated[ApprovalRule | None, example({"required": 2, "above": "500.00"})]
    """The approvals by people above an amount. Null means none."""
    wallet_count: Annotated[int, example(2)]
    """The number of attached wallets; zero at first."""
    version: Annotated[int, example(3)]
    """The version. It increases with every change of a rule and is never used again, not even by another policy."""
    created_at: Time
    """The time of the creation request."""


class PolicyList(WholeList[Policy]):
    """All policies of the organisation, presets first."""


class Change(ResponseBody):
    """The values of a field before and after a change, in the same form as in a policy."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    before: Annotated[str | bool | int | list[str] | ApprovalRule | None, example("5.00")] = Field(alias="from")
    """The value before the change. Null if the rule was not set."""
    after: Annotated[str | bool | int | list[str] | ApprovalRule | None, example("10.00")] = Field(alias="to")
    """The value after the change. Null if the rule is no longer set."""


class AuditEntry(ResponseBody):
    """A change of a policy: its time, its author and the changed fields.

    `changed_by` is the id of the API key or person that requested the change, or the address that signed a change made
    without this service. It is `on-chain` if that address is not known. `actor` is the same author with its type.
    """

    timestamp: Time
    """The time of the change. Entries are sorted by it."""
    changed_by: Annotated[str, example("key_M3vLp8fRz2JtXk5wQnB7cG")]
    """The id of the API key or person that made the change, or the address that signed it without the service."""
    actor: Actor
    """The author of the change, as type and id."""
    changes: Annotated[dict[str, Change], example({"max_per_tx": {"from": "5.00", "to": "10.00"}})]
    """The changed fields, each with `from` and `to`."""


class AuditLog(ResponseBody):
    """All changes of a policy, oldest first."""

    data: list[AuditEntry]
    """The changes."""


class PreviewedPayment(ResponseBody):
    """A payment or escrow that would have had a different outcome."""

    tx_id: TransactionId
    """The transaction's id. It begins with `tx_`."""
    wallet_id: WalletId
    """The paying wallet."""
    type: Annotated[str, example("payment")]
    """The type of the transaction. `/docs/reference` explains each type."""
    recipient: RecipientShown
    """The recipient as in the request. A wallet is shown by its address."""
    amount: Usdc
    """The amount."""
    status: Literal["confirmed", "blocked"]
    """The actual outcome: `confirmed` or `blocked`."""
    would_be: Literal["confirmed", "blocked"]
    """The outcome under the changed policy: `confirmed` or `blocked`."""
    violation: Violation | None
    """The rule that would have refused the payment. Null if the payment would have passed."""
    refusals: Annotated[int | None, example(1)]
    """The number of refused requests that this row stands for. Null for confirmed payments."""
    timestamp: Time
    """The time of the request."""


class PolicyPreview(ResponseBody):
    """The outcomes that the payments and escrows of the last seven days would have had under the changed policy.

    A preview replays a limited number of payments, and covers a wallet only as a whole: a wallet whose payments no
    longer fit is left out. `wallets` counts the covered wallets, and `wallets_left_out` the others. `changes` lists the
    newest payments with a different outcome, and `changes_left_out` counts the rest. `warnings` names the recipients
    that the change adds and whose owner is unknown.
    """

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    policy_id: PolicyId
    """The policy that the change would apply to."""
    start: Time = Field(alias="from")
    """The start of the judged week."""
    end: Time = Field(alias="to")
    """The end of the judged week."""
    wallets: Annotated[int, example(2)]
    """The number of attached wallets that the preview covers."""
    wallets_left_out: Annotated[int, example(0)]
    """The number of attached wallets that the preview leaves out, because it judges a limited number of payments."""
    payments: Annotated[int, example(128)]
    """The number of judged payments and escrows."""
    newly_blocked: Annotated[int, example(3)]
    """The number of accepted payments that the change would have refused."""
    newly_confirmed: Annotated[int, example(0)]
    """The number of refused payments that the change would have accepted."""
    changes: list[PreviewedPayment]
    """The payments with a different outcome, newest first."""
    changes_left_out: Annotated[int, example(0)]
    """The number of further payments with a different outcome that `changes` does not list."""
    warnings: Warnings
    """Warnings about new entries of the allowlist without a known owner."""
