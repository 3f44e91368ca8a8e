"""Finds the outstanding allowances that alone cause a violation, so that the error can name them."""

from app.access.keyring import Principal
from app.chain.rules import HOLDING_RULES
from app.core.money import parse_usdc
from app.store.allowances import holding_allowances
from app.store.wallets import WalletRecord
from app.submission.context import Service

HELD = (
    "Outstanding allowances count towards this limit. Settle them with "
    "`POST /v1/wallets/{wallet_id}/allowances/{allowance_id}/settle`, or wait until they have expired and are settled."
)
"""Remedy for a violation that names outstanding allowances."""


async def allowances_behind(
    service: Service,
    principal: Principal,
    wallet: WalletRecord,
    rule: str,
    *,
    budget_id: str | None,
    limit: int,
    attempted: int,
) -> list[str]:
    """Return the ids of outstanding allowances if only the money that they hold breaks a rule, else an empty list.

    ``limit`` and ``attempted`` are the violation's, and ``budget_id`` is its budget, or None for a policy's rule. An
    agent sees only its own wallet's allowances.
    """
    if rule not in HOLDING_RULES:
        return []
    shared = None if principal.role == "agent" else budget_id
    budget = next((address for address, one in wallet.levels.items() if one == shared and address), None)
    held = await service.db.read(lambda conn: holding_allowances(conn, wallet.org, wallet.wallet_id, budget))
    return [one.allowance_id for one in held] if attempted - sum(one.amount for one in held) <= limit else []


async def allowances_behind_violation(
    service: Service, principal: Principal, wallet: WalletRecord, violation: dict[str, str]
) -> list[str]:
    """Return the result of `allowances_behind` for a violation in the API's form."""
    rule = violation["rule"]
    if rule not in HOLDING_RULES:
        return []
    limit, attempted = (parse_usdc(violation[name], allow_zero=True) for name in ("limit", "attempted"))
    level = violation.get("budget_id")
    return await allowances_behind(service, principal, wallet, rule, budget_id=level, limit=limit, attempted=attempted)
