"""The role matrix: every operation and every page of the dashboard, by seven callers.

The tables state the roles independently of the code. A new route fails the first test until it has its line here.
"""

import re
from collections.abc import Mapping, Sequence

import pytest
from sqlalchemy import Connection
from starlette.routing import Route

from app.access.keyring import KeyRing, system
from app.core.actors import Role
from app.core.timestamps import now_ms
from app.dashboard.routes import routes as dashboard
from app.people.sessions import digest
from app.server.application import operations
from app.store.keys import api_keys
from app.store.people import end_sessions, open_sessions
from tests.dashboard.browsing import Crafted, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CALLERS = ("nobody", "ended", "viewer", "agent", "operator", "admin", "foreign admin")
_EVERYONE = "viewer agent operator admin"
_OPERATIONS: Mapping[str, str] = {
    "GET /v1/payments/a2a": _EVERYONE,
    "GET /v1/payments/a2a/{escrow_id}": _EVERYONE,
    "GET /v1/wallets/{wallet_id}/allowances": _EVERYONE,
    "POST /v1/payments/simulate": _EVERYONE,
    "GET /v1/payments/{tx_id}": _EVERYONE,
    "GET /v1/approvals": _EVERYONE,
    "GET /v1/approvals/{approval_id}": _EVERYONE,
    "GET /v1/wallets": _EVERYONE,
    "GET /v1/wallets/{wallet_id}": _EVERYONE,
    "GET /v1/wallets/{wallet_id}/sol": _EVERYONE,
    "GET /v1/policies/{policy_id}": _EVERYONE,
    "POST /v1/transactions/export": _EVERYONE,
    "GET /v1/transactions/exports": _EVERYONE,
    "GET /v1/transactions/exports/{export_id}": _EVERYONE,
    "GET /v1/transactions": _EVERYONE,
    "GET /v1/transactions/{tx_id}": _EVERYONE,
    "GET /v1/wallets/{wallet_id}/transactions": _EVERYONE,
    "GET /v1/events": _EVERYONE,
    "GET /v1/wallets/{wallet_id}/alerts": "viewer operator admin",
    "GET /v1/recipients/{recipient}": _EVERYONE,
    "POST /v1/payments/a2a": "agent operator admin",
    "POST /v1/payments/a2a/{escrow_id}/complete": "agent operator admin",
    "POST /v1/payments/a2a/{escrow_id}/dispute": "agent operator admin",
    "POST /v1/payments/a2a/{escrow_id}/dispute/withdraw": "agent operator admin",
    "POST /v1/wallets/{wallet_id}/allowances/{allowance_id}/settle": "agent operator admin",
    "POST /v1/payments": "agent operator admin",
    "POST /v1/wallets/{wallet_id}/pay": "agent operator admin",
    "POST /v1/paid-requests/fetch": "agent operator admin",
    "POST /v1/paid-requests/payments": "agent operator admin",
    "POST /v1/paid-requests/quote": "agent operator admin",
    "POST /v1/x402/fetch": "agent operator admin",
    "POST /v1/x402/payments": "agent operator admin",
    "POST /v1/x402/quote": "agent operator admin",
    "POST /v1/wallets/{wallet_id}/rotate-token": "agent operator admin",
    "POST /v1/payments/a2a/{escrow_id}/resolve": "admin",
    "POST /v1/budgets": "admin",
    "PATCH /v1/budgets/{budget_id}": "operator admin",
    "DELETE /v1/budgets/{budget_id}": "admin",
    "POST /v1/policies": "admin",
    "PATCH /v1/policies/{policy_id}": "admin",
    "DELETE /v1/policies/{policy_id}": "admin",
    "POST /v1/policies/{policy_id}/clone": "admin",
    "GET /v1/audit-log": "admin",
    "GET /v1/keys": "admin",
    "POST /v1/keys": "admin",
    "POST /v1/keys/{key_id}/rotate": "admin",
    "DELETE /v1/keys/{key_id}": "admin",
    "GET /v1/request-log": "admin",
    "GET /v1/people": "admin",
    "DELETE /v1/people/{person_id}": "admin",
    "PUT /v1/organization/key-restrictions": "admin",
    "GET /v1/signed-transactions": "admin",
    "POST /v1/signed-transactions": "admin",
    "POST /v1/test/clock": "admin",
    "DELETE /v1/signed-transactions/{id}": "admin",
    "POST /v1/wallets/{wallet_id}/allowances": "operator admin",
    "POST /v1/approvals/{approval_id}/approve": "operator admin",
    "POST /v1/approvals/{approval_id}/reject": "operator admin",
    "POST /v1/wallets": "operator admin",
    "POST /v1/wallets/fund-batch": "operator admin",
    "PATCH /v1/wallets/{wallet_id}": "operator admin",
    "DELETE /v1/wallets/{wallet_id}": "operator admin",
    "POST /v1/wallets/{wallet_id}/forget-recipient": "operator admin",
    "POST /v1/wallets/{wallet_id}/fund": "operator admin",
    "POST /v1/wallets/{wallet_id}/withdraw": "operator admin",
    "GET /v1/wallets/{wallet_id}/auto-topup": "operator admin",
    "PUT /v1/wallets/{wallet_id}/auto-topup": "operator admin",
    "POST /v1/policies/{policy_id}/preview": "operator admin",
    "PUT /v1/alerts": "operator admin",
    "PUT /v1/wallets/{wallet_id}/alerts": "operator admin",
    "PUT /v1/recipients/{recipient}": "operator admin",
    "POST /v1/webhooks": "operator admin",
    "PATCH /v1/webhooks/{webhook_id}": "operator admin",
    "DELETE /v1/webhooks/{webhook_id}": "operator admin",
    "POST /v1/webhooks/{webhook_id}/test": "operator admin",
    "POST /v1/webhooks/{webhook_id}/rotate-secret": "operator admin",
    "POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/resend": "operator admin",
    "POST /v1/webhooks/{webhook_id}/deliveries/replay": "operator admin",
    "POST /v1/organization/pause": "operator admin",
    "GET /v1/insights/spending": "viewer operator admin",
    "GET /v1/budgets": "viewer operator admin",
    "GET /v1/budgets/{budget_id}": "viewer operator admin",
    "GET /v1/policies": "viewer operator admin",
    "GET /v1/policies/{policy_id}/audit-log": "viewer operator admin",
    "GET /v1/alerts": "viewer operator admin",
    "GET /v1/recipients": "viewer operator admin",
    "GET /v1/webhooks": "viewer operator admin",
    "GET /v1/webhooks/{webhook_id}": "viewer operator admin",
    "GET /v1/webhooks/{webhook_id}/deliveries": "viewer operator admin",
    "GET /v1/organization": "viewer operator admin",
    "PATCH /v1/organization": "admin",
}
_PAGES: Mapping[str, str | None] = {
    "GET /dashboard": "viewer operator admin",
    "GET /dashboard/vaults/{wallet_id}": "viewer operator admin",
    "GET /dashboard/overview": "viewer operator admin",
    "GET /dashboard/transactions": "viewer operator admin",
    "GET /dashboard/feed": "viewer operator admin",
    "POST /dashboard/feed/read": "viewer operator admin",
    "GET /dashboard/stream": "viewer operator admin",
    "GET /dashboard/approvals": "viewer operator admin",
    "GET /dashboard/approvals/{approval_id}": "viewer operator admin",
    "GET /dashboard/policies": "viewer operator admin",
    "GET /dashboard/policies/{policy_id}": "viewer operator admin",
    "GET /dashboard/budgets": "viewer operator admin",
    "GET /dashboard/budgets/{budget_id}": "viewer operator admin",
    "GET /dashboard/funding": "viewer operator admin",
    "GET /dashboard/vaults/{wallet_id}/funding": "viewer operator admin",
    "GET /dashboard/transactions/{tx_id}": "viewer operator admin",
    "GET /dashboard/vaults/{wallet_id}/try": "viewer operator admin",
    "GET /dashboard/recipients": "viewer operator admin",
    "GET /dashboard/disputes": "viewer operator admin",
    "GET /dashboard/disputes/{escrow_id}": "viewer operator admin",
    "GET /dashboard/alerts": "viewer operator admin",
    "GET /dashboard/vaults/{wallet_id}/alerts": "viewer operator admin",
    "GET /dashboard/developers": "viewer operator admin",
    "GET /dashboard/developers/webhooks": "viewer operator admin",
    "GET /dashboard/developers/webhooks/{webhook_id}": "viewer operator admin",
    "GET /dashboard/developers/exports": "viewer operator admin",
    "POST /dashboard/developers/exports": "viewer operator admin",
    "GET /dashboard/passkey": "viewer operator admin",
    "POST /dashboard/passkey/options": "viewer operator admin",
    "POST /dashboard/passkey": "viewer operator admin",
    "POST /dashboard/step-up/options": "viewer operator admin",
    "POST /dashboard/step-up": "viewer operator admin",
    "POST /dashboard/sign-out": "viewer operator admin",
    "POST /dashboard/step-up/openid": "viewer operator admin",
    "GET /dashboard/people": "viewer operator admin",
    "POST /dashboard/sessions/{session_id}/end": "viewer operator admin",
    "POST /dashboard/freeze": "operator admin",
    "POST /dashboard/pause": "operator admin",
    "GET /dashboard/vaults/new": "operator admin",
    "POST /dashboard/vaults": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/freeze": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/session": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/session/revoke": "operator admin",
    "POST /dashboard/approvals/{approval_id}/approve": "operator admin",
    "POST /dashboard/approvals/{approval_id}/reject": "operator admin",
    "POST /dashboard/funding/review": "operator admin",
    "POST /dashboard/funding/fund": "operator admin",
    "POST /dashboard/funding/sol": "admin",
    "POST /dashboard/vaults/{wallet_id}/fund/review": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/fund": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/withdraw/review": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/withdraw": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/auto-topup/review": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/auto-topup": "operator admin",
    "POST /dashboard/recipients": "operator admin",
    "POST /dashboard/alerts": "operator admin",
    "POST /dashboard/vaults/{wallet_id}/alerts": "operator admin",
    "POST /dashboard/developers/webhooks": "operator admin",
    "POST /dashboard/developers/webhooks/{webhook_id}/ping": "operator admin",
    "POST /dashboard/developers/webhooks/{webhook_id}/enable": "operator admin",
    "POST /dashboard/developers/webhooks/{webhook_id}/secret": "operator admin",
    "POST /dashboard/developers/webhooks/{webhook_id}/delete": "operator admin",
    "POST /dashboard/developers/webhooks/{webhook_id}/deliveries/{delivery_id}/resend": "operator admin",
    "POST /dashboard/alerts/slack": "admin",
    "POST /dashboard/alerts/slack/{channel_id}/remove": "admin",
    "POST /dashboard/alerts/slack/{channel_id}/test": "admin",
    "POST /dashboard/unpause": "admin",
    "POST /dashboard/vaults/{wallet_id}/unfreeze": "admin",
    "POST /dashboard/vaults/{wallet_id}/policy": "admin",
    "POST /dashboard/vaults/{wallet_id}/budget": "admin",
    "GET /dashboard/policies/new": "admin",
    "POST /dashboard/policies/check": "admin",
    "POST /dashboard/policies/{policy_id}/review": "admin",
    "POST /dashboard/policies/{policy_id}/preview": "admin",
    "POST /dashboard/policies/{policy_id}/edit": "admin",
    "POST /dashboard/policies/{policy_id}": "admin",
    "POST /dashboard/policies": "admin",
    "POST /dashboard/policies/{policy_id}/delete": "admin",
    "POST /dashboard/budgets/check": "admin",
    "POST /dashboard/budgets": "admin",
    "POST /dashboard/budgets/{budget_id}/review": "admin",
    "POST /dashboard/budgets/{budget_id}": "admin",
    "POST /dashboard/budgets/{budget_id}/delete": "admin",
    "POST /dashboard/budgets/{budget_id}/freeze": "operator admin",
    "POST /dashboard/budgets/{budget_id}/unfreeze": "admin",
    "POST /dashboard/budgets/{budget_id}/vaults": "admin",
    "POST /dashboard/budgets/{budget_id}/vaults/{wallet_id}/take-out": "admin",
    "POST /dashboard/disputes/{escrow_id}/review": "admin",
    "POST /dashboard/disputes/{escrow_id}/decide": "admin",
    "POST /dashboard/developers/gap-checked": "admin",
    "POST /dashboard/developers/keys": "admin",
    "POST /dashboard/developers/key-restrictions": "admin",
    "POST /dashboard/developers/keys/{key_id}/rotate": "admin",
    "POST /dashboard/developers/keys/{key_id}/revoke": "admin",
    "GET /dashboard/developers/requests": "admin",
    "GET /dashboard/signatures": "admin",
    "GET /dashboard/signatures/{tx_id}/file": "admin",
    "POST /dashboard/signatures": "admin",
    "POST /dashboard/signatures/{tx_id}/withdraw": "admin",
    "POST /dashboard/people/invite": "admin",
    "POST /dashboard/invitations/{invitation_id}/withdraw": "admin",
    "POST /dashboard/people/{person_id}/remove": "admin",
    "GET /dashboard/audit": "admin",
    "GET /dashboard/sign-in": None,
    "POST /dashboard/sign-in": None,
    "POST /dashboard/sign-in/options": None,
    "POST /dashboard/sign-in/passkey": None,
    "GET /dashboard/join": None,
    "POST /dashboard/join/options": None,
    "POST /dashboard/join": None,
    "POST /dashboard/sign-in/openid": None,
    "POST /dashboard/join/openid": None,
    "GET /dashboard/openid/return": None,
    "POST /dashboard/openid/return": None,
    "GET /dashboard/static/{path:path}": None,
}
"""None: the page needs no session."""
#: Not called by those who may: the first never ends, the second ends the caller's session.
_LASTING = ("GET /dashboard/stream", "POST /dashboard/sign-out")


def _path(route: str, **ids: str) -> tuple[str, str]:
    """Return the method and the path of a route, with ids of nothing for the parameters that ``ids`` lacks."""
    method, _, path = route.partition(" ")
    return method, re.sub(r"\{(\w+)(:\w+)?\}", lambda name: ids.get(name[1], "unknown"), path)


def _named(routes: Sequence[Route]) -> list[str]:
    return sorted(f"{method} {one.path}" for one in routes for method in (one.methods or set()) - {"HEAD"})


async def test_every_operation_and_page_is_in_the_matrix() -> None:
    assert sorted(_OPERATIONS) == _named(operations)
    assert sorted(_PAGES) == _named(dashboard)


async def _keys(world: ServiceWorld) -> tuple[dict[str, str | None], str]:
    """Return the key of each caller, and the wallet of the agent."""
    wallet_id = (await world.wallet())["wallet_id"]
    other = await world.organisation("foreign")
    roles: tuple[Role, ...] = ("viewer", "operator", "admin")
    keys: dict[str, str | None] = {role: world.key(role) for role in roles}
    keys |= {"nobody": None, "ended": world.key("admin"), "agent": world.key("agent", wallet_id)}
    ring, gone = world.service.part(KeyRing), str(keys["ended"])
    [ended] = [
        one
        for one in world.service.db.read_now(lambda conn: api_keys(conn, world.org))
        if one.digest == ring.digest(gone)
    ]
    await world.service.db.write(lambda conn: ring.revoke(conn, system(world.org, "test"), ended.key_id))
    ring.forget()
    return {**keys, "foreign admin": world.key("admin", org=other)}, wallet_id


async def test_every_operation_is_allowed_to_its_roles_and_nobody_else(own_world: ServiceWorld) -> None:
    world = own_world
    keys, wallet_id = await _keys(world)
    faults = []
    for route, roles in _OPERATIONS.items():
        for caller in _CALLERS:
            key = keys[caller]
            # Callers who may do more than read must not archive the wallet.
            own = {"wallet_id": wallet_id, "policy_id": "pol_permissive"}
            ids = {} if caller in {"operator", "admin"} else own
            method, path = _path(route, **ids)
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            answer = await world.client.request(method, path, headers=headers)
            code = answer.json().get("error", {}).get("code")
            if caller in {"nobody", "ended"}:
                right = (answer.status_code, code) == (401, "authentication_failed")
            else:
                allowed = caller.rpartition(" ")[2] in roles.split()
                refused = (answer.status_code, code) == (403, "insufficient_permissions")
                right = refused != allowed and code != "authentication_failed" and answer.status_code != 500
                # An object of another organisation is not there
                right = right and not (caller == "foreign admin" and "{wallet_id}" in route and code is None)
            faults += [] if right else [f"{route}, {caller}: {answer.status_code} {answer.text}"]
    assert "\n".join(faults) == ""


def _end(conn: Connection, token_digest: str) -> None:
    [found] = open_sessions(conn, [token_digest], now_ms())
    assert end_sessions(conn, found.org, found.actor, now_ms())


async def test_every_page_is_shown_to_its_roles_and_nobody_else(own_world: ServiceWorld) -> None:
    world = own_world
    keys, wallet_id = await _keys(world)
    foreign = await world.organisation("foreign-pages")
    callers = {"nobody": Crafted(world), "agent": Crafted(world), "ended": Crafted(world, sign_in(world, "admin"))}
    gone = callers["ended"].client.cookies["agent-vault-session"]
    callers["agent"].client.headers["authorization"] = f"Bearer {keys['agent']}"
    callers |= {role: Crafted(world, sign_in(world, role)) for role in ("viewer", "operator", "admin")}
    callers["foreign admin"] = Crafted(world, sign_in(world, "admin", org=foreign))
    csrf = {
        name: await one.csrf("/dashboard/sign-in" if name in {"nobody", "agent"} else "/dashboard")
        for name, one in callers.items()
    }
    await world.service.db.write(lambda conn: _end(conn, digest(gone)))
    faults = []
    for route, roles in _PAGES.items():
        for caller in _CALLERS if roles is not None else ():
            signed_in = caller in {"viewer", "operator", "admin", "foreign admin"}
            allowed = signed_in and caller.rpartition(" ")[2] in str(roles).split()
            if allowed and route in _LASTING:
                continue
            method, path = _path(route, wallet_id=wallet_id)
            if method == "GET":
                answer = await callers[caller].client.get(path)
            else:
                answer = await callers[caller].post(path, csrf=csrf[caller], accept="application/json")
            status = answer.status_code
            if not signed_in:
                right = status == (303 if method == "GET" else 401)
                right = right and (method != "GET" or answer.headers["location"].endswith("/sign-in"))
            else:
                right = (status == 403) != allowed and status not in {401, 500}
                right = right and not (caller == "foreign admin" and "{wallet_id}" in route and status == 200)
            faults += [] if right else [f"{route}, {caller}: {status} {answer.text[:300]}"]
    assert "\n".join(faults) == ""
