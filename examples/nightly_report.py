"""Prints the spending of each wallet in the last 24 hours, and the refusals by rule: `python nightly_report.py`."""

import os
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from agent_vault_client import Admin

URL = os.environ.get("AGENT_VAULT_URL", "http://127.0.0.1:8402")


def report(admin: Admin) -> str:
    """Return the report, with a line for each wallet that made a payment or was refused one."""
    spent: defaultdict[str, Decimal] = defaultdict(Decimal)
    refused: defaultdict[str, Counter[str]] = defaultdict(Counter)
    now = datetime.now(UTC)
    period = {"from_": (now - timedelta(days=1)).isoformat(), "to": now.isoformat()}
    for row in admin.transactions.list(limit=100, **period):
        if row["status"] == "blocked" and row["violation"]:
            refused[row["wallet_id"]][row["violation"]["rule"]] += row["refusals"] or 1
        elif row["status"] == "confirmed" and row["type"] in {"payment", "a2a_send", "escrow_lock"}:
            spent[row["wallet_id"]] += Decimal(row["amount"])
    lines = []
    for wallet in admin.wallets.list(limit=100):
        name = wallet["wallet_id"]
        if name in spent or name in refused:
            rules = ", ".join(f"{rule} {count}" for rule, count in sorted(refused[name].items()))
            left = wallet["usdc_balance"]
            lines.append(f"{wallet['label']}: {spent[name]:.2f} USDC, {left} left, refused: {rules or 'none'}")
    return "\n".join(lines)


if __name__ == "__main__":
    with Admin(os.environ["AGENT_VAULT_API_KEY"], base_url=URL) as admin:  # a viewer's key is enough
        print(report(admin))
