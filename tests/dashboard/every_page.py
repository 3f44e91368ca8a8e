"""The pages of the dashboard. What must hold on every page is tested from this list: a new page is a new line."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.routing import Route

from app.dashboard import routes
from app.dashboard.site import ROOT


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page: its route after `/dashboard`, its heading, and whether it has a list in which names are shown.

    `query` narrows a long list to what has the names.
    The parameters of its route are places of an estate (`tests/dashboard/estate.py`). A page without a session is
    visited by nobody, another by an admin.
    """

    name: str
    route: str
    heading: str
    query: str = ""
    names: bool = True
    session: bool = True

    def path(self, places: Mapping[str, str]) -> str:
        """Return the address after `/dashboard`."""
        return self.route.format_map(places) + self.query


PAGES = (
    ListedPage("fleet", "", "Vaults"),
    ListedPage("overview", "/overview", "Overview", names=False),
    ListedPage("transactions", "/transactions", "Transactions"),
    ListedPage("vault-new", "/vaults/new", "New vault", names=False),
    ListedPage("vault", "/vaults/{wallet_id}", "Ad buyer"),
    ListedPage("transaction", "/transactions/{tx_id}", "Payment of", names=False),
    ListedPage("try", "/vaults/{wallet_id}/try", "Try a payment", names=False),
    ListedPage("feed", "/feed", "Feed", "?type=wallet.created"),
    ListedPage("approvals", "/approvals", "Approvals", names=False),
    ListedPage("approval", "/approvals/{approval_id}", "Payment of", names=False),
    ListedPage("funding", "/funding", "Funding", names=False),
    ListedPage("vault-funding", "/vaults/{wallet_id}/funding", "Funding", names=False),
    ListedPage("recipients", "/recipients", "Recipients", names=False),
    ListedPage("disputes", "/disputes", "Disputes", names=False),
    ListedPage("dispute", "/disputes/{escrow_id}", "Escrow of", names=False),
    ListedPage("policies", "/policies", "Policies"),
    ListedPage("policy-new", "/policies/new", "New policy", names=False),
    ListedPage("policy", "/policies/{policy_id}", "Ads", names=False),
    ListedPage("budgets", "/budgets", "Budgets"),
    ListedPage("budget", "/budgets/{budget_id}", "Team", names=False),
    ListedPage("alerts", "/alerts", "Alerts", names=False),
    ListedPage("vault-alerts", "/vaults/{wallet_id}/alerts", "Alerts of Ad buyer", names=False),
    ListedPage("developers", "/developers", "Keys"),
    ListedPage("webhooks", "/developers/webhooks", "Webhooks", names=False),
    ListedPage("webhook", "/developers/webhooks/{webhook_id}", "Webhooks", names=False),
    ListedPage("requests", "/developers/requests", "Requests", names=False),
    ListedPage("exports", "/developers/exports", "Exports", names=False),
    ListedPage("signatures", "/signatures", "Signatures", names=False),
    ListedPage("people", "/people", "People"),
    ListedPage("audit", "/audit", "Audit log", names=False),
    ListedPage("passkey", "/passkey", "Make a passkey", names=False),
    ListedPage("sign-in", "/sign-in", "Sign in", names=False, session=False),
    ListedPage("join", "/join", "You are invited", names=False, session=False),
)
#: What answers something else than a page.
_NO_PAGES = {"/static/{path:path}", "/stream", "/openid/return", "/signatures/{tx_id}/file"}


def served() -> set[str]:
    """Return the routes of all pages of the dashboard, as the list names them."""
    found = {
        one.path.removeprefix(ROOT) for one in routes.routes if isinstance(one, Route) and "GET" in (one.methods or ())
    }
    return found - _NO_PAGES
