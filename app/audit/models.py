"""The audit log in queries and responses."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetPydanticSchema, WithJsonSchema
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import literal_schema

from app.api.fields import End, ListResponse, Moment, Page, ResponseBody, Time, WalletRef, example
from app.core.actors import ACTOR_TYPES, Actor
from app.store.audit_actions import ACTIONS


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
ActionName = Annotated[str, GetPydanticSchema(lambda _source, _handler: literal_schema([*ACTIONS]))]


class ListAuditLog(Page):
    """Query of the audit log. `from` is inclusive, `to` exclusive."""

    actor: ActorName | None = None
    """The actor of the action, as type and id, such as `key:key_…`."""
    action: ActionName | None = None
    """The action. See the table of actions."""
    object: WalletRef | None = None
    """The id of the object that the action concerned."""
    from_: Annotated[Moment | None, Field(alias="from")] = None
    """The start of the period, inclusive."""
    to: End | None = None
    """The end of the period, exclusive. It must be later than `from`."""


class AuditLogEntry(ResponseBody):
    """One entry of the audit log.

    `hash` is the SHA-256 of the previous entry's hash and of this entry's other members as canonical JSON (RFC 8785).
    """

    number: Annotated[int, example(41)]
    """The position in the log, counted from 1 without gaps."""
    log: Annotated[str, example("6sfaqKosKfqQuVk3A6hD8Muh2cqqFfSNpc4vHrVJoEHT")]
    """The address of the organisation."""
    timestamp: Time
    """The time when the entry was made."""
    actor: Actor
    """The actor of the action."""
    action: ActionName
    """The action. See the table of actions."""
    object: Annotated[str | None, example("wal_VDycjSYafbJkJfSRKajygt")]
    """The id of the object that the action concerned. Null if there is none."""
    address: Annotated[str | None, example("203.0.113.7")]
    """The client's IP address. Null if no client caused the action."""
    request_id: Annotated[str | None, example("req_NaLTW5KRAT7GNcwLfd2Mhr")]
    """The id of the request that caused the action, as in its response."""
    details: Annotated[dict[str, Any], example({"label": "Shopping agent"})]
    """Further details of the action. They never contain a secret."""
    hash: Annotated[str, example("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    """The SHA-256 of the previous entry's hash and the other members as canonical JSON."""


class UnreadableAuditEntry(ResponseBody):
    """An entry that cannot be shown: it was altered in the database, or its action is unknown to this version."""

    number: Annotated[int, example(41)]
    """The position in the log."""
    reason: Annotated[str, example("its column details was rewritten to a value that no entry has")]
    """The reason, with the name of the column."""


class AuditLogPage(ListResponse[AuditLogEntry]):
    """One page of the audit log, highest number first. `unreadable` lists the entries that cannot be shown."""

    unreadable: Annotated[list[UnreadableAuditEntry], example([])]
    """Entries of the page that cannot be shown: they were altered in the database, or their action is unknown to this
    version of the service."""
