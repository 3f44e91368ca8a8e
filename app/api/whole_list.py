"""The response of a list without pages."""

from typing import Annotated

from app.api.fields import ListResponse, T, example


class WholeList(ListResponse[T]):
    """A list without pages."""

    has_more: bool = False
    """Always false, because the list has a single page."""
    next_cursor: Annotated[str | None, example("eyJhZnRlciI6MTAyNH0")] = None
    """Always null, because the list has a single page."""
