"""Previews: what the last seven days' payments would have become under a changed policy."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.fields import Violation
from app.chain.rules import Rules
from app.core.money import format_usdc
from app.core.paths import program_file
from app.core.timestamps import iso_ms, now_ms
from app.policies import service as policies
from app.policies.models import PolicyPreview, PreviewedPayment, PreviewPolicy
from app.policies.replay import PolicyReplay, Stage
from app.policies.terms import Terms, changed, terms_of
from app.store.policies import PolicyRecord, attached_wallets
from app.store.policy_history import PastPayment, past_payments
from app.submission.admission import Admission
from app.submission.context import Service
from app.submission.refusals import violation

_HOUR = 60 * 60 * 1000
#: Milliseconds that are looked at, and those before them that the rolling windows of their beginning reach back to.
_PERIOD, _BEFORE = 7 * 24 * _HOUR, 25 * _HOUR
#: Payments that one preview makes again, those before the period included.
MAX_PAYMENTS = 5_000
_MAX_SHOWN = 100
#: Previews of an organisation that are asked for at once; it is told to come back with more.
MAX_AT_ONCE = 4

_admission = Admission("preview", MAX_AT_ONCE, "The organisation waits for several previews already.")


@dataclass(frozen=True, slots=True)
class _Past:
    """What each wallet paid, and how many wallets were looked at and left out."""

    payments: dict[str, list[PastPayment]]
    wallets: int
    left_out: int


async def preview(service: Service, principal: Principal, identifier: str, body: PreviewPolicy) -> PolicyPreview:
    """Return what the payments of the attached wallets would have become, had the change been made before them.

    Balances, freezes and pauses do not count; co-signatures and approvals are those that were given, recipients what
    is registered now, from when it was. Raises ``rate_limited`` while the organisation waits for several.
    """
    found = await policies.find(service, principal.org, identifier)
    wanted = await changed(service, principal.org, await terms_of(service, found), body)
    as_if = replace(found, rules=wanted.rules, allowed_recipients=list(wanted.entries.values()))
    async with _admission.enter(service, principal.org):
        end = now_ms()
        start = end - _PERIOD
        past = await service.db.read(lambda conn: _past(conn, found.address, wanted.rules, start), in_thread=True)
        stage = await _stage(service, principal.org, wanted.rules, past)
        judged = await asyncio.to_thread(_judge, stage, wanted, past, start, as_if)
    differing = sorted((one for one in judged if one.would_be != one.status), key=_moment, reverse=True)
    blocked = sum(one.would_be == "blocked" for one in differing)
    return PolicyPreview.model_validate(
        {
            "policy_id": found.policy_id,
            "from": iso_ms(start),
            "to": iso_ms(end),
            "wallets": past.wallets,
            "wallets_left_out": past.left_out,
            "payments": len(judged),
            "newly_blocked": blocked,
            "newly_confirmed": len(differing) - blocked,
            "changes": differing[:_MAX_SHOWN],
            "changes_left_out": len(differing[_MAX_SHOWN:]),
        }
    )


def _moment(one: PreviewedPayment) -> tuple[str, str]:
    return one.timestamp, one.tx_id


def _past(conn: Connection, address: str, rules: Rules, start: int) -> _Past:
    """Return what can count for the rules since ``start``, of as many wallets as fit, the last used first."""
    charged_from = start - _BEFORE
    if rules.max_per_month is not None:
        first = datetime.fromtimestamp(start / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        charged_from = min(charged_from, int(first.timestamp()) * 1000)
    payments: dict[str, list[PastPayment]] = {}
    wallets, room = attached_wallets(conn, address), MAX_PAYMENTS
    left_out = 0
    for wallet_id in wallets:
        found = past_payments(conn, wallet_id, charged_from=charged_from, judged_from=start, limit=room + 1)
        if len(found) > room:
            left_out += 1
        elif found:
            payments[wallet_id] = found
            room -= len(found)
    return _Past(payments, len(wallets) - left_out, left_out)


async def _stage(service: Service, org: str, rules: Rules, past: _Past) -> Stage:
    """Return the chain's accounts that the program asks for."""
    address = Pubkey.from_string(org)
    needed = [address, service.addresses.mint]
    if rules.restricted or rules.blocked_categories:
        payees = {one.recipient_address for payments in past.payments.values() for one in payments}
        needed += [service.addresses.recipient(address, Pubkey.from_string(payee)) for payee in payees]
    accounts = await service.chain.accounts(needed)
    existing = {key: account for key, account in zip(needed, accounts, strict=True) if account is not None}
    return Stage(program_file(), service.codec, service.addresses, address, existing)


def _judge(stage: Stage, wanted: Terms, past: _Past, start: int, as_if: PolicyRecord) -> list[PreviewedPayment]:
    """Make the payments again, in a thread of their own."""
    earliest = min((payments[0].timestamp for payments in past.payments.values()), default=start)
    replay = PolicyReplay(stage, wanted, earliest // 1000)
    return [
        _judged(stage, payment, refusal, as_if)
        for wallet_id, payments in past.payments.items()
        for payment, refusal in replay.judge(wallet_id, payments, start)
    ]


def _judged(stage: Stage, payment: PastPayment, refusal: Sequence[str] | None, as_if: PolicyRecord) -> PreviewedPayment:
    found = None if refusal is None else violation(stage.codec, list(refusal), as_if)
    return PreviewedPayment(
        tx_id=payment.tx_id,
        wallet_id=payment.wallet_id,
        type=payment.type,
        recipient=payment.recipient or payment.recipient_address,
        amount=format_usdc(payment.amount),
        status="blocked" if payment.status == "blocked" else "confirmed",
        would_be="confirmed" if found is None else "blocked",
        violation=None if found is None else Violation.model_validate(found),
        timestamp=iso_ms(payment.timestamp),
    )
