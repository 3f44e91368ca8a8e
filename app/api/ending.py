"""The body and the response shared by the operations that end a key or a person."""

from pydantic import StrictBool

from app.access.credentials import Credential, actor_of
from app.access.keyring import Role
from app.api.fields import Body, IdempotencyKey, ResponseBody, Time
from app.core.actors import Actor


class EndCredential(Body):
    """Body of a request that ends a key or a person. `endDescendants` also ends the keys and people that it created."""

    end_descendants: StrictBool = False
    idempotency_key: IdempotencyKey | None = None


class Descendant(ResponseBody):
    """A key or person that a key or person created, directly or through others."""

    actor: Actor
    role: Role
    name: str
    created_by: Actor | None
    created_at: Time

    @classmethod
    def showing(cls, one: Credential) -> "Descendant":
        """Return the response that shows a key or a person."""
        return cls.of(one, actor=actor_of(one))
