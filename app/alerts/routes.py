"""Alerts: from which thresholds on they are told, and to whom."""

from starlette.routing import Route

from app.access.auth import OPERATORS, READERS, READERS_AND_AGENT
from app.alerts import rules
from app.alerts.models import Alerts, PutAlerts, WalletAlerts
from app.api.operation import Call, operation


@operation(tag="alerts", roles=OPERATORS, body=PutAlerts, answer=Alerts, errors=("invalid_amount",), changes=True)
async def put_alerts(call: Call, body: PutAlerts) -> Alerts:
    """Set the alerts of all wallets.

    They hold for every wallet but where it has its own, and replace those set before; a type that is absent is off,
    but for `policyViolation`, which is on. An alert is told by an event, and by e-mail to its `emails`. The guide
    "Alerts" tells when.
    """
    return await rules.put(call.service, call.principal, body)


@operation(tag="alerts", roles=READERS, answer=Alerts)
async def get_alerts(call: Call) -> Alerts:
    """Get the alerts of all wallets."""
    return await rules.get(call.service, call.principal)


@operation(
    tag="alerts",
    roles=OPERATORS,
    body=PutAlerts,
    answer=WalletAlerts,
    errors=("invalid_amount", "wallet_not_found", "wallet_archived"),
    changes=True,
)
async def put_wallet_alerts(call: Call, body: PutAlerts) -> WalletAlerts:
    """Set a wallet's own alerts.

    Each type that is given holds instead of the organisation's, also where it switches the alert off; a type that is
    absent is the organisation's, and so are `emails` that are absent. They replace those set before.
    """
    return await rules.put_of_wallet(call.service, call.principal, call.path("wallet_id"), body)


@operation(tag="alerts", roles=READERS_AND_AGENT, answer=WalletAlerts, errors=("wallet_not_found",))
async def get_wallet_alerts(call: Call) -> WalletAlerts:
    """Get the alerts that hold for a wallet."""
    return await rules.get_of_wallet(call.service, call.principal, call.path("wallet_id"))


routes = [
    Route("/v1/alerts", get_alerts, methods=["GET"]),
    Route("/v1/alerts", put_alerts, methods=["PUT"]),
    Route("/v1/wallets/{wallet_id}/alerts", get_wallet_alerts, methods=["GET"]),
    Route("/v1/wallets/{wallet_id}/alerts", put_wallet_alerts, methods=["PUT"]),
]
