"""A vault: its balance and headroom, its transactions and alerts, and its brake."""

import json
from contextlib import suppress

from sqlalchemy import Connection
from starlette.responses import Response

from app.access.auth import ADMINS, OPERATORS, READERS
from app.api_keys import service as keys
from app.budgets import service as budgets
from app.chain.errors import ChainUnavailable, RpcError
from app.core.money import MICRO_PER_USDC, format_usdc
from app.core.timestamps import DAY
from app.dashboard import audit
from app.dashboard.budgets import look, move
from app.dashboard.forms.budget import bars
from app.dashboard.forms.submit_once import once
from app.dashboard.forms.vault_lookup import payee_names
from app.dashboard.pages import View, action, page
from app.dashboard.weights import charge
from app.escrows import service as escrows
from app.escrows.models import ListEscrows
from app.events import service as events
from app.policies import service as policies
from app.store.alert_kinds import TYPE_OF
from app.store.alerts import velocity
from app.store.approval_requests import approval_requests_of
from app.store.fleet import DaySpent
from app.transactions import service as transactions
from app.transactions.models import ListWalletTransactions
from app.wallets import fleet, sessions
from app.wallets import service as wallets
from app.wallets.models import MIN_TTL, RotateToken, SessionToken, UpdateWallet

#: Maximum numbers of transactions, of alerts and of audit log entries on the page, and of pending approvals read.
_SHOWN, _ALERTED, _RECORDED, _PENDING = 10, 5, 8, 100


@page("/vaults/{wallet_id}", roles=READERS)
async def show(view: View) -> Response:
    """Show the page of a vault."""
    return await _show(view)


async def _show(view: View, token: SessionToken | None = None) -> Response:
    service, by, wallet_id = view.service, view.principal, view.path("wallet_id")
    found = await wallets.find(service, by.org, wallet_id)
    days, spent = await fleet.spent_by(service, wallet_id)
    charge(view.request, view.principal, spent.summed)
    listed = view.listed(ListWalletTransactions, limit=_SHOWN)
    now = service.clock.now_ms()

    def read(conn: Connection) -> tuple[set[tuple[str, str]], int]:
        asked = approval_requests_of(conn, by.org, now, wallet_id=wallet_id, status="pending", limit=_PENDING)
        pending = {(one.recipient, format_usdc(one.amount)) for one in asked.data}
        return pending, velocity(conn, wallet_id, now)

    waiting, hour = await service.db.read(read, in_thread=True)
    rows = await transactions.page(service, by, listed, wallet_id)
    alerts = await events.newest(service, by.org, wallet_id, list(TYPE_OF), _ALERTED)
    paid = [(one.model_extra or {}).get("recipient") for one in alerts]
    shared = None if found.budget_id is None else await look(view, found.budget_id)
    parent = None if shared is None or shared.parent_id is None else await look(view, shared.parent_id)
    return view.render(
        "vault.html",
        wallet=found,
        policy=await policies.get(service, by, found.policy.policy_id),
        days=days,
        chart=_chart(days, found.policy.rules.max_per_day),
        spent=spent,
        freeing=fleet.freeing(service, spent),
        hour=hour,
        transactions=rows,
        payees=await payee_names(view, [*(one.recipient for one in rows.data), *paid]),
        labels={wallet_id: found.label},
        objects={found.policy.policy_id: found.policy.name},
        waiting=waiting,
        alerts=alerts,
        more_alerts=view.url("feed", wallet_id=wallet_id, type=",".join(TYPE_OF)),
        stopped=await keys.stopped(service, by.org, wallet_id),
        escrows=await escrows.page(service, by, ListEscrows(wallet_id=wallet_id, limit=10)),
        policies=(await policies.list_all(service, by)).data if by.role == "admin" else [],
        budget=shared,
        bars=[] if shared is None else bars(shared),
        parent=parent,
        parent_bars=[] if parent is None else bars(parent),
        budgets=await budgets.names(service, by) if by.role == "admin" else [],
        session_live=found.session_authority is not None and found.session_expires_at > service.clock.now(),
        token=token,
        audit=await audit.about(view, wallet_id, _RECORDED) if by.role in ADMINS else [],
    )


def _chart(days: list[DaySpent], cap: int | None) -> str:
    """Return the chart's data. Its amounts are floats and only for display."""
    return json.dumps(
        {
            "days": [one.day * DAY // 1000 for one in days],
            "spent": [one.amount / MICRO_PER_USDC for one in days],
            "refused": [one.refused for one in days],
            "cap": None if cap is None else cap / MICRO_PER_USDC,
        }
    )


@action("/vaults/{wallet_id}/freeze", roles=OPERATORS, back=show, brakes=True)
async def freeze(view: View) -> str:
    """Freeze the vault. The freeze is sent ahead of the vault's waiting payments."""
    return await _update(view, UpdateWallet(status="frozen"), "frozen")


@action("/vaults/{wallet_id}/unfreeze", roles=ADMINS, back=show, step_up=True, lifts=True)
async def unfreeze(view: View) -> str:
    """Make the vault active again."""
    return await _update(view, UpdateWallet(status="active"), "unfrozen")


@action("/vaults/{wallet_id}/policy", roles=ADMINS, back=show, step_up=True)
async def attach(view: View) -> str:
    """Put the vault under another policy."""
    return await _update(view, view.body(UpdateWallet), "policy")


@action("/vaults/{wallet_id}/budget", roles=ADMINS, back=show, step_up=True)
async def share(view: View) -> str:
    """Put the vault into another budget, or into none."""
    wallet_id = view.path("wallet_id")
    return view.url("vaults", wallet_id, done=await move(view, wallet_id))


async def _update(view: View, body: UpdateWallet, notice: str) -> str:
    wallet_id = view.path("wallet_id")
    await wallets.update(view.service, view.principal, view.claim(), wallet_id, body)
    # The chain has confirmed the change. Catch up so that the next page shows it.
    with suppress(ChainUnavailable, RpcError):
        await view.service.catch_up()
    return view.url("vaults", wallet_id, done=notice)


@action("/vaults/{wallet_id}/session", roles=OPERATORS, back=show, step_up=True)
async def rotate(view: View) -> Response:
    """Rotate the session token, and show the new one. No other page shows it."""
    wallet_id = view.path("wallet_id")
    body = view.body(RotateToken, ttl_seconds=view.number("ttl_seconds"))
    made = await once(view, body, SessionToken, view.asks(sessions.rotate, wallet_id, body, None), secret=True)
    return await _show(view, made)


@action("/vaults/{wallet_id}/session/revoke", roles=OPERATORS, back=show)
async def revoke(view: View) -> str:
    """End the session by rotating its token. The new token is discarded and expires after a minute."""
    wallet_id, body = view.path("wallet_id"), RotateToken(ttl_seconds=MIN_TTL)
    await sessions.rotate(view.service, view.principal, view.claim(), wallet_id, body, None)
    return view.url("vaults", wallet_id, done="session-revoked")
