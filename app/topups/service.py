"""Stores the auto-topup rules on which ``app.keeper`` acts."""

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.money import format_usdc
from app.core.timestamps import iso_ms, now_ms
from app.store.audit import append
from app.store.topups import TopupRecord, put_topup_rule, topup_rule
from app.submission.context import Service
from app.topups.models import PutTopupRule, TopupRule
from app.wallets import service as wallets


async def put(service: Service, principal: Principal, wallet_id: str, body: PutTopupRule) -> TopupRule:
    """Replace the wallet's rule. Raises ``wallet_not_found`` and ``wallet_archived``."""
    await wallets.find_living(service, principal.org, wallet_id)
    rule = TopupRecord(wallet_id, body.enabled, body.trigger_below, body.topup_amount, now_ms())
    shown = _answer(rule)
    terms = shown.model_dump(include={"enabled", "trigger_below", "topup_amount"})

    def store(conn: Connection) -> None:
        put_topup_rule(conn, rule)
        append(conn, principal.entry("topup.set", wallet_id, **terms))

    await service.db.write(store)
    return shown


async def get(service: Service, principal: Principal, wallet_id: str) -> TopupRule:
    """Return the wallet's rule, by default a disabled one without amounts. Raises ``wallet_not_found``."""
    await wallets.require(service, principal.org, wallet_id)
    rule = await service.db.read(lambda conn: topup_rule(conn, wallet_id))
    return _answer(rule or TopupRecord(wallet_id, enabled=False, trigger_below=None, topup_amount=None, updated_at=0))


def _answer(rule: TopupRecord) -> TopupRule:
    return TopupRule(
        wallet_id=rule.wallet_id,
        id=rule.wallet_id,
        enabled=rule.enabled,
        trigger_below=_money(rule.trigger_below),
        topup_amount=_money(rule.topup_amount),
        updated_at=iso_ms(rule.updated_at) if rule.updated_at else None,
    )


def _money(micro: int | None) -> str | None:
    return None if micro is None else format_usdc(micro)
