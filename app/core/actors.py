"""Actors and their roles. They are named in the audit log, in approvals and in many other places."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

Role = Literal["viewer", "agent", "operator", "admin"]
"""The role of an API key or a person."""
ActorType = Literal["key", "person", "system", "chain"]
ACTOR_TYPES: tuple[ActorType, ...] = get_args(ActorType)


@dataclass(frozen=True, slots=True)
class Actor:
    """The originator of an action.

    - `key`: an API key, by its id.
    - `person`: a person who is signed in, by their id.
    - `system`: the service itself; the id names its part, such as `command_line`.
    - `chain`: the signer of a transaction made without this service, by address; `on-chain` if the signer is unknown.
    """

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    type: ActorType
    """The type: `key`, `person`, `system` or `chain`."""
    id: Annotated[str, Field(examples=["key_M3vLp8fRz2JtXk5wQnB7cG"])]
    """The id of the key or person, the part of the service, or an on-chain address."""

    def __str__(self) -> str:
        """Return the actor as text, such as `key:key_…`. The database stores and searches actors in this form."""
        return f"{self.type}:{self.id}"

    @classmethod
    def parse(cls, text: str) -> "Actor":
        """Return the actor in a text such as `key:key_…`. Raises ValueError for any other text."""
        kind, colon, identifier = text.partition(":")
        if kind not in ACTOR_TYPES or not colon or not identifier:
            raise ValueError("must be a type and an id, such as key:key_NaLTW5KRAT7GNcwLfd2Mhr")
        return cls(kind, identifier)
