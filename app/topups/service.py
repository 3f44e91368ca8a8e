"""Stores the auto-topup rules that ``app.keeper`` acts on."""

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.timestamps import now_ms
from app.store.audit import append
from app.store.topups import TopupRecord, put_topup_rule, topup_rule
from app.submission.context import Service
from app.topups.models import PutTopupRule, TopupRule
from app.wallets import service as wallets


async def put(service: Service, principal: Principal, wallet_id: str, body: PutTopupRule) -> TopupRule:
    """Replace the wallet's rule. Raises ``wallet_not_found`` and ``wallet_archived``."""
    await wallets.find_living(service, principal.org, wallet_id)
    rule = TopupRecord(wallet_id, body.enabled, body.trigger_below, body.topup_amount, now_ms())
    shown = TopupRule.of(rule)
    terms = shown.model_dump(include={"enabled", "trigger_below", "topup_amount"})

    def store(conn: Connection) -> None:
        put_topup_rule(conn, rule)
        append(conn, principal.entry("topup.set", wallet_id, **terms))

    await service.db.write(store)
    return shown


async def get(service: Service, principal: Principal, wallet_id: str) -> TopupRule:
    """Return the wallet's rule, or by default a disabled one without amounts. Raises ``wallet_not_found``."""
    await wallets.require(service, principal.org, wallet_id)
    rule = await service.db.read(lambda conn: topup_rule(conn, wallet_id))
    if rule is not None:
        return TopupRule.of(rule)
    return TopupRule(
        wallet_id=wallet_id, id=wallet_id, enabled=False, trigger_below=None, topup_amount=None, updated_at=None
    )
