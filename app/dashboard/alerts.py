"""Alert rules: the thresholds of alerts and their e-mail addresses, for all vaults or for one."""

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.responses import Response

from app.access.auth import OPERATORS, READERS
from app.alerts import service as alerts
from app.alerts.models import Alerts, PutAlerts
from app.api.forms import validated
from app.dashboard.forms.formatting import entries
from app.dashboard.pages import View, action, page
from app.store.alert_kinds import TRIGGERS, TYPES, UNCONDITIONAL, AlertType
from app.store.slack_channels import SlackChannel, slack_channels
from app.store.wallets import WalletRecord
from app.wallets import service as wallets


@page("/alerts", roles=READERS)
async def show(view: View) -> Response:
    """Show the organisation's alert rules, which apply to every vault without a rule of its own."""
    org = view.principal.org
    channels = await view.service.db.read(lambda conn: slack_channels(conn, [org]))
    return _render(view, await alerts.get(view.service, view.principal), None, channels)


@action("/alerts", roles=OPERATORS, back=show)
async def save(view: View) -> str:
    """Replace the organisation's alert rules. Vaults keep their own rules."""
    await alerts.put(view.service, view.principal, view.claim(), _body(view, TYPES), stepped_up=view.stepped_up)
    return view.url("alerts", done="alerts-saved")


@page("/vaults/{wallet_id}/alerts", roles=READERS)
async def show_of_vault(view: View) -> Response:
    """Show the alert rules that apply to a vault."""
    by, wallet_id = view.principal, view.path("wallet_id")
    wallet = await wallets.find(view.service, by.org, wallet_id)
    return _render(view, await alerts.get_of_wallet(view.service, by, wallet_id), wallet)


@action("/vaults/{wallet_id}/alerts", roles=OPERATORS, back=show_of_vault)
async def save_of_vault(view: View) -> str:
    """Replace a vault's own alert rules.

    For each type without a rule of the vault's own, the organisation's rule applies.
    """
    wallet_id = view.path("wallet_id")
    body = _body(view, [kind for kind in TYPES if view.typed(f"{kind}_own")])
    await alerts.put_of_wallet(view.service, view.principal, view.claim(), wallet_id, body, view.stepped_up)
    return view.url("vaults", wallet_id, "alerts", done="alerts-saved")


def _render(view: View, rules: Alerts, wallet: WalletRecord | None, channels: Sequence[SlackChannel] = ()) -> Response:
    return view.render(
        "alerts.html",
        rules=[(kind, getattr(rules, kind)) for kind in TYPES],
        updated_at=rules.updated_at,
        wallet=wallet,
        channels=channels,
        mails=view.service.settings.smtp_host is not None,
    )


def _body(view: View, kinds: Iterable[AlertType]) -> PutAlerts:
    """Return the typed rules of these alert types. Raises InvalidFormError with all faults."""
    return validated(PutAlerts, {kind: _typed(view, kind) for kind in kinds})


def _typed(view: View, kind: AlertType) -> dict[str, Any]:
    """Return a rule as typed. An empty threshold turns the rule off. Without addresses, the organisation's are used."""
    found: dict[str, Any] = {"emails": entries(view.typed(f"{kind}_emails")) or None}
    if kind in UNCONDITIONAL:
        return {**found, "enabled": bool(view.typed(f"{kind}_enabled"))}
    name, minutes = f"{kind}_threshold", view.number(f"{kind}_minutes")
    typed = view.typed(name) if kind in ("balance_low", "large_transaction") else view.number(name)
    found["threshold"] = None if typed == "" else typed
    if kind in TRIGGERS:
        found["freeze"] = bool(view.typed(f"{kind}_freeze"))
    return found | ({"minutes": minutes} if kind == "refusals" and minutes != "" else {})
