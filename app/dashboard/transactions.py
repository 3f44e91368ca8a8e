"""Transactions of all vaults, newest first, under the filters of the API."""

from starlette.responses import Response

from app.access.auth import READERS
from app.access.keyring import Principal
from app.chain.rules import CATEGORIES
from app.core.transaction_types import STATUSES, TYPES
from app.dashboard.forms.filters import listed
from app.dashboard.forms.vault_lookup import payee_names
from app.dashboard.pages import View, page
from app.store.wallets import labels
from app.submission.context import Service
from app.transactions import service as transactions
from app.transactions.models import ListTransactions, TransactionPage


@page("/transactions", roles=READERS)
async def show(view: View) -> Response:
    """Show the transactions that match the query. If a filter is invalid, show none and a message."""
    found, shown = await listed(view, ListTransactions, _load, "transactions")
    ids = {one.wallet_id for one in found.data}
    named = await view.service.db.read(lambda conn: labels(conn, ids))
    payees = await payee_names(view, (one.recipient for one in found.data))
    choices = {"type": TYPES, "status": STATUSES, "category": CATEGORIES}
    return view.render("transactions.html", transactions=found, labels=named, payees=payees, choices=choices, **shown)


async def _load(service: Service, principal: Principal, query: ListTransactions) -> TransactionPage:
    return await transactions.page(service, principal, query, query.wallet_id)
