"""The body and the response shared by the operations that end a key or a person."""

from typing import Annotated

from pydantic import StrictBool

from app.access.credentials import Credential, actor_of
from app.api.fields import ChangeBody, ResponseBody, Time, example
from app.core.actors import Actor, Role


class EndCredential(ChangeBody):
    """Body of a request that ends a key or a person. `endDescendants` also ends the keys and people created by it."""

    end_descendants: StrictBool = False
    """True to also end the keys and people created by this key or person, even if this key or person itself has already
    ended. Keys that replaced each other in rotations count as one key. The request never ends its own caller, nor the
    caller's descendants."""


class Descendant(ResponseBody):
    """A key or person created by another one, directly or through others."""

    actor: Actor
    """The key or person, as type and id."""
    role: Role
    """The role of the key or person."""
    name: Annotated[str, example("Shopping")]
    """The name of the key or person."""
    created_by: Actor | None
    """The key or person that created this one. Null if unknown."""
    created_at: Time
    """The time of the creation."""

    @classmethod
    def showing(cls, one: Credential) -> "Descendant":
        """Return a key or a person as shown in the response."""
        return cls.of(one, actor=actor_of(one))
