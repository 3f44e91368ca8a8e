"""Auto-topup: the rule that refills a wallet from the reserve."""

from app.access.auth import OPERATORS
from app.api.operation import Call, operation
from app.topups import service as topups
from app.topups.models import PutTopupRule, TopupRule


@operation(
    "PUT /v1/wallets/{wallet_id}/auto-topup",
    roles=OPERATORS,
    errors=("invalid_amount", "wallet_not_found", "wallet_archived"),
)
async def put_topup_rule(call: Call, body: PutTopupRule) -> TopupRule:
    """Set the auto-topup rule.

    Replaces the previous rule. While the rule is enabled and the balance is below `triggerBelow`, the reserve adds
    `topupAmount`. This repeats until the balance is no longer below `triggerBelow`. Each top-up is an ordinary
    `funding`. It is postponed while the wallet is frozen, the organisation is paused, the reserve holds less than
    `topupAmount`, or the funding would exceed the operator's daily limit.
    """
    return await topups.put(call.service, call.principal, call.claim, call.path("wallet_id"), body)


@operation("GET /v1/wallets/{wallet_id}/auto-topup", roles=OPERATORS, errors=("wallet_not_found",))
async def get_topup_rule(call: Call) -> TopupRule:
    """Get the auto-topup rule."""
    return await topups.get(call.service, call.principal, call.path("wallet_id"))
