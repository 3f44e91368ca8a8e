"""Routes of alert rules."""

from app.access.auth import OPERATORS, READERS
from app.alerts import service as alerts
from app.alerts.models import Alerts, PutAlerts, WalletAlerts
from app.api.operation import Call, operation


@operation("PUT /v1/alerts", roles=OPERATORS, errors=("invalid_amount",))
async def put_alerts(call: Call, body: PutAlerts) -> Alerts:
    """Set the alerts of all wallets.

    An alert applies to every wallet without its own alert of the same type. The request replaces all earlier alerts of
    the organisation and leaves those of single wallets unchanged. An absent type is off. The types with the field
    `enabled` only control e-mails: their events are created even if the type is absent. Each alert is reported by an
    event, and by e-mail to its `emails`. The guide "Alerts" explains when each alert is raised.
    """
    return await alerts.put(call.service, call.principal, call.claim, body)


@operation("GET /v1/alerts", roles=READERS)
async def get_alerts(call: Call) -> Alerts:
    """Get the alerts of all wallets."""
    return await alerts.get(call.service, call.principal)


@operation(
    "PUT /v1/wallets/{wallet_id}/alerts",
    tag="alerts",
    roles=OPERATORS,
    errors=("invalid_amount", "wallet_not_found", "wallet_archived"),
)
async def put_wallet_alerts(call: Call, body: PutAlerts) -> WalletAlerts:
    """Set a wallet's own alerts.

    Each alert in the body replaces the organisation's alert of the same type, even if it only turns the alert off. An
    absent type, or absent `emails`, are inherited from the organisation. The request replaces all earlier alerts of the
    wallet.
    """
    return await alerts.put_of_wallet(call.service, call.principal, call.claim, call.path("wallet_id"), body)


@operation("GET /v1/wallets/{wallet_id}/alerts", tag="alerts", roles=READERS, errors=("wallet_not_found",))
async def get_wallet_alerts(call: Call) -> WalletAlerts:
    """Get the alerts that apply to a wallet.

    An agent's key cannot read them, because they show how to stay below the thresholds.
    """
    return await alerts.get_of_wallet(call.service, call.principal, call.path("wallet_id"))
