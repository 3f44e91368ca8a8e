"""The response of a list without pages."""

from typing import Annotated

from app.api.fields import ListResponse, T, example


class WholeList(ListResponse[T]):
    """A list without pages."""

    has_more: bool = False
    """True if there is a next page."""
    next_cursor: Annotated[str | None, example("eyJhZnRlciI6MTAyNH0")] = None
    """The value of `cursor` for the next page; null on the last page."""
