"""Auto-topup rules of wallets; ``app.keeper`` acts on them."""

from app import wallets
from app.keys import Principal
from app.models.topups import PutTopupRule
from app.models.topups import TopupRule as RuleAnswer
from app.money import format_usdc
from app.service import Service
from app.store.topups import TopupRule, put_topup_rule, topup_rule
from app.timestamps import iso_ms, now_ms


async def put(service: Service, principal: Principal, wallet_id: str, body: PutTopupRule) -> RuleAnswer:
    """Replace the wallet's rule. Raises ``wallet_not_found`` and ``wallet_archived``."""
    wallets.find_living(service, principal.org, wallet_id)
    rule = TopupRule(wallet_id, body.enabled, body.trigger_below, body.topup_amount, now_ms())
    await service.db.write(lambda conn: put_topup_rule(conn, rule))
    return _answer(rule)


def get(service: Service, principal: Principal, wallet_id: str) -> RuleAnswer:
    """Return the wallet's rule; a disabled one without amounts when it was never given one."""
    wallets.require(service, principal.org, wallet_id)
    rule = service.db.read(lambda conn: topup_rule(conn, wallet_id))
    return _answer(rule or TopupRule(wallet_id, enabled=False, trigger_below=None, topup_amount=None, updated_at=0))


def _answer(rule: TopupRule) -> RuleAnswer:
    return RuleAnswer(
        wallet_id=rule.wallet_id,
        id=rule.wallet_id,
        enabled=rule.enabled,
        trigger_below=_money(rule.trigger_below),
        topup_amount=_money(rule.topup_amount),
        updated_at=iso_ms(rule.updated_at) if rule.updated_at else None,
    )


def _money(micro: int | None) -> str | None:
    return None if micro is None else format_usdc(micro)
