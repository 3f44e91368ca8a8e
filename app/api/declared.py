"""The declarations of operations. The OpenAPI document is made from them."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from app.api.fields import Body, Query
from app.core.actors import Role

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of an operation.

    ``errors`` has the error codes by HTTP status. ``session``, ``version``, ``tagged`` and ``repeats`` are True if the
    operation has the headers Session-Token, If-Match, ETag and Idempotency-Key. ``signable`` is True if it accepts the
    query `sign=offline`.
    """

    name: str
    tag: str
    roles: Collection[Role]
    weight: int
    meaning: str
    model: type[Body] | type[Query] | None
    answer: type[BaseModel]
    errors: Mapping[int, Sequence[str]]
    session: bool
    version: bool
    tagged: bool
    repeats: bool
    signable: bool

    @staticmethod
    def of(endpoint: Endpoint) -> "Declared":
        """Return the declaration of an endpoint that `operation` made."""
        declared: Declared = endpoint.__dict__["declared"]
        return declared
