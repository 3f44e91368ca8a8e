"""Policies: the eight rules as a client writes and reads them."""

from typing import Annotated

from pydantic import Field

from app.models.base import Answer, Body, IdempotencyKey, Limit, Name, Recipient, Timestamp

#: Entries that an on-chain allowlist holds.
MAX_RECIPIENTS = 1_000


class CreatePolicy(Body):
    """Body of policy creation; an absent rule is not set, an empty allowlist allows every recipient."""

    name: Name
    max_per_tx: Limit | None = None
    max_per_day: Limit | None = None
    max_per_month: Limit | None = None
    velocity_cap: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    allowed_recipients: Annotated[list[Recipient], Field(max_length=MAX_RECIPIENTS)] = Field(default=[])
    blocked_categories: Annotated[list[str], Field(max_length=32)] = Field(default=[])
    require_co_sign: Limit | None = None
    expiry: Timestamp | None = None
    idempotency_key: IdempotencyKey | None = None


class Policy(Answer):
    """A policy."""

    policy_id: str
    id: str
    name: str
    max_per_tx: str | None
    max_per_day: str | None
    max_per_month: str | None
    velocity_cap: int | None
    allowed_recipients: list[str]
    blocked_categories: list[str]
    require_co_sign: str | None
    expiry: str | None
    wallet_count: int
    created_at: str


class PolicyList(Answer):
    """All policies of the organisation, presets first."""

    data: list[Policy]
    has_more: bool = False
    next_cursor: str | None = None
