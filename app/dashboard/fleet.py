"""The fleet: what every agent holds and spends, and the brakes for some of them or all."""

from collections.abc import Callable

from starlette.responses import Response
from starlette.routing import Route

from app.access.auth import ADMINS, OPERATORS, READERS
from app.api.forms import InvalidFormError
from app.core.errors import RequestError
from app.dashboard.pages import View, action, page
from app.organisations import pausing
from app.organisations.models import PauseOrganisation
from app.submission.idempotency import Claim
from app.wallets import fleet
from app.wallets import service as wallets
from app.wallets.fleet import FleetQuery
from app.wallets.models import UpdateWallet

_COLUMNS = (
    ("label", "Vault", "asc"),
    ("status", "Status", "asc"),
    ("balance", "Balance (USDC)", "desc"),
    ("spent", "Spent", "desc"),
    ("active", "Last activity", "desc"),
)


@page(roles=READERS)
async def show(view: View) -> Response:
    """Show the fleet. A query that is not understood is left out, with a message."""
    try:
        query = view.query(FleetQuery)
    except InvalidFormError as error:
        view.errors = {"": error.message}
        query = FleetQuery()
    found = await fleet.show(view.service, view.principal, query)
    return view.render("fleet.html", fleet=found, query=query, columns=_COLUMNS, address=addresses(view, query))


def addresses(view: View, query: FleetQuery, *path: str) -> Callable[..., str]:
    """Return what makes the address of the same list with something changed; ``path`` leads to its page."""

    def address(**changed: object) -> str:
        given = {**query.model_dump(exclude_defaults=True), **changed}
        return view.url(*path, **{name: str(value) for name, value in given.items() if value not in (None, "")})

    return address


@action(roles=OPERATORS, back=show)
async def freeze_selected(view: View) -> str:
    """Freeze the selected vaults."""
    chosen = view.chosen("wallet_id")
    if not chosen:
        raise RequestError("invalid_request", "Select the vaults to freeze.")
    body = UpdateWallet(status="frozen")
    for wallet_id in chosen:
        await wallets.update(view.service, view.principal, Claim(view.service.db), wallet_id, body)
    return view.url(done="frozen-selected")


@action(roles=OPERATORS, back=show)
async def pause(view: View) -> str:
    """Pause all vaults."""
    body = PauseOrganisation(paused=True)
    await pausing.set_paused(view.service, view.principal, Claim(view.service.db), paused=body.paused)
    return view.url(done="paused")


@action(roles=ADMINS, back=show, step_up=True)
async def unpause(view: View) -> str:
    """End the pause."""
    await pausing.set_paused(view.service, view.principal, Claim(view.service.db), paused=False)
    return view.url(done="unpaused")


routes = [
    Route("/dashboard", show, methods=["GET"]),
    Route("/dashboard/freeze", freeze_selected, methods=["POST"]),
    Route("/dashboard/pause", pause, methods=["POST"]),
    Route("/dashboard/unpause", unpause, methods=["POST"]),
]
