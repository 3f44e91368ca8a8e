"""The body and the response shared by the operations that end a key or a person."""

from typing import Annotated

from pydantic import StrictBool

from app.access.credentials import Credential, actor_of
from app.api.fields import ChangeBody, ResponseBody, Time, example
from app.core.actors import Actor, Role


class EndCredential(ChangeBody):
    """Body of a request that ends a key or a person. `endDescendants` also ends the keys and people that it created."""

    end_descendants: StrictBool = False
    """True to end the keys and people that the key or person created, too. Also accepted for a key or person that
    has already ended. Keys that replaced each other in rotations count as one key. The caller and its own descendants
    are never ended.
    """


class Descendant(ResponseBody):
    """A key or person that a key or person created, directly or through others."""

    actor: Actor
    """The key or person, as type and id."""
    role: Role
    """The role of the key or person."""
    name: Annotated[str, example("Shopping")]
    """The name of the key or person."""
    created_by: Actor | None
    """The key or person that created it, or null if it is not known."""
    created_at: Time
    """The time of the creation."""

    @classmethod
    def showing(cls, one: Credential) -> "Descendant":
        """Return the response that shows a key or a person."""
        return cls.of(one, actor=actor_of(one))
