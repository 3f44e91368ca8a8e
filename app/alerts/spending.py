"""Reports wallets and budgets that have used 80 % of a limit."""

from collections.abc import Collection
from typing import Any

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.consumption import Consumption
from app.core.money import format_usdc
from app.core.timestamps import DAY
from app.store.budgets import limits_of_vaults
from app.store.feed import report_once
from app.submission.context import Service
from app.wallets.fleet import month_began


async def report_spending(service: Service, vaults: Collection[str]) -> None:
    """Report each of these vaults, and each of their budgets, that has used 80 % of a limit: once per period and limit.

    Raises ChainUnavailable and RpcError.
    """
    watched: dict[str, tuple[str, str, dict[str, Any], dict[str, int | None]]] = {}
    for one in await service.db.read(lambda conn: limits_of_vaults(conn, vaults)):
        org, limit = one["org"], {"month": one["max_per_month"]}
        watched[one["vault"]] = (org, "alert.month_limit", {"wallet_id": one["wallet_id"]}, limit)
        about = {"budget_id": one["budget_id"], "name": one["name"]}
        limits = {period: one[f"budget_{period}"] for period in ("day", "month", "total")}
        watched[one["budget"] or ""] = (org, "alert.budget_limit", about, limits)
    found = {address: each for address, each in watched.items() if address and any(each[3].values())}
    accounts = await service.chain.accounts([Pubkey.from_string(address) for address in found])
    now = service.clock.now_ms()

    def store(conn: Connection) -> None:
        for account, (org, kind, about, limits) in zip(accounts, found.values(), strict=True):
            if account is None or not account.data:
                continue
            data = account.decode(service.codec).data
            ledger = data.get("ledger")
            if ledger is None:
                # The account of an archived wallet has no ledger.
                continue
            used = Consumption.at(ledger, now // 1000, data.get("total_spent", 0))
            began = {"day": now // DAY * DAY, "month": month_began(now)}
            for period, limit in limits.items():
                spent = used.held + getattr(used, period)
                if limit and 5 * spent >= 4 * limit:
                    shown = {"period": period, "spent": format_usdc(spent), "limit": format_usdc(limit)}
                    says = f"{shown['spent']} of {shown['limit']} USDC used ({period})"
                    key = next(iter(about.values())), period, str(began.get(period, 0)), str(limit)
                    report_once(conn, kind, org, now, *key, summary=says, **about, **shown)

    if found:
        await service.db.write(store)
