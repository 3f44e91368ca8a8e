"""Stores the auto-topup rules that ``app.keeper`` acts on."""

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import AuthenticationError
from app.core.timestamps import now_ms
from app.store.audit import append
from app.store.topups import TopupRecord, put_topup_rule, topup_rule
from app.submission.claim import Claim
from app.submission.context import Service
from app.topups.models import PutTopupRule, TopupRule
from app.wallets import service as wallets


async def put(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: PutTopupRule, stepped_up: bool = True
) -> TopupRule:
    """Replace the wallet's rule, and return the rule in force.

    Raises ``wallet_not_found``, ``wallet_archived``, and ``step_up_required`` for a wider rule that is not
    ``stepped_up``.
    """
    await wallets.find_living(service, principal.org, wallet_id)
    rule = TopupRecord(wallet_id, body.enabled, body.trigger_below, body.topup_amount, now_ms())
    terms = TopupRule.of(rule).model_dump(include={"enabled", "trigger_below", "topup_amount"})

    def store(conn: Connection) -> None:
        if not stepped_up and _widens(rule, topup_rule(conn, wallet_id)):
            raise AuthenticationError("step_up_required")
        put_topup_rule(conn, rule)
        append(conn, principal.entry("topup.set", wallet_id, **terms))

    await claim.store_once(store)
    return await get(service, principal, wallet_id)


def _widens(new: TopupRecord, old: TopupRecord | None) -> bool:
    """Return True if the new rule can move more money than the old one.

    Each increase counts, because no amount in a rule limits the total of a day's top-ups.
    """
    if old is None or not old.enabled or not new.enabled:
        return new.enabled
    pairs = ((new.trigger_below, old.trigger_below), (new.topup_amount, old.topup_amount))
    return any((after or 0) > (before or 0) for after, before in pairs)


async def get(service: Service, principal: Principal, wallet_id: str) -> TopupRule:
    """Return the wallet's rule, or a disabled rule without amounts if none was ever set.

    Raises ``wallet_not_found``.
    """
    await wallets.require(service, principal.org, wallet_id)
    rule = await service.db.read(lambda conn: topup_rule(conn, wallet_id))
    if rule is not None:
        return TopupRule.of(rule)
    return TopupRule(
        wallet_id=wallet_id, id=wallet_id, enabled=False, trigger_below=None, topup_amount=None, updated_at=None
    )
