"""The wallets' balances, together with the rules that refill them."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import BusinessError
from app.store.fleet import FleetOrder, FleetTotals, totals, wallets_by_ids
from app.store.topups import TopupRecord, topup_rules_of
from app.store.wallets import WalletRecord
from app.submission.context import Service
from app.wallets import service as wallets
from app.wallets.fleet import FleetQuery, page_of
from app.wallets.models import FundWallets


class FundingQuery(FleetQuery):
    """Filter, order and page of the wallets to show. By default, those with the lowest balance come first."""

    sort: FleetOrder = "balance"
    dir: Annotated[str, Field(pattern="^(asc|desc)$")] = "asc"


@dataclass(frozen=True, slots=True)
class FundedRow:
    """A wallet, and its rule if it has ever had one."""

    wallet: WalletRecord
    rule: TopupRecord | None


@dataclass(frozen=True, slots=True)
class FundingOverview:
    """The organisation's totals, and one page of the `count` wallets that match the query."""

    totals: FleetTotals
    rows: list[FundedRow]
    count: int


async def show(service: Service, principal: Principal, query: FundingQuery) -> FundingOverview:
    """Return one page of the organisation's wallets with their rules, and the organisation's totals."""
    now = service.clock.seen_ms()

    def read(conn: Connection) -> FundingOverview:
        found, count = page_of(conn, principal.org, now, query)
        rules = topup_rules_of(conn, [one.wallet_id for one in found])
        rows = [FundedRow(one, rules.get(one.wallet_id)) for one in found]
        of_all = totals(conn, principal.org, now)
        return FundingOverview(of_all, rows, of_all.wallets if count is None else count)

    return await service.db.read(read, in_thread=True)


async def receivers(service: Service, principal: Principal, body: FundWallets) -> list[WalletRecord]:
    """Return the wallets to be funded. Raises ``wallet_not_found`` and ``wallet_archived``."""
    ids = [one.wallet_id for one in body.allocations]
    now = service.clock.seen_ms()
    found = await service.db.read(lambda conn: wallets_by_ids(conn, principal.org, now, ids))
    for wallet_id in ids:
        if wallet_id not in found:
            # The wallet's creation may still be pending.
            found[wallet_id] = await wallets.find(service, principal.org, wallet_id)
        if found[wallet_id].archived:
            raise BusinessError("wallet_archived")
    return [found[one] for one in ids]
