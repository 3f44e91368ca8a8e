"""Request and response bodies of policies."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from app.api.error_bodies import Violation
from app.api.fields import (
    Category,
    IdempotencyKey,
    Limit,
    Name,
    PolicyId,
    ReadFrom,
    Recipient,
    ResponseBody,
    Time,
    Timestamp,
    TransactionId,
    Usdc,
    WalletId,
)
from app.api.hosts import Host
from app.api.partial_body import PartialBody
from app.core.actors import Actor

#: Hosts that paid requests may go to.
Hosts = Annotated[list[Host], Field(max_length=100)]
#: Maximum number of entries that an on-chain allowlist may hold.
MAX_RECIPIENTS = 1_000
#: Maximum number of open escrows of a wallet whose policy sets no lower limit.
MAX_OPEN_ESCROWS = 64


class RuleFields(PartialBody):
    """Fields of a body that set a policy's rules."""

    max_per_tx: Limit | None = None
    max_per_day: Limit | None = None
    max_per_month: Limit | None = None
    velocity_cap: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    allowed_recipients: Annotated[list[Recipient], Field(max_length=MAX_RECIPIENTS)] = Field(default=[])
    blocked_categories: Annotated[list[Category], Field(max_length=32)] = Field(default=[])
    require_co_sign: Limit | None = None
    expiry: Timestamp | None = None
    max_open_escrows: Annotated[int, Field(ge=0, le=MAX_OPEN_ESCROWS)] | None = None
    allow_allowances: bool = False
    allow_unverified_recipient: bool = False


class CreatePolicy(RuleFields):
    """Body of a policy creation. An omitted rule is not set. An empty allowlist allows every recipient."""

    name: Name
    x402_hosts: Hosts | None = None
    idempotency_key: IdempotencyKey | None = None


class UpdatePolicy(CreatePolicy):
    """Body of a policy update. An omitted field keeps its value; `null` or an empty list clears a rule."""

    name: Name = Field(default="")


class ClonePolicy(CreatePolicy):
    """Body of a policy clone. An omitted rule is copied; `null` or an empty list clears it."""


class PreviewPolicy(UpdatePolicy):
    """Body of a preview, with the same fields as an update.

    `name`, `x402Hosts`, `maxOpenEscrows`, `allowAllowances`, `allowUnverifiedRecipient` and the idempotency key have no
    effect here.
    """


class Policy(ResponseBody):
    """A policy. `version` increases with every change of its rules, and no two of an organisation share one."""

    policy_id: PolicyId
    id: Annotated[PolicyId, ReadFrom("policy_id")]
    name: str
    max_per_tx: Usdc | None
    max_per_day: Usdc | None
    max_per_month: Usdc | None
    velocity_cap: int | None
    allowed_recipients: list[str]
    blocked_categories: list[str]
    require_co_sign: Usdc | None
    expiry: Time | None
    max_open_escrows: int | None
    allow_allowances: bool
    x402_hosts: list[str] | None
    wallet_count: int
    version: int
    created_at: Time


class PolicyList(ResponseBody):
    """All policies of the organisation, presets first."""

    data: list[Policy]
    has_more: bool = False
    next_cursor: str | None = None


class Change(ResponseBody):
    """The values of a field before and after a change, in the same form as in a policy."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    before: str | bool | int | list[str] | None = Field(alias="from")
    after: str | bool | int | list[str] | None = Field(alias="to")


class AuditEntry(ResponseBody):
    """A change of a policy: its time, its author and the changed fields.

    `changed_by` is the id of the API key or person that requested the change, or the address that signed a change made
    without this service. It is `on-chain` if that address is not known. `actor` is the same author with its type.
    """

    timestamp: Time
    changed_by: str
    actor: Actor
    changes: dict[str, Change]


class AuditLog(ResponseBody):
    """All changes of a policy, oldest first."""

    data: list[AuditEntry]


class PreviewedPayment(ResponseBody):
    """A payment or escrow that would have had a different outcome."""

    tx_id: TransactionId
    wallet_id: WalletId
    type: str
    recipient: str
    amount: Usdc
    status: Literal["confirmed", "blocked"]
    would_be: Literal["confirmed", "blocked"]
    violation: Violation | None
    refusals: int | None
    timestamp: Time


class PolicyPreview(ResponseBody):
    """The outcomes that the payments and escrows of the last seven days would have had under the changed policy.

    A preview replays a limited number of payments and leaves out the wallets whose payments exceed it: `wallets` counts
    the covered wallets, `wallets_left_out` the others.
    `changes` lists the newest payments with a different outcome, and `changes_left_out` counts the rest. `warnings`
    names new recipients without a known owner.
    """

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    policy_id: PolicyId
    start: Time = Field(alias="from")
    end: Time = Field(alias="to")
    wallets: int
    wallets_left_out: int
    payments: int
    newly_blocked: int
    newly_confirmed: int
    changes: list[PreviewedPayment]
    changes_left_out: int
    warnings: list[str]
