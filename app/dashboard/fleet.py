"""The fleet: balance and spending of every vault, and the brakes for some or all of them."""

import asyncio
from collections.abc import Callable

from sqlalchemy import Connection
from starlette.responses import Response

from app.access.auth import ADMINS, OPERATORS, READERS
from app.core.errors import ApiError, RequestError
from app.dashboard.pages import View, action, page
from app.dashboard.weights import charge
from app.organisations import pausing
from app.organisations.models import PauseOrganisation
from app.recipients.domains import normalise
from app.store.recipients import recipient_by_domain
from app.store.spending_groups import was_paid
from app.store.transactions import find_transactions
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


@page("", roles=READERS)
async def show(view: View) -> Response:
    """Show the fleet. If the query is invalid, show the whole fleet with a message."""
    query = view.understood(FleetQuery)
    found = await fleet.show(view.service, view.principal, query)
    charge(view.request, view.principal, found.totals.summed + sum(one.spent.summed for one in found.rows))
    org, text = view.principal.org, query.q.strip()
    elsewhere = await view.service.db.read(lambda conn: _elsewhere(conn, org, text)) if text else (None, [])
    address = addresses(view, query)
    return view.render(
        "fleet.html", fleet=found, query=query, columns=_COLUMNS, address=address, elsewhere=elsewhere, text=text
    )


def _elsewhere(conn: Connection, org: str, text: str) -> tuple[str | None, list[str]]:
    """Return the payee with this address or domain, if any, and the ids of transactions with this id or signature."""
    domain = normalise(text)
    found = None if domain is None else recipient_by_domain(conn, org, domain)
    payee = found.address if found is not None else text if was_paid(conn, org, text) else None
    return payee, find_transactions(conn, org, text)


def addresses(view: View, query: FleetQuery, *path: str) -> Callable[..., str]:
    """Return a function that builds the address of the current list with some parameters changed.

    ``path`` is the path of the list's page.
    """

    def address(**changed: object) -> str:
        given = {**query.model_dump(exclude_defaults=True), **changed}
        return view.url(*path, **{name: str(value) for name, value in given.items() if value not in (None, "")})

    return address


@action("/freeze", roles=OPERATORS, back=show, brakes=True)
async def freeze_selected(view: View) -> str:
    """Freeze the selected vaults concurrently, so that a failing freeze does not delay the others.

    If a freeze fails, the error states the outcome for each vault.
    """
    chosen = list(dict.fromkeys(view.chosen("wallet_id")))
    if not chosen:
        raise RequestError("invalid_request", "Select the vaults to freeze.")
    ended = await asyncio.gather(*(_freeze(view, one) for one in chosen))
    refused = [error for error in ended if error is not None]
    if not refused:
        return view.url(done="frozen-selected")
    # Raise the error with the highest status: an unknown outcome (5xx) is worse than a vault that does not exist (404).
    worst = max(refused, key=lambda error: error.status)
    said = (f"{one}: {'Frozen.' if error is None else error.message}" for one, error in zip(chosen, ended, strict=True))
    raise type(worst)(worst.code, " ".join(said), headers=worst.headers)


async def _freeze(view: View, wallet_id: str) -> ApiError | None:
    body = UpdateWallet(status="frozen")
    try:
        await wallets.update(view.service, view.principal, view.claim(), wallet_id, body)
    except ApiError as error:
        return error
    return None


@action("/pause", roles=OPERATORS, back=show, brakes=True)
async def pause(view: View) -> str:
    """Pause the organisation, and with it all vaults."""
    body = PauseOrganisation(paused=True)
    await pausing.set_paused(view.service, view.principal, view.claim(), paused=body.paused)
    return view.url(done="paused")


@action("/unpause", roles=ADMINS, back=show, step_up=True, lifts=True)
async def unpause(view: View) -> str:
    """End the pause of the organisation."""
    await pausing.set_paused(view.service, view.principal, view.claim(), paused=False)
    return view.url(done="unpaused")
