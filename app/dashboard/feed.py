"""The feed: what happened, newest first, and what happens now."""

import json

from starlette.responses import Response
from starlette.routing import Route

from app.access.auth import READERS
from app.api.forms import InvalidFormError
from app.core.errors import ApiError
from app.dashboard.pages import View, page
from app.events import service as events
from app.events.catalogue import EVENTS
from app.events.models import Event, ListEvents
from app.store.wallets import labels

_FIELDS = ("wallet_id", "from_wallet", "to_wallet")


@page(roles=READERS)
async def show(view: View) -> Response:
    """Show the feed. A filter that is not understood is left out, with a message."""
    try:
        query = view.query(ListEvents)
        found = await events.page(view.service, view.principal, query)
    except ApiError as error:
        if error.status >= 500:
            raise
        message = next(iter(error.messages.items())) if isinstance(error, InvalidFormError) else ("", error.message)
        view.errors = {"": ": ".join(one for one in message if one)}
        query = ListEvents()
        found = await events.page(view.service, view.principal, query)
    ids = {str(value) for one in found.data for name in _FIELDS if (value := (one.model_extra or {}).get(name))}
    named = await view.service.db.read(lambda conn: labels(conn, ids))
    given = {name: value for name, value in view.request.query_params.items() if name != "cursor" and value}
    return view.render(
        "feed.html",
        events=[(one, _details(one), (one.model_extra or {}).get("wallet_id")) for one in found.data],
        following=view.url("feed", **{**given, "cursor": found.next_cursor}) if found.next_cursor else None,
        address=view.url("feed", **given),
        first="cursor" not in view.request.query_params,
        given=given,
        labels=named,
        types=sorted(EVENTS),
    )


def _details(event: Event) -> str:
    return json.dumps(event.model_dump(), indent=2, ensure_ascii=False)


routes = [Route("/dashboard/feed", show, methods=["GET"])]
