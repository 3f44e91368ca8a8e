"""The audit log in queries and responses."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.fields import End, Identifier, ListResponse, Moment, Page, ResponseBody, Time
from app.core.actors import ACTOR_TYPES, Actor
from app.store.audit_actions import Action


def _actor(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return Actor.parse(value)
    except ValueError as error:
        raise PydanticCustomError("actor", "{reason}", {"reason": str(error)}) from None


_FORM = {"type": "string", "pattern": f"^({'|'.join(ACTOR_TYPES)}):.+$", "examples": ["system:command_line"]}
ActorName = Annotated[Actor, BeforeValidator(_actor), WithJsonSchema(_FORM)]
"""An actor by its type and id, such as `key:key_…`."""


class ListAuditLog(Page):
    """Query of the audit log. `from` is inclusive, `to` exclusive."""

    actor: ActorName | None = None
    action: Action | None = None
    object: Identifier | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: End | None = None


class AuditLogEntry(ResponseBody):
    """One entry.

    `hash` is the SHA-256 of the previous entry's hash and of this entry's other members as canonical JSON (RFC 8785).
    """

    number: int
    log: str
    timestamp: Time
    actor: Actor
    action: Action
    object: str | None
    address: str | None
    request_id: str | None
    details: dict[str, Any]
    hash: str


class UnreadableAuditEntry(ResponseBody):
    """An entry that cannot be shown: it was altered in the database, or this version does not know its action."""

    number: int
    reason: str


class AuditLogPage(ListResponse[AuditLogEntry]):
    """One page of the audit log, highest number first. `unreadable` lists the entries that cannot be shown."""

    unreadable: list[UnreadableAuditEntry]
