"""Who acts: one type wherever somebody is named."""

from dataclasses import dataclass
from typing import Literal, get_args

ActorType = Literal["key", "person", "system", "chain"]
ACTOR_TYPES: tuple[ActorType, ...] = get_args(ActorType)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did something.

    - `key`: an API key, by its id.
    - `person`: a person who is signed in, by their id.
    - `system`: the service itself; the id names its part, such as `command_line`.
    - `chain`: who signed a transaction that was made without this service, by address; `on-chain` if that is unknown.
    """

    type: ActorType
    id: str

    def __str__(self) -> str:
        """Return the text by which an actor is stored and searched, such as `key:key_…`."""
        return f"{self.type}:{self.id}"

    @classmethod
    def parse(cls, text: str) -> "Actor":
        """Return the actor that a text names. Raises ValueError for any other text."""
        kind, colon, identifier = text.partition(":")
        if kind not in ACTOR_TYPES or not colon or not identifier:
            raise ValueError("must be a type and an id, such as key:key_NaLTW5KRAT7GNcwLfd2Mhr")
        return cls(kind, identifier)
