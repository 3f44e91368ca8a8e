"""Use cases of alert rules, for an organisation and for single wallets."""

from typing import Any, get_args

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.alerts._rules import Rules, effective
from app.alerts.models import Alerts, PutAlerts, WalletAlerts
from app.alerts.watcher import Watcher
from app.core.money import format_usdc
from app.core.timestamps import iso_ms, now_ms
from app.store.alert_kinds import BALANCE_LOW, LARGE_TRANSACTION, POLICY_VIOLATION, AlertType
from app.store.alerts import AlertRule, put_rules, rules_of
from app.store.audit import append
from app.submission.context import Service
from app.wallets import service as wallets

_TYPES: tuple[AlertType, ...] = get_args(AlertType)
_IN_MONEY = (BALANCE_LOW, LARGE_TRANSACTION)


async def put(service: Service, principal: Principal, body: PutAlerts) -> Alerts:
    """Replace the organisation's rules, and return the new ones."""
    rules = await _put(service, principal, principal.org, body)
    return Alerts.model_validate(_answer(rules, principal.org, principal.org))


async def get(service: Service, principal: Principal) -> Alerts:
    """Return the organisation's rules."""
    rules = await service.db.read(lambda conn: rules_of(conn, [principal.org]))
    return Alerts.model_validate(_answer(rules, principal.org, principal.org))


async def put_of_wallet(service: Service, principal: Principal, wallet_id: str, body: PutAlerts) -> WalletAlerts:
    """Replace a wallet's own rules; return the rules in force. Raises ``wallet_not_found`` and ``wallet_archived``."""
    await wallets.find_living(service, principal.org, wallet_id)
    rules = await _put(service, principal, wallet_id, body)
    return _wallet_answer(rules, principal.org, wallet_id)


async def get_of_wallet(service: Service, principal: Principal, wallet_id: str) -> WalletAlerts:
    """Return the rules that apply to a wallet. Raises ``wallet_not_found``."""
    await wallets.require(service, principal.org, wallet_id)
    rules = await service.db.read(lambda conn: rules_of(conn, [principal.org, wallet_id]))
    return _wallet_answer(rules, principal.org, wallet_id)


async def _put(service: Service, principal: Principal, scope: str, body: PutAlerts) -> Rules:
    now = now_ms()
    new = [_rule(kind, given, scope, principal.org, now) for kind in _TYPES if (given := getattr(body, kind))]

    def store(conn: Connection) -> Rules:
        put_rules(conn, scope, new)
        append(conn, principal.entry("alerts.set", scope, types=[rule.type for rule in new]))
        return rules_of(conn, [principal.org, scope])

    stored = await service.db.write(store)
    if Watcher in service.parts:
        service.part(Watcher).rules_changed()
    return stored


def _rule(kind: AlertType, given: Any, scope: str, org: str, now: int) -> AlertRule:
    threshold = None if kind == POLICY_VIOLATION else given.threshold
    enabled = given.enabled if kind == POLICY_VIOLATION else threshold is not None
    # Only a wallet's rule can inherit addresses.
    emails = [] if given.emails is None and scope == org else given.emails
    return AlertRule(scope, kind, org, enabled, threshold, emails, now)


def _wallet_answer(rules: Rules, org: str, wallet_id: str) -> WalletAlerts:
    return WalletAlerts.model_validate({**_answer(rules, org, wallet_id), "wallet_id": wallet_id, "id": wallet_id})


def _answer(rules: Rules, org: str, scope: str) -> dict[str, Any]:
    updated = max((rule.updated_at for (owner, _), rule in rules.items() if owner == scope), default=None)
    shown: dict[str, Any] = {kind: _shown(rules, kind, org, scope) for kind in _TYPES}
    return {**shown, "updated_at": None if updated is None else iso_ms(updated)}


def _shown(rules: Rules, kind: AlertType, org: str, scope: str) -> dict[str, Any]:
    rule, emails = effective(rules, kind, org, scope)
    answer: dict[str, Any] = {"emails": list(emails), "inherited": (scope, kind) not in rules}
    if kind == POLICY_VIOLATION:
        return {**answer, "enabled": rule is None or rule.enabled}
    threshold = None if rule is None else rule.threshold
    shown = format_usdc(threshold) if threshold is not None and kind in _IN_MONEY else threshold
    return {**answer, "threshold": shown}
