"""Alert rules: the thresholds of alerts and their e-mail addresses, for all vaults or for one."""

import re
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import ValidationError
from starlette.responses import Response

from app.access.auth import OPERATORS, READERS
from app.alerts import service as alerts
from app.alerts.models import (
    Alerts,
    PutAlerts,
    PutInactivityAlert,
    PutLargeAlert,
    PutMoneyAlert,
    PutVelocityAlert,
    PutViolationAlert,
)
from app.api.fields import Body
from app.api.forms import InvalidFormError, merged
from app.dashboard.pages import View, action, page
from app.store.alert_kinds import INACTIVITY, LARGE_TRANSACTION, POLICY_VIOLATION, VELOCITY_SPIKE, AlertType
from app.store.wallets import WalletRecord
from app.wallets import service as wallets

_KINDS: tuple[AlertType, ...] = get_args(AlertType)
_MODELS: dict[AlertType, type[Body]] = {
    POLICY_VIOLATION: PutViolationAlert,
    INACTIVITY: PutInactivityAlert,
    VELOCITY_SPIKE: PutVelocityAlert,
    LARGE_TRANSACTION: PutLargeAlert,
}
_SEPARATORS = re.compile(r"[\s,;]+")


@page("/alerts", roles=READERS)
async def show(view: View) -> Response:
    """Show the organisation's alert rules, which apply to every vault without a rule of its own."""
    return _render(view, await alerts.get(view.service, view.principal), None)


@action("/alerts", roles=OPERATORS, back=show)
async def save(view: View) -> str:
    """Replace the organisation's alert rules. Vaults keep their own rules."""
    await alerts.put(view.service, view.principal, _body(view, _KINDS), stepped_up=view.stepped_up)
    return view.url("alerts", done="alerts-saved")


@page("/vaults/{wallet_id}/alerts", roles=READERS)
async def show_of_vault(view: View) -> Response:
    """Show the alert rules that apply to a vault."""
    by, wallet_id = view.principal, view.path("wallet_id")
    wallet = await wallets.find(view.service, by.org, wallet_id)
    return _render(view, await alerts.get_of_wallet(view.service, by, wallet_id), wallet)


@action("/vaults/{wallet_id}/alerts", roles=OPERATORS, back=show_of_vault)
async def save_of_vault(view: View) -> str:
    """Replace a vault's own alert rules. For a type without an own rule, the rule for all vaults applies."""
    wallet_id = view.path("wallet_id")
    body = _body(view, [kind for kind in _KINDS if view.typed(f"{kind}_own")])
    await alerts.put_of_wallet(view.service, view.principal, wallet_id, body, stepped_up=view.stepped_up)
    return view.url("vaults", wallet_id, "alerts", done="alerts-saved")


def _render(view: View, rules: Alerts, wallet: WalletRecord | None) -> Response:
    return view.render(
        "alerts.html",
        rules=[(kind, getattr(rules, kind)) for kind in _KINDS],
        updated_at=rules.updated_at,
        wallet=wallet,
        mails=view.service.settings.smtp_host is not None,
    )


def _body(view: View, kinds: Iterable[AlertType]) -> PutAlerts:
    """Return the typed rules of these alert types. Raises InvalidFormError with all faults."""
    given: dict[str, Body] = {}
    faults: dict[str, InvalidFormError] = {}
    for kind in kinds:
        try:
            given[kind] = _MODELS.get(kind, PutMoneyAlert).model_validate(_typed(view, kind))
        except ValidationError as error:
            faults[kind] = InvalidFormError(error)
    if faults:
        raise merged(faults)
    return PutAlerts.model_validate(given)


def _typed(view: View, kind: AlertType) -> dict[str, Any]:
    """Return a rule as typed. An empty threshold turns it off. Empty addresses mean the addresses for all vaults."""
    found: dict[str, Any] = {"emails": [one for one in _SEPARATORS.split(view.typed(f"{kind}_emails")) if one] or None}
    if kind == POLICY_VIOLATION:
        return {**found, "enabled": bool(view.typed(f"{kind}_enabled"))}
    name = f"{kind}_threshold"
    if kind == LARGE_TRANSACTION:
        found["freeze"] = bool(view.typed(f"{kind}_freeze"))
    typed = view.number(name) if kind in (INACTIVITY, VELOCITY_SPIKE) else view.typed(name)
    return {**found, "threshold": None if typed == "" else typed}
