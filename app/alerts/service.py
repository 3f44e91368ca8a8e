"""Use cases of alert rules, for an organisation and for single wallets."""

from typing import Any

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.alerts._rules import Rules, effective
from app.alerts.models import Alerts, PutAlerts, WalletAlerts
from app.alerts.watcher import Watcher
from app.core.errors import AuthenticationError
from app.core.money import format_usdc
from app.core.timestamps import iso_ms, now_ms
from app.store.alert_kinds import TRIGGERS, TYPES, UNCONDITIONAL, AlertType
from app.store.alerts import AlertRule, put_rules, rules_of
from app.store.audit import append
from app.submission.claim import Claim
from app.submission.context import Service
from app.wallets import service as wallets

_IN_MONEY = ("balance_low", "large_transaction")


async def put(
    service: Service, principal: Principal, claim: Claim, body: PutAlerts, *, stepped_up: bool = True
) -> Alerts:
    """Replace the organisation's rules, and return the rules in force.

    Raises ``step_up_required`` for a weaker rule unless ``stepped_up``.
    """
    await _put(service, principal, claim, principal.org, body, stepped_up)
    return await get(service, principal)


async def get(service: Service, principal: Principal) -> Alerts:
    """Return the organisation's rules."""
    rules = await service.db.read(lambda conn: rules_of(conn, [principal.org]))
    return Alerts.model_validate(_answer(rules, principal.org, principal.org))


async def put_of_wallet(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: PutAlerts, stepped_up: bool = True
) -> WalletAlerts:
    """Replace a wallet's own rules; return the rules in force.

    Raises ``wallet_not_found`` and ``wallet_archived``. Raises ``step_up_required`` for a weaker rule unless
    ``stepped_up``.
    """
    await wallets.find_living(service, principal.org, wallet_id)
    await _put(service, principal, claim, wallet_id, body, stepped_up)
    return await get_of_wallet(service, principal, wallet_id)


async def get_of_wallet(service: Service, principal: Principal, wallet_id: str) -> WalletAlerts:
    """Return the rules that apply to a wallet. Raises ``wallet_not_found``."""
    await wallets.require(service, principal.org, wallet_id)
    rules = await service.db.read(lambda conn: rules_of(conn, [principal.org, wallet_id]))
    answer = {**_answer(rules, principal.org, wallet_id), "wallet_id": wallet_id, "id": wallet_id}
    return WalletAlerts.model_validate(answer)


async def _put(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, scope: str, body: PutAlerts, stepped_up: bool
) -> None:
    now = now_ms()
    new = [_rule(kind, given, scope, principal.org, now) for kind in TYPES if (given := getattr(body, kind))]

    def store(conn: Connection) -> None:
        before = rules_of(conn, [principal.org, scope])
        put_rules(conn, scope, new)
        append(conn, principal.entry("alerts.set", scope, types=[rule.type for rule in new]))
        after = rules_of(conn, [principal.org, scope])
        if not stepped_up and any(_weaker(before, after, kind, principal.org, scope) for kind in TYPES):
            raise AuthenticationError("step_up_required")

    await claim.store_once(store)
    if Watcher in service.parts:
        service.part(Watcher).rules_changed()


def _weaker(before: Rules, after: Rules, kind: AlertType, org: str, scope: str) -> bool:
    """Return True if the new rule reports less than the old one, or no longer notifies one of the old addresses."""
    (old, was), (new, now) = (effective(rules, kind, org, scope) for rules in (before, after))
    if set(was) - set(now):
        return True
    if old is None or not old.enabled:
        return False
    if new is None or not new.enabled or (old.freezes and not new.freezes):
        return True
    if (new.minutes or 0) < (old.minutes or 0):
        return True
    lower, higher = (new, old) if kind == "balance_low" else (old, new)
    return (lower.threshold or 0) < (higher.threshold or 0)


def _rule(kind: AlertType, given: Any, scope: str, org: str, now: int) -> AlertRule:
    threshold = None if kind in UNCONDITIONAL else given.threshold
    enabled = given.enabled if kind in UNCONDITIONAL else threshold is not None
    # Only a wallet's rule can inherit addresses.
    emails = [] if given.emails is None and scope == org else given.emails
    freezes, minutes = getattr(given, "freeze", False), getattr(given, "minutes", None)
    return AlertRule(scope, kind, org, enabled, threshold, emails, now, freezes, minutes)


def _answer(rules: Rules, org: str, scope: str) -> dict[str, Any]:
    updated = max((rule.updated_at for (owner, _), rule in rules.items() if owner == scope), default=None)
    shown: dict[str, Any] = {kind: _shown(rules, kind, org, scope) for kind in TYPES}
    return {**shown, "updated_at": None if updated is None else iso_ms(updated)}


def _shown(rules: Rules, kind: AlertType, org: str, scope: str) -> dict[str, Any]:
    rule, emails = effective(rules, kind, org, scope)
    answer: dict[str, Any] = {"emails": list(emails), "inherited": (scope, kind) not in rules}
    if kind in UNCONDITIONAL:
        return {**answer, "enabled": rule is None or rule.enabled}
    threshold = None if rule is None else rule.threshold
    shown = format_usdc(threshold) if threshold is not None and kind in _IN_MONEY else threshold
    if kind in TRIGGERS:
        answer["freeze"] = rule is not None and rule.freezes
    if kind == "refusals":
        answer["minutes"] = None if rule is None else rule.minutes
    return {**answer, "threshold": shown}
