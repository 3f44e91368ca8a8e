"""Lists with a filter, shown page by page."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from app.access.keyring import Principal
from app.api.fields import ListResponse
from app.api.forms import Arguments, InvalidFormError
from app.core.errors import ApiError
from app.dashboard.forms.error_messages import in_one
from app.dashboard.pages import View
from app.database.paging import InvalidCursorError
from app.submission.context import Service

Listed = TypeVar("Listed", bound=ListResponse[Any])


async def listed(
    view: View, model: type[Arguments], load: Callable[[Service, Principal, Arguments], Awaitable[Listed]], *path: str
) -> tuple[Listed, dict[str, Any]]:
    """Like ``filtered``, but with one message about all fields. Use it for a filter without messages at its fields."""
    before, found = view.errors, await filtered(view, model, load, *path)
    if view.errors is not before:
        view.errors = {"": in_one(view.errors)}
    return found


async def filtered(
    view: View, model: type[Arguments], load: Callable[[Service, Principal, Arguments], Awaitable[Listed]], *path: str
) -> tuple[Listed, dict[str, Any]]:
    """Return the part of a list that the page's query selects, and variables for the template.

    The variables are the ``given`` filter, the ``address`` of the list with this filter, ``first``, which is True for
    the first part, and the address of the ``following`` part or None. If the filter is invalid, the part is empty, and
    a message explains the mistake. ``path`` is the page's path.
    """
    params = view.request.query_params
    given = {name: value for name, value in params.items() if name != "cursor" and value}
    try:
        found = await load(view.service, view.principal, view.query(model))
    except (ApiError, InvalidCursorError) as error:
        if isinstance(error, ApiError) and error.status >= 500:
            raise
        message = error.message if isinstance(error, ApiError) else "This page of the list does not exist."
        view.errors = error.messages if isinstance(error, InvalidFormError) else {"": message}
        every = await load(view.service, view.principal, model())
        found = every.model_copy(update={"data": [], "has_more": False, "next_cursor": None})
    following = view.url(*path, **{**given, "cursor": found.next_cursor}) if found.next_cursor else None
    address = view.url(*path, **given)
    return found, {"given": given, "address": address, "first": "cursor" not in params, "following": following}
