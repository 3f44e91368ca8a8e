"""Refused requests to spend the money of a frozen, paused or empty wallet, counted until their event is due."""

import re
from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, select

from app.core.timestamps import HOUR
from app.store.alerts import mark, marks, unmark
from app.store.feed import report_once
from app.store.read_tables import wallets
from app.store.request_log import RequestRecord, request_log

REASONS = ("wallet_frozen", "org_paused", "wallet_insufficient_balance")
"""Error codes of refusals that leave no transaction."""
_SPENDS = re.compile(r"/v1/(payments|escrows|paid-requests|x402|wallets/[^/]+/(pay|allowances))\b")
_DUE = select(marks, wallets.c.org).join(wallets, wallets.c.wallet_id == marks.c.wallet_id)
_DUE = _DUE.where(marks.c.type.in_(REASONS))


def count_stopped(connection: Connection, requests: Sequence[RequestRecord], now: int) -> None:
    """Count the refused requests for frozen, paused or empty wallets that are not in the request log yet.

    A wallet's first refusals for a reason are reported immediately.
    """
    refused = [
        one
        for one in requests
        if one.wallet_id and one.code in REASONS and one.method == "POST" and _SPENDS.match(one.path)
    ]
    stored = select(request_log.c.request_id).where(request_log.c.request_id.in_([one.request_id for one in refused]))
    known_ids = set(connection.scalars(stored)) if refused else set()
    found = Counter((one.org, one.wallet_id, one.code) for one in refused if one.request_id not in known_ids)
    for (org, wallet_id, reason), refusals in found.items():
        known = marks.c.wallet_id == wallet_id, marks.c.type == reason
        counted = marks.update().where(*known).values(count=marks.c.count + refusals)
        if connection.execute(counted).rowcount == 0:
            _report(connection, org, str(wallet_id), str(reason), refusals, now)


def report_stopped(connection: Connection, now: int, *, most: int) -> int:
    """Process up to `most` counts that were last reported at least an hour ago, and return their number.

    Counts with further refusals are reported; the others are deleted.
    """
    due = connection.execute(_DUE.where(marks.c.marked_at <= now - HOUR).limit(most)).mappings().all()
    for one in due:
        if one["count"]:
            _report(connection, one["org"], one["wallet_id"], one["type"], one["count"], now)
        else:
            unmark(connection, one["wallet_id"], one["type"])
    return len(due)


def _report(connection: Connection, org: str, wallet_id: str, reason: str, refusals: int, now: int) -> None:  # noqa: PLR0917
    says = f"{refusals} {'payment' if refusals == 1 else 'payments'} refused: {reason.replace('_', ' ')}"
    fields = {"wallet_id": wallet_id, "reason": reason, "refusals": refusals}
    key = wallet_id, reason, str(now)
    report_once(connection, "wallet.payments_refused", org, now, *key, summary=says, **fields)
    mark(connection, wallet_id, reason, "", now)
