"""Recipients: addresses with their category, and domains with their address."""

from starlette.responses import Response
from starlette.routing import Route

from app.access.auth import OPERATORS, READERS
from app.api.forms import InvalidFormError
from app.chain.rules import CATEGORIES
from app.core.timestamps import parse_iso_ms
from app.dashboard.formatting import span
from app.dashboard.pages import View, action, page
from app.recipients import service as recipients
from app.recipients.models import ListRecipients, PutRecipient
from app.store.paging import InvalidCursorError


@page(roles=READERS)
async def show(view: View) -> Response:
    """Show what is registered, and from when on it counts."""
    try:
        found = await recipients.page(view.service, view.principal, view.query(ListRecipients))
    except (InvalidFormError, InvalidCursorError):
        view.errors = {"": "The list does not know this page of it: it is shown from its start."}
        found = await recipients.page(view.service, view.principal, ListRecipients())
    now = view.service.clock.seen_ms()
    left = {one.address: span(rest) for one in found.data if (rest := parse_iso_ms(one.effective_at) - now) > 0}
    return view.render("recipients.html", recipients=found, left=left, categories=CATEGORIES)


@action(roles=OPERATORS, back=show, step_up=True)
async def register(view: View) -> str:
    """Register an address or a domain."""
    name = view.typed("recipient").strip()
    body = view.body(PutRecipient, recipient=None, address=view.typed("address").strip())
    await recipients.put(view.service, view.principal, view.claim(), name, body)
    return view.url("recipients", done="registered")


routes = [
    Route("/dashboard/recipients", show, methods=["GET"]),
    Route("/dashboard/recipients", register, methods=["POST"]),
]
