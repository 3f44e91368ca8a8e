"""Request and response bodies of API keys."""

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.access.keyring import KeyStatus, Role
from app.api.fields import (
    WHOLE_NUMBER,
    Body,
    IdempotencyKey,
    Identifier,
    KeyId,
    ListResponse,
    Name,
    Page,
    ReadFrom,
    ResponseBody,
    Time,
    WalletId,
)

#: Maximum time in seconds that a rotated key may still work.
MAX_OVERLAP = 30 * 86_400


class CreateKey(Body):
    """Body of a key creation. An agent's key needs its wallet; other keys must not have one."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"role": {"const": "agent"}}},
            "then": {"required": ["walletId"], "properties": {"walletId": {"type": "string"}}},
            "else": {"properties": {"walletId": {"type": "null"}}},
        }
    )

    role: Role
    wallet_id: Identifier | None = None
    name: Name | None = None
    idempotency_key: IdempotencyKey | None = None

    @model_validator(mode="after")
    def _names_a_wallet(self) -> "CreateKey":
        if (self.role == "agent") != (self.wallet_id is not None):
            raise PydanticCustomError("wallet_of_key", "an agent's key needs walletId; other keys must not have it")
        return self


class RotateKey(Body):
    """Body of a rotation. The old key works for `overlapSeconds` more; if absent, for the service's default overlap."""

    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP)] | None = None
    idempotency_key: IdempotencyKey | None = None


class ListKeys(Page):
    """Query of the key list."""


class Key(ResponseBody):
    """An API key without its text. `hint` is the last four characters. A `rotated` key works until `revoked_at`."""

    key_id: KeyId
    id: Annotated[KeyId, ReadFrom("key_id")]
    role: Role
    wallet_id: WalletId | None
    name: str
    hint: str
    status: KeyStatus
    created_at: Time
    last_used_at: Time | None
    revoked_at: Time | None


class NewKey(Key):
    """A new API key with its text, `key`. Only this response and its replays show the text."""

    key: str


class KeyPage(ListResponse[Key]):
    """One page of API keys, newest first."""


class ListRequests(Page):
    """Query of the request log. All given filters must match."""

    key_id: Identifier | None = None
    status: Annotated[int, Field(ge=100, le=599, examples=[403]), WHOLE_NUMBER] | None = None
    code: Identifier | None = None
    wallet_id: Identifier | None = None


class LoggedRequest(ResponseBody):
    """A request with a valid API key, and its response."""

    request_id: str
    timestamp: Time
    key_id: KeyId
    key_name: str
    method: str
    path: str
    status: int
    code: str | None
    duration_ms: int
    wallet_id: str | None


class RequestLogPage(ListResponse[LoggedRequest]):
    """One page of the request log, newest first."""
