"""Previews: the outcomes that the payments of the last days would have had under a changed policy."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.errors import ChainUnavailable
from app.chain.rules import Rules
from app.core.paths import program_file
from app.core.timestamps import iso_ms
from app.policies import service as policies
from app.policies.backtest import PolicyBacktest, Snapshot
from app.policies.models import PolicyPreview, PreviewedPayment, PreviewPolicy
from app.policies.terms import Terms, apply_changes, terms_of, unverified_entries
from app.store.policies import PolicyRecord, attached_wallets
from app.store.policy_history import PastPayment, past_payments
from app.submission.admission import Admission
from app.submission.context import Service
from app.submission.program_errors import violation

_HOUR = 60 * 60 * 1000
#: Length of the time before the judged period. Its payments still count in the rolling windows at the start. In
#: milliseconds.
_BEFORE = 25 * _HOUR
#: Length of the judged period in days.
_WEEK = 7
#: Maximum number of payments that one preview replays, including those before the period.
MAX_PAYMENTS = 5_000
_MAX_SHOWN = 100
#: Maximum number of previews of an organisation that may run or wait at the same time.
MAX_AT_ONCE = 4

_admission = Admission("preview", MAX_AT_ONCE, "The organisation already has several previews waiting. Retry later.")


@dataclass(frozen=True, slots=True)
class _History:
    """The payments of each wallet, and the numbers of wallets included and left out."""

    payments: dict[str, list[PastPayment]]
    wallets: int
    left_out: int


async def preview(
    service: Service, principal: Principal, identifier: str, body: PreviewPolicy, *, days: int = _WEEK
) -> PolicyPreview:
    """Return the outcomes that the attached wallets' payments would have had if the change had been made before them.

    Judges the payments of the last ``days``, or of the last week if some wallet has too many.

    Ignores balances, freezes, pauses and the number of open escrows. Co-signatures and approvals count as they were
    given. If the change affects the allowlist or the blocked categories, recipients count as they are registered now. A
    registration permits payments only after it has taken effect. Raises ``rate_limited`` if the organisation already
    has several previews waiting.
    """
    found = await policies.find(service, principal.org, identifier)
    current = await terms_of(service, found)
    terms = await apply_changes(service, principal.org, current, body)
    as_if = replace(found, rules=terms.rules, allowed_recipients=list(terms.entries.values()))
    async with _admission.enter(service, principal):
        end = service.clock.now_ms()
        for period in dict.fromkeys((days, _WEEK)):
            start = end - period * 24 * _HOUR
            read = partial(_read, address=found.address, rules=terms.rules, start=start)
            history = await service.db.read(read, in_thread=True)
            if not history.left_out:
                break
        snapshot = await _snapshot(service, principal.org, current, terms.rules, history)
        judged = await asyncio.to_thread(_judge, snapshot, terms, history, start, as_if)
    differing = [one for one in judged if one.would_be != one.status]
    differing.sort(key=lambda one: (one.timestamp, one.tx_id), reverse=True)
    blocked = sum(one.would_be == "blocked" for one in differing)
    confirmed = sum(one.refusals or 1 for one in differing if one.would_be == "confirmed")
    return PolicyPreview.model_validate(
        {
            "policy_id": found.policy_id,
            "from": iso_ms(start),
            "to": iso_ms(end),
            "wallets": history.wallets,
            "wallets_left_out": history.left_out,
            "payments": sum(one.refusals or 1 for one in judged),
            "newly_blocked": blocked,
            "newly_confirmed": confirmed,
            "changes": differing[:_MAX_SHOWN],
            "changes_left_out": len(differing[_MAX_SHOWN:]),
            "warnings": await unverified_entries(service, current, terms),
        }
    )


def _read(conn: Connection, address: str, rules: Rules, start: int) -> _History:
    """Return the payments that count towards the rules from ``start`` on, for as many wallets as fit.

    The most recently used wallets come first.
    """
    charged_from = start - _BEFORE
    if rules.max_per_month is not None:
        first = datetime.fromtimestamp(start / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        charged_from = min(charged_from, int(first.timestamp()) * 1000)
    payments: dict[str, list[PastPayment]] = {}
    wallets, room, left_out = attached_wallets(conn, address), MAX_PAYMENTS, 0
    for wallet_id in wallets:
        found = past_payments(conn, wallet_id, charged_from=charged_from, judged_from=start, limit=room + 1)
        if len(found) > room:
            left_out += 1
        elif found:
            payments[wallet_id] = found
            room -= len(found)
    return _History(payments, len(wallets) - left_out, left_out)


async def _snapshot(service: Service, org: str, current: Terms, rules: Rules, history: _History) -> Snapshot:
    """Fetch the on-chain accounts that the program needs for its verdicts."""
    address = Pubkey.from_string(org)
    needed = [address, service.addresses.mint]
    if rules.restricted or rules.blocked_categories:
        payees = {one.recipient_address for payments in history.payments.values() for one in payments}
        needed += [service.addresses.recipient(address, Pubkey.from_string(payee)) for payee in payees]
    accounts = await service.chain.accounts(needed)
    existing = {key: account for key, account in zip(needed, accounts, strict=True) if account is not None}
    if address not in existing:
        raise ChainUnavailable("the node does not know the organisation")
    return Snapshot(program_file(), service.codec, service.addresses, address, existing, current)


def _judge(
    snapshot: Snapshot, terms: Terms, history: _History, start: int, as_if: PolicyRecord
) -> list[PreviewedPayment]:
    """Replay the payments. Call it in a separate thread."""
    earliest = min((payments[0].timestamp for payments in history.payments.values()), default=start)
    replay = PolicyBacktest(snapshot, terms, earliest // 1000)
    return [
        _judged(snapshot, payment, refusal, as_if)
        for wallet_id, payments in history.payments.items()
        for payment, refusal in replay.judge(wallet_id, payments, start)
    ]


def _judged(
    snapshot: Snapshot, payment: PastPayment, refusal: Sequence[str] | None, as_if: PolicyRecord
) -> PreviewedPayment:
    found = None if refusal is None else violation(snapshot.codec, list(refusal), as_if)
    return PreviewedPayment.of(
        payment,
        recipient=payment.recipient or payment.recipient_address,
        status="blocked" if payment.status == "blocked" else "confirmed",
        would_be="confirmed" if refusal is None else "blocked",
        violation=found,
    )
