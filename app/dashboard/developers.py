"""Pages for developers: API keys, the requests made with them, and the health of the service."""

from sqlalchemy import Connection
from starlette.responses import Response

from app.access.auth import ADMINS, READERS
from app.api_keys import service as keys
from app.api_keys.models import CreateKey, KeyPage, ListKeys, ListRequests, NewKey, RotateKey
from app.core.actors import Actor
from app.core.errors import RequestError
from app.dashboard.ending import end_and_list
from app.dashboard.forms.filters import filtered
from app.dashboard.forms.formatting import entries
from app.dashboard.forms.submit_once import once
from app.dashboard.forms.vault_lookup import vault_choices, vault_named
from app.dashboard.pages import View, action, page
from app.organisations import service as organisations
from app.store.audit import append
from app.store.guard import forgotten_transactions, mark_checked
from app.store.organisations import organisation
from app.store.wallets import labels
from app.submission.database_guard import DatabaseGuard


@page("/developers", roles=READERS)
async def show(view: View) -> Response:
    """Show the health of the service to every role, and the API keys to admins only."""
    return await _show(view)


async def _show(view: View, made: NewKey | None = None, rotated: bool = False) -> Response:
    service, by = view.service, view.principal
    found, named = KeyPage(data=[], has_more=False, next_cursor=None), {}
    if by.role in ADMINS:
        found = await keys.page(service, by, view.listed(ListKeys, limit=50))
        ids = {one.wallet_id for one in found.data if one.wallet_id is not None}
        named = await service.db.read(lambda conn: labels(conn, ids)) if ids else {}
    org = await service.db.read(lambda conn: organisation(conn, by.org))
    return view.render(
        "developers.html",
        keys=found,
        labels=named,
        made=made,
        rotated=rotated,
        vaults=await vault_choices(view) if by.role in ADMINS else [],
        restricts=org is not None and org.restricts_keys,
        identity=service.identity,
        report=await view.request.app.state.health.report(),
        guard=service.part(DatabaseGuard).state(by.org),
        forgotten=await service.db.read(lambda conn: forgotten_transactions(conn, by.org)),
    )


@action("/developers/gap-checked", roles=ADMINS, back=show, step_up=True)
async def release(view: View) -> str:
    """Mark the gap in the organisation's records as checked. A restore or lost commits caused the gap."""
    by, database_guard = view.principal, view.service.part(DatabaseGuard)

    def check(conn: Connection) -> None:
        if mark_checked(conn, by.org):
            append(conn, by.entry("backup.gap_checked"))

    await view.claim().store(check)
    await database_guard.tick()
    return view.url("developers", done="gap-checked")


@action("/developers/keys", roles=ADMINS, back=show, step_up=True)
async def create(view: View) -> Response:
    """Create a key, and show it. No other page shows it."""
    agents = view.typed("role") == "agent"
    if not agents and view.typed("wallet_id").strip():
        raise RequestError(
            "invalid_request", "wallet_id: Only an agent's key is bound to a vault. Leave this field empty."
        )
    wallet_id = (await vault_named(view, "wallet_id")).wallet_id if agents else None
    day, allowed = view.typed("expires_at"), entries(view.typed("allowed_addresses")) or None
    end = day and f"{day}T00:00:00Z"
    body = view.body(CreateKey, wallet_id=wallet_id, expires_at=end, allowed_addresses=allowed)
    made = await once(view, body, NewKey, view.asks(keys.create, body), secret=True)
    return await _show(view, made)


@action("/developers/keys/{key_id}/rotate", roles=ADMINS, back=show, step_up=True)
async def rotate(view: View) -> Response:
    """Replace a key, and show the new one. No other page shows it."""
    key_id, body = view.path("key_id"), view.body(RotateKey, overlap_seconds=view.number("overlap_seconds"))
    made = await once(view, body, NewKey, view.asks(keys.rotate, key_id, body), secret=True)
    return await _show(view, made, rotated=True)


@action("/developers/keys/{key_id}/revoke", roles=ADMINS, back=show, step_up=True)
async def revoke(view: View) -> Response | str:
    """Revoke a key immediately."""
    key = Actor("key", view.path("key_id"))
    return await end_and_list(view, key, keys.revoke, view.url("developers", done="key-revoked"))


@action("/developers/key-restrictions", roles=ADMINS, back=show, step_up=True)
async def restrict(view: View) -> str:
    """Require that each new key has an expiry and allowed addresses, or stop requiring this."""
    await organisations.restrict_keys(view.principal, view.claim(), required=bool(view.typed("required")))
    return view.url("developers", done="key-restrictions-saved")


@page("/developers/requests", roles=ADMINS)
async def requests(view: View) -> Response:
    """Show the request log of the last day. If a filter is invalid, show no request and a message."""
    found, listed = await filtered(view, ListRequests, keys.requests, "developers", "requests")
    every = await keys.page(view.service, view.principal, ListKeys(limit=100))
    return view.render("requests.html", requests=found, keys=every.data, **listed)
