"""Request and response bodies of API keys."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.access.keyring import KeyStatus, Role
from app.access.networks import parse_network
from app.api.ending import Descendant
from app.api.fields import (
    WHOLE_NUMBER,
    Body,
    IdempotencyKey,
    Identifier,
    KeyId,
    ListResponse,
    Moment,
    Name,
    Page,
    ReadFrom,
    ResponseBody,
    Time,
    WalletId,
)
from app.core.actors import Actor

#: Maximum time in seconds that a rotated key may still work.
MAX_OVERLAP = 30 * 86_400
#: Maximum number of networks that a key allows.
MAX_NETWORKS = 50


def _network(text: str) -> str:
    try:
        return str(parse_network(text))
    except ValueError:
        raise PydanticCustomError(
            "network", "must be an IP address or a network such as 203.0.113.0/24 or 2001:db8::/32, without host bits"
        ) from None


Networks = Annotated[
    list[Annotated[str, StringConstraints(max_length=64), AfterValidator(_network)]],
    Field(min_length=1, max_length=MAX_NETWORKS),
]


class _Restricted(Body):
    expires_at: Moment | None = None
    allowed_addresses: Networks | None = None

    @property
    def restrictions(self) -> dict[str, Any]:
        """The given restrictions of the new key."""
        given = {"expires_at": self.expires_at, "allowed_addresses": self.allowed_addresses}
        return {name: value for name, value in given.items() if value is not None}


class CreateKey(_Restricted):
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


class RotateKey(_Restricted):
    """Body of a rotation. The old key works for `overlapSeconds` more; if absent, for the service's default overlap.

    Absent restrictions keep the old key's values.
    """

    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP)] | None = None
    idempotency_key: IdempotencyKey | None = None


class ListKeys(Page):
    """Query of the key list. `restricted` = `false` selects working keys without an end or without addresses."""

    restricted: Literal["false"] | None = None


class Key(ResponseBody):
    """An API key without its text. `hint` is the last four characters. A `rotated` key works until `revoked_at`.

    `allowed_addresses` is null if the key works from any address.
    """

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
    expires_at: Time | None
    allowed_addresses: list[str] | None
    created_by: Actor | None


class NewKey(Key):
    """A new API key with its text, `key`. Only this response and its replays show the text."""

    key: str


class RevokedKey(Key):
    """A revoked key, and the keys and people in force that it created, directly or through others."""

    descendants: list[Descendant]


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
