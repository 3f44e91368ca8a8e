"""Request and response bodies of API keys."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.access.networks import parse_network
from app.api.ending import Descendant
from app.api.fields import (
    WHOLE_NUMBER,
    ChangeBody,
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
    WalletRef,
    example,
)
from app.core.actors import Actor, Role
from app.store.keys import KeyStatus

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


class _Restricted(ChangeBody):
    expires_at: Moment | None = None
    """The time when the key stops working. A key with an end cannot create a key that works longer, and a rotation
    cannot replace it by one. If omitted in a rotation, the old key's value applies."""
    allowed_addresses: Annotated[Networks, example(["203.0.113.0/24", "2001:db8::/32"])] | None = None
    """At most 50 IP addresses or networks in CIDR notation. The key works only from these addresses. From other
    addresses, keys of operators and admins may still freeze wallets and pause the organisation. If omitted in a
    rotation, the old key's value applies.
    """

    @property
    def restrictions(self) -> dict[str, Any]:
        """The restrictions given in the body for the new key."""
        given = {"expires_at": self.expires_at, "allowed_addresses": self.allowed_addresses}
        return {name: value for name, value in given.items() if value is not None}


class CreateKey(_Restricted):
    """Body of a request to create a key. An agent's key needs its wallet; other keys must not have one."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"role": {"const": "agent"}}},
            "then": {"required": ["walletId"], "properties": {"walletId": {"type": "string"}}},
            "else": {"properties": {"walletId": {"type": "null"}}},
        }
    )

    role: Role
    """The role of the key: `viewer`, `agent`, `operator` or `admin`."""
    wallet_id: WalletRef | None = None
    """The wallet of an agent's key. Required for the role `agent`, and refused for other roles."""
    name: Name | None = None
    """A display name for people."""

    @model_validator(mode="after")
    def _names_a_wallet(self) -> "CreateKey":
        if (self.role == "agent") != (self.wallet_id is not None):
            raise PydanticCustomError("wallet_of_key", "an agent's key needs walletId; other keys must not have it")
        return self


class RotateKey(_Restricted):
    """Body of a rotation. The old key works for `overlapSeconds` more, by default for the service's overlap.

    For omitted restrictions, the old key's values apply.
    """

    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP), example(3600)] | None = None
    """The number of seconds for which the old key still works, 0 to 2,592,000. The default is the setting
    `key_rotation_overlap`.
    """


class ListKeys(Page):
    """Query of the key list. `restricted=false` selects working keys that lack an end or allowed addresses."""

    restricted: Literal["false"] | None = None
    """Only `false` is accepted. It selects the working keys that lack an end or allowed addresses."""


class Key(ResponseBody):
    """An API key without its text. `hint` is the last four characters. A `rotated` key works until `revoked_at`.

    `allowed_addresses` is null if the key works from any address.
    """

    key_id: KeyId
    """The key's id, under both names. It begins with `key_`."""
    id: Annotated[KeyId, ReadFrom("key_id")]
    """The key's id, under both names. It begins with `key_`."""
    role: Role
    """The role of the key. See the roles."""
    wallet_id: WalletId | None
    """The wallet of an agent's key. Null for other roles."""
    name: Annotated[str, example("Shopping")]
    """The display name for people."""
    hint: Annotated[str, example("x7Qd")]
    """The last four characters of the key."""
    status: KeyStatus
    """The status: `active`, `rotated` (works until `revoked_at`), `revoked` or `expired`."""
    created_at: Time
    """The time of the creation."""
    last_used_at: Time | None
    """The time of the key's last request, stored once a minute. Null if there was none."""
    revoked_at: Time | None
    """The time when the key stops or stopped working because of a rotation or revocation. Null if there was neither."""
    expires_at: Time | None
    """When the key expires. Null if it does not expire."""
    allowed_addresses: Annotated[list[str] | None, example(["203.0.113.0/24", "2001:db8::/32"])]
    """The allowed networks. Null if the key works from any address."""
    created_by: Actor | None
    """The creator of the key, as type and id. Null if unknown, which is possible for keys older than this field."""


class NewKey(Key):
    """A new API key with its text, `key`. Only this response and its replays show the text."""

    key: Annotated[str, example("avk_7mVwGKnUZuVnbH2WuJbSyRhZ2HrYVXpXRvMQqsQqWk3Z")]
    """The key itself. Only this response and its replays show it."""


class RevokedKey(Key):
    """A revoked key, and the keys and people in force that the key created, directly or through others."""

    descendants: list[Descendant]
    """The keys and people in force that the key created, directly or through others. With `endDescendants`, the request
    has ended them.
    """


class KeyPage(ListResponse[Key]):
    """One page of API keys, newest first."""


class ListRequests(Page):
    """Query of the request log. All given filters must match."""

    key_id: Annotated[Identifier | None, example("key_M3vLp8fRz2JtXk5wQnB7cG")] = None
    """The id of the API key that sent the requests."""
    status: Annotated[int, Field(ge=100, le=599, examples=[403]), WHOLE_NUMBER] | None = None
    """The HTTP status of the responses."""
    code: Annotated[Identifier | None, example("insufficient_permissions")] = None
    """The error code of the responses."""
    wallet_id: WalletRef | None = None
    """The wallet named by the requests, or bound to their agent's key."""


class LoggedRequest(ResponseBody):
    """A request with a valid API key, and its response."""

    request_id: Annotated[str, example("req_NaLTW5KRAT7GNcwLfd2Mhr")]
    """The id of the request, as in the response's header `Request-Id`."""
    timestamp: Time
    """The time of the response."""
    key_id: KeyId
    """The API key that sent the request."""
    key_name: Annotated[str, example("Back office")]
    """The name of that API key."""
    method: Annotated[str, example("POST")]
    """The method of the request."""
    path: Annotated[str, example("/v1/payments")]
    """The path of the request without the query, cut after 128 bytes."""
    status: Annotated[int, example(403)]
    """The HTTP status of the response."""
    code: Annotated[str | None, example("insufficient_permissions")]
    """The error code of the response. Null for a success."""
    duration_ms: Annotated[int, example(84)]
    """The time from the request to its response, in milliseconds."""
    wallet_id: Annotated[str | None, example("wal_VDycjSYafbJkJfSRKajygt")]
    """The wallet named by the request, or bound to its agent's key. Null if there is none."""


class RequestLogPage(ListResponse[LoggedRequest]):
    """One page of the request log, newest first."""
