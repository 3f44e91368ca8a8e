"""Recipients: addresses with their category, and domains with their address."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from app.access.auth import ADMINS, OPERATORS, READERS
from app.access.keyring import Principal
from app.chain.rules import CATEGORIES
from app.core.errors import NotFoundError
from app.core.timestamps import parse_iso_ms
from app.dashboard.forms.filters import listed
from app.dashboard.forms.formatting import span
from app.dashboard.forms.review import BeforeAfter, Review, ask
from app.dashboard.pages import View, action, page
from app.recipients import service as recipients
from app.recipients.domains import normalise
from app.recipients.models import ListRecipients, PutRecipient, RecipientPage, RegisteredRecipient
from app.store.spending import filled
from app.store.spending_groups import PaidSoFar, names, paid_so_far
from app.store.transactions import TransactionFilter, transactions
from app.submission.context import Service

_HERE = "Recipients"
#: Number of payments to a recipient whose vaults are shown.
_NEWEST = 20


class _Search(ListRecipients):
    """The page of the list, narrowed to a search for an address or a part of a domain."""

    q: Annotated[str, Field(max_length=100)] = ""


@page("/recipients", roles=READERS)
async def show(view: View) -> Response:
    """Show the recipients that match a search, their payments, and the time until each registration takes effect."""
    found, shown = await listed(view, _Search, _load, "recipients")
    now, org = view.service.clock.seen_ms(), view.principal.org
    left = {one.address: span(rest) for one in found.data if (rest := parse_iso_ms(one.effective_at) - now) > 0}
    addresses, today = [one.address for one in found.data], datetime.fromtimestamp(now // 1000, UTC).date()

    def read(conn: Connection) -> tuple[dict[str, PaidSoFar], dict[str, list[str]], dict[str, str], bool]:
        paid = paid_so_far(conn, org, addresses, today)
        payers = {one: _payers(conn, org, one) for one in paid}
        labels = names(conn, org, "wallet", {one for some in payers.values() for one in some})
        return paid, payers, names(conn, org, "payee", addresses) | labels, filled(conn)

    paid, payers, vaults, complete = await view.service.db.read(read)
    return view.render(
        "recipients.html",
        recipients=found,
        left=left,
        categories=CATEGORIES,
        paid=paid,
        payers=payers,
        vaults=vaults,
        complete=complete,
        **shown,
    )


def _payers(conn: Connection, org: str, address: str) -> list[str]:
    """Return the ids of the vaults that made the newest payments to an address, most recent first."""
    wanted = TransactionFilter(recipient=address, status="confirmed", spending=True)
    return list(dict.fromkeys(one.wallet_id for one in transactions(conn, org, wanted, limit=_NEWEST).data))


async def _load(service: Service, principal: Principal, query: _Search) -> RecipientPage:
    return await recipients.page(service, principal, query, query.q.strip())


@action("/recipients", roles=OPERATORS, back=show, step_up=True)
async def register(view: View) -> Response | str:
    """Register an address or a domain. Asks for confirmation if this replaces a domain or its address."""
    name = view.typed("recipient").strip()
    body = view.body(PutRecipient, recipient=None, replaces=None, address=view.typed("address").strip())
    # Only admins may replace a registration. For other roles, the use case refuses the replacement.
    shifts = await _replaced(view, name, body.address) if view.principal.role in ADMINS else []
    replaces = " ".join(one.before for one in shifts)
    if replaces != view.typed("replaces"):
        view.form = [*((field, text) for field, text in view.form if field != "replaces"), ("replaces", replaces)]
        text = (
            "This replaces an existing registration. Payments to a moved domain then go to its new address. A replaced "
            "domain is no longer registered: it can be paid only if it publishes an address itself."
        )
        place = view.url("recipients")
        return ask(view, Review("Replace a registration", text, shifts, "Replace", place, _HERE, moves=False))
    await recipients.put(view.service, view.principal, view.claim(), name, body)
    return view.url("recipients", done="registered-instead" if shifts else "registered")


async def _replaced(view: View, name: str, address: str | None) -> list[BeforeAfter]:
    """Return the replaced domain of the address, and the replaced address of the domain, if any."""
    domain = normalise(name)
    if not address or domain is None:
        return []
    shifts, at_address, of_domain = [], await _registered(view, address), await _registered(view, domain)
    if at_address is not None and at_address.domain not in (None, domain):
        shifts.append(BeforeAfter(f"Name of {address}", str(at_address.domain), domain))
    if of_domain is not None and of_domain.address != address:
        shifts.append(BeforeAfter(f"Address of {domain}", of_domain.address, address))
    return shifts


async def _registered(view: View, name: str) -> RegisteredRecipient | None:
    try:
        return await recipients.get(view.service, view.principal, name)
    except NotFoundError:
        return None
