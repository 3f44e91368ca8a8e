"""All lists: page sizes, combined filters, and cursors while rows arrive."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import update

from app.core.timestamps import now_ms
from app.store.read_tables import wallets
from app.store.wallets import IDLE_AFTER
from app.submission.recovery import Recovery
from tests.support.escrows import A2A, agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_STATUSES = ("active", "idle", "policy_violation", "frozen", "unfunded", "archived")


async def _pages(world: ServiceWorld, path: str, between: Callable[[], Awaitable[object]] | None = None) -> list[Json]:
    """Return all rows of a list, page by page; await `between` after each page."""
    rows: list[Json] = []
    cursor: str | None = None
    while True:
        page = await world.ok("GET", path + (f"&cursor={cursor}" if cursor else ""))
        assert set(page) == {"data", "has_more", "next_cursor"}
        rows += page["data"]
        if between is not None:
            await between()
        if not page["has_more"]:
            assert page["next_cursor"] is None
            return rows
        assert isinstance(page["next_cursor"], str)
        cursor = page["next_cursor"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="crowd")
async def _crowd(world: ServiceWorld) -> Json:
    """Return a wallet with 21 escrows, payments and events, one of 21 wallets."""
    paying = await agent(world, funds="100")
    receiver = await world.payee()
    for _ in range(20):
        await world.wallet(funds=None)
    await asyncio.gather(*(paying.lock(receiver, "1") for _ in range(21)))
    await asyncio.gather(*(world.pay(paying.wallet, receiver, "0.1") for _ in range(21)))
    return paying.wallet


@pytest.mark.proves(
    "GET /v1/payments/a2a",
    "Limits: Page of a list",
    "GET /v1/wallets(limit, cursor)",
    "GET /v1/transactions(limit, cursor)",
    "GET /v1/wallets/{wallet_id}/transactions(limit, cursor)",
    "GET /v1/payments/a2a(limit, cursor)",
    "GET /v1/events(limit, cursor)",
    "GET /v1/approvals(limit, cursor)",
)
@pytest.mark.parametrize(
    "path", ["/v1/wallets", "/v1/transactions", "/v1/wallets/{wallet}/transactions", A2A, "/v1/events"]
)
async def test_page_holds_20_unless_asked_for_up_to_100(world: ServiceWorld, crowd: Json, path: str) -> None:
    path = path.format(wallet=crowd["wallet_id"])

    unasked = await world.ok("GET", path)
    assert (len(unasked["data"]), unasked["has_more"]) == (20, True)
    assert len((await world.ok("GET", f"{path}?limit=1"))["data"]) == 1
    assert len((await world.ok("GET", f"{path}?limit=100"))["data"]) > 20
    for limit in ("0", "101", "-1", "all", ""):
        error_of(await world.call("GET", f"{path}?limit={limit}"), 400, "invalid_request")


@pytest.mark.proves("Conventions: Lists")
async def test_cursor_is_good_for_its_own_list_only(world: ServiceWorld, crowd: Json) -> None:
    wallet = crowd["wallet_id"]
    lists = ["/v1/wallets", "/v1/transactions", A2A, "/v1/events"]
    cursors = {path: (await world.ok("GET", f"{path}?limit=1"))["next_cursor"] for path in lists}

    for given_by, cursor in cursors.items():
        for path in lists:
            response = await world.call("GET", f"{path}?limit=1&cursor={cursor}")
            if path == given_by:
                assert response.status_code == 200, path
            else:
                error = error_of(response, 400, "invalid_request")
                assert (
                    error["message"] == "cursor: was not issued by this list with these filters. Omit it to start over."
                )
    of_wallet = f"/v1/wallets/{wallet}/transactions"
    for path in (of_wallet, "/v1/transactions?type=payment", "/v1/transactions?from=2020-01-01"):
        asked = f"{path}{'&' if '?' in path else '?'}limit=1"
        error_of(await world.call("GET", f"{asked}&cursor={cursors['/v1/transactions']}"), 400, "invalid_request")
        own = (await world.ok("GET", asked))["next_cursor"]
        assert (await world.ok("GET", f"{asked}&cursor={own}"))["data"]
        error_of(await world.call("GET", f"/v1/transactions?limit=1&cursor={own}"), 400, "invalid_request")
    # The size of the page and the order of tags do not matter.
    assert (await world.ok("GET", f"/v1/wallets?limit=2&cursor={cursors['/v1/wallets']}"))["data"]


async def _in_every_status(world: ServiceWorld, tags: list[str]) -> dict[str, str]:
    """Make a wallet with these tags in each status, and return their ids."""
    strict = await world.policy(maxPerTx="1")
    to = await world.payee()
    made = {status: await world.wallet(strict["policy_id"], funds=None, tags=tags) for status in _STATUSES}
    ids = {status: str(wallet["wallet_id"]) for status, wallet in made.items()}
    path = "/v1/wallets/{}".format
    for status in ("active", "policy_violation", "unfunded"):
        await world.ok("POST", f"{path(ids[status])}/fund", {"amount": "1", "currency": "USDC"})
    error_of(await world.pay(made["policy_violation"], to, "1.01"), 402, "policy_violation")
    await world.ok("PATCH", path(ids["frozen"]), {"status": "frozen"})
    await world.pay(made["unfunded"], to, "1")
    await world.ok("DELETE", path(ids["archived"]))
    idle = update(wallets).where(wallets.c.wallet_id == ids["idle"]).values(created_at=now_ms() - IDLE_AFTER - 1)
    await world.service.db.write(lambda conn: conn.execute(idle))
    return ids


@pytest.mark.proves(
    "GET /v1/wallets",
    "Wallets: any to frozen",
    "Wallets: active to unfunded",
    "Wallets: active to idle",
    "CreateWallet(tags)",
    "GET /v1/wallets(status, tags)",
    "Wallet(status)",
)
async def test_every_status_of_a_wallet_is_shown_and_combines_with_all_tags(world: ServiceWorld) -> None:
    both = await _in_every_status(world, ["blue", "round"])
    one = await _in_every_status(world, ["blue"])

    for status in _STATUSES:
        assert (await world.ok("GET", f"/v1/wallets/{both[status]}"))["status"] == status
        for tags, expected in (
            ("blue", {both[status], one[status]}),
            ("blue,round", {both[status]}),
            ("round,blue,round", {both[status]}),
            ("blue,round,red", set()),
            ("red", set()),
        ):
            found = await _pages(world, f"/v1/wallets?limit=1&tags={tags}&status={status}")
            assert {row["wallet_id"] for row in found} == expected, (status, tags)
            assert {row["status"] for row in found} <= {status}
    living = await _pages(world, "/v1/wallets?limit=2&tags=round,blue")
    assert {row["wallet_id"] for row in living} == {both[status] for status in _STATUSES} - {both["archived"]}


@pytest.mark.proves("Wallets: policy_violation to active", "Wallets: unfunded to active", "Wallets: idle to active")
async def test_wallet_is_active_again_once_the_reason_of_its_status_ends(world: ServiceWorld) -> None:
    ids = await _in_every_status(world, ["again"])
    to = await world.payee()

    async def status(name: str) -> str:
        return str((await world.ok("GET", f"/v1/wallets/{ids[name]}"))["status"])

    for name in ("policy_violation", "idle"):
        if name == "idle":
            await world.ok("POST", f"/v1/wallets/{ids[name]}/fund", {"amount": "1"})
        assert (await world.pay({"wallet_id": ids[name]}, to, "0.5")).json()["status"] == "confirmed"
        assert await status(name) == "active"
    await world.ok("POST", f"/v1/wallets/{ids['unfunded']}/fund", {"amount": "1"})
    assert await status("unfunded") == "active"
    assert (await world.ok("PATCH", f"/v1/wallets/{ids['frozen']}", {"status": "active"}))["status"] == "active"


@pytest.mark.proves(
    "GET /v1/wallets/{wallet_id}/transactions",
    "GET /v1/transactions",
    "GET /v1/transactions(status, type, from, to, walletId, recipient)",
    "GET /v1/wallets/{wallet_id}/transactions(status, type, from, to)",
)
async def test_filters_of_transactions_combine(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    wallet, other = await world.wallet(policy["policy_id"]), await world.wallet()
    to, elsewhere = await world.payee(), await world.payee()
    for paying, payee, amount in (
        (wallet, to, "1"),
        (wallet, elsewhere, "2"),
        (wallet, to, "9"),
        (other, to, "3"),
    ):
        await world.pay(paying, payee, amount)
    every = (await world.ok("GET", f"/v1/transactions?walletId={wallet['wallet_id']}"))["data"]
    [blocked] = [row for row in every if row["status"] == "blocked"]

    async def amounts(query: str, path: str = "/v1/transactions") -> list[str]:
        return [row["amount"] for row in await _pages(world, f"{path}?limit=1&{query}")]

    mine = f"walletId={wallet['wallet_id']}"
    assert await amounts(f"recipient={to}") == ["3.00", "9.00", "1.00"]
    assert await amounts(f"recipient={to}&{mine}") == ["9.00", "1.00"]
    assert await amounts(f"recipient={to}&{mine}&status=confirmed") == ["1.00"]
    assert await amounts(f"recipient={to}&{mine}&status=confirmed&type=funding") == []
    assert await amounts(f"{mine}&type=payment&to={blocked['timestamp']}") == ["2.00", "1.00"]
    assert await amounts(f"{mine}&type=payment&from={blocked['timestamp']}") == ["9.00"]
    path = f"/v1/wallets/{wallet['wallet_id']}/transactions"
    assert await amounts(f"status=blocked&from={blocked['timestamp']}&type=payment", path) == ["9.00"]


@pytest.mark.proves(
    "Conventions: Lists",
    "GET /v1/wallets(limit, cursor)",
    "GET /v1/transactions(limit, cursor)",
    "GET /v1/wallets/{wallet_id}/transactions(limit, cursor)",
    "GET /v1/payments/a2a(limit, cursor)",
    "GET /v1/events(limit, cursor)",
    "GET /v1/approvals(limit, cursor)",
)
async def test_cursors_lose_and_repeat_nothing_while_rows_arrive(world: ServiceWorld) -> None:
    paying, to = await agent(world, funds="1000"), await world.payee()
    for _ in range(4):
        await world.wallet(funds=None, tags=["paged"])
        await world.pay(paying.wallet, to, "1")
        await paying.lock(to, "1")

    async def arrive() -> None:
        await asyncio.gather(
            world.wallet(funds=None, tags=["paged"]), world.pay(paying.wallet, to, "1"), paying.lock(to, "1")
        )

    for path, name in (
        ("/v1/wallets?tags=paged", "wallet_id"),
        (f"/v1/transactions?walletId={paying.id}", "tx_id"),
        (f"/v1/wallets/{paying.id}/transactions?type=payment", "tx_id"),
        (f"{A2A}?walletId={paying.id}", "escrow_id"),
        (f"/v1/events?walletId={paying.id}", "event_id"),
    ):
        there = [row[name] for row in await _pages(world, f"{path}&limit=100")]
        assert [row[name] for row in await _pages(world, f"{path}&limit=5", arrive)] == there, path


@pytest.mark.proves("Conventions: Lists", "Transactions: new to pending", "Payment(on_chain_slot)")
async def test_payment_that_is_confirmed_between_two_pages_is_on_one_of_them(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.2)
    world.line.lose_requests = lambda method: method == "getSignatureStatuses"
    pending = [(await world.pay(wallet, to, "1")).json() for _ in range(4)]
    assert {(one["status"], one["on_chain_slot"]) for one in pending} == {("pending", None)}
    world.line.mend()

    async def settle() -> None:
        await world.service.part(Recovery).recover()
        await world.catch_up()

    found: list[Any] = await _pages(world, "/v1/transactions?type=payment&limit=2", settle)

    assert [row["tx_id"] for row in found] == [one["tx_id"] for one in reversed(pending)]
    assert [row["status"] for row in found[2:]] == ["confirmed", "confirmed"]
