"""Facts for the decision about an expense: the agent, the payee, earlier payments to it and the headroom."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.consumption import Consumption
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.rules import CATEGORIES, BudgetLimits, Rules
from app.core.money import format_usdc, with_separators
from app.store.budgets import BudgetRecord, budget
from app.store.recipients import recipient
from app.store.spending_groups import spending, was_paid
from app.store.wallets import WalletRecord, wallet_by_vault
from app.submission.context import Service


@dataclass(frozen=True, slots=True)
class ExpenseFacts:
    """The facts about an expense, as texts for pages, e-mails and webhooks.

    `payee_name` is the organisation's own vault at the payee's address, or else the domain registered for the address,
    if any. `history` covers the payments and escrows of all wallets to this address.
    """

    agent: str
    payee_name: str | None
    payee_category: str
    history: str
    headroom: str


async def facts_of(service: Service, wallet: WalletRecord, payee: str) -> ExpenseFacts:
    """Return the facts about an expense of a wallet to the payee's address."""
    now, org = service.clock.seen_ms(), wallet.org
    month = f"{datetime.fromtimestamp(now // 1000, UTC):%Y-%m}"

    def read(conn: Connection) -> tuple[str | None, int, str, list[BudgetRecord]]:
        known, paid = recipient(conn, org, payee), spending(conn, org, "recipient", [month], [payee])
        name, category = (known.domain, known.category) if known and known.effective_at <= now // 1000 else (None, 0)
        if (own := wallet_by_vault(conn, org, payee, now)) is not None:
            name = f"Vault {own.label or own.wallet_id}"
        if paid and paid[0].payments:
            number = f"{paid[0].payments:,} payment{'s' if paid[0].payments > 1 else ''}"
            history = f"{number}, {_usdc(paid[0].spent)} USDC this month"
        else:
            history = "No payment this month, but earlier ones" if was_paid(conn, org, payee) else "First payment"
        levels = [budget(conn, org, one) for one in (wallet.budget_id, wallet.parent_id) if one is not None]
        return name, category, history, [one for one in levels if one is not None]

    name, category, history, shared = await service.db.read(read)
    agent = wallet.label or wallet.agent_id or wallet.wallet_id
    return ExpenseFacts(agent, name, CATEGORIES[category], history, await _headroom(service, wallet, shared))


async def _headroom(service: Service, wallet: WalletRecord, shared: Sequence[BudgetRecord]) -> str:
    """Return the amount that the vault can still spend, and that of each level: the vault, its budget, the parent.

    Only the balance and the limits of money count.
    """
    limited: list[tuple[str, str, Rules | BudgetLimits]] = [("the vault", wallet.vault, wallet.policy.rules)]
    limited += [
        (f"{kind} {one.name}", one.address, one.limits)
        for kind, one in zip(("its budget", "the parent budget"), shared, strict=False)
    ]
    try:
        accounts = await service.chain.accounts([Pubkey.from_string(address) for _, address, _ in limited])
    except (ChainUnavailable, RpcError):
        return "Unknown, because the chain does not answer"
    said, lowest = [], wallet.balance
    for account, (name, address, limits) in zip(accounts, limited, strict=True):
        data = account.decode(service.codec).data if account is not None and account.data else {}
        ledger = data.get("ledger")
        if ledger is None:
            return "Unknown, because the vault or its budget is closed"
        spent = Consumption.at(ledger, service.clock.now(), data.get("total_spent", 0))
        caps = [(limits.max_per_day, spent.day), (limits.max_per_month, spent.month)]
        caps += [(limits.max_total, spent.total)] if isinstance(limits, BudgetLimits) else []
        left = [max(0, cap - used - spent.held) for cap, used in caps if cap is not None]
        left += [wallet.balance] if address == wallet.vault else []
        lowest = min([lowest, *left])
        said.append(f"{_usdc(min(left))} USDC for {name}" if left else f"no limit of money for {name}")
    return said[0] if not shared else f"{_usdc(lowest)} USDC ({', '.join(said)})"


def _usdc(amount: int) -> str:
    return with_separators(format_usdc(amount))
