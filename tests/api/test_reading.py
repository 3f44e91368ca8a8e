"""Lists of transactions and events: filters, order and pages."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from app.store.transactions import transaction
from app.transactions import service as transactions
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _all_pages(world: ServiceWorld, path: str) -> list[Json]:
    rows: list[Json] = []
    cursor = ""
    while True:
        page = await world.ok("GET", f"{path}{cursor}")
        rows += page["data"]
        if not page["has_more"]:
            return rows
        cursor = f"&cursor={page['next_cursor']}"


@pytest.mark.proves(
    "GET /v1/wallets/{wallet_id}/transactions", "GET /v1/wallets/{wallet_id}/transactions(status, type, from, to)"
)
async def test_transactions_are_filtered_and_paged_newest_first(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    wallet = await world.wallet(policy["policy_id"], funds="50")
    first, second = await world.payee(), await world.payee()
    for amount, to in (("1", first), ("2", second), ("3", first), ("9", second)):
        await world.pay(wallet, to, amount)
    path = f"/v1/wallets/{wallet['wallet_id']}/transactions"

    rows = await _all_pages(world, f"{path}?limit=2")

    assert [row["amount"] for row in rows] == ["9.00", "3.00", "2.00", "1.00", "50.00"]
    assert [row["status"] for row in rows] == ["blocked", *["confirmed"] * 4]
    assert [row["type"] for row in rows] == [*["payment"] * 4, "funding"]
    blocked = (await world.ok("GET", f"{path}?status=blocked"))["data"]
    assert [row["amount"] for row in blocked] == ["9.00"]
    fundings = (await world.ok("GET", f"{path}?type=funding"))["data"]
    assert [row["amount"] for row in fundings] == ["50.00"]
    to_first = (await world.ok("GET", f"/v1/transactions?recipient={first}"))["data"]
    assert [row["amount"] for row in to_first] == ["3.00", "1.00"]
    of_wallet = (await world.ok("GET", f"/v1/transactions?walletId={wallet['wallet_id']}&limit=100"))["data"]
    assert of_wallet == rows
    snake = (await world.ok("GET", f"/v1/transactions?wallet_id={wallet['wallet_id']}&limit=100"))["data"]
    assert snake == rows


async def test_times_bound_the_lists(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    path = f"/v1/wallets/{wallet['wallet_id']}/transactions"

    def at(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    now = time.time()
    assert len((await world.ok("GET", f"{path}?from={at(now - 60)}&to={at(now + 60)}"))["data"]) == 1
    assert (await world.ok("GET", f"{path}?from={at(now + 60)}"))["data"] == []
    assert (await world.ok("GET", f"{path}?to={at(now - 60)}"))["data"] == []
    events = f"/v1/events?walletId={wallet['wallet_id']}"
    assert len((await world.ok("GET", f"{events}&from={at(now - 60)}"))["data"]) == 2
    assert (await world.ok("GET", f"{events}&to={at(now - 60)}"))["data"] == []


@pytest.mark.proves("Wallets: frozen to active", "event wallet.created", "event wallet.frozen", "event wallet.unfrozen")
async def test_events_are_paged_and_carry_their_payload(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="5")
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"status": "frozen"})
    await world.ok("PATCH", path, {"status": "active"})

    events = await _all_pages(world, f"/v1/events?walletId={wallet['wallet_id']}&limit=1")

    assert {one["event"] for one in events} == {
        "wallet.created",
        "wallet.funded",
        "wallet.frozen",
        "wallet.unfrozen",
    }
    created = next(one for one in events if one["event"] == "wallet.created")
    assert created["agent_id"] == wallet["agent_id"]
    assert created["chain_address"] == wallet["chain_address"]
    frozen = next(one for one in events if one["event"] == "wallet.frozen")
    assert frozen["severity"] == "critical"
    critical = await _all_pages(world, f"/v1/events?walletId={wallet['wallet_id']}&severity=critical&limit=5")
    assert [one["event"] for one in critical] == ["wallet.frozen"]


async def test_cursor_stays_valid_while_rows_are_added(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    for _ in range(3):
        await world.pay(wallet, to, "1")
    path = f"/v1/wallets/{wallet['wallet_id']}/transactions?limit=2"
    first = await world.ok("GET", path)

    await world.pay(wallet, to, "2")
    second = await world.ok("GET", f"{path}&cursor={first['next_cursor']}")

    seen = [row["tx_id"] for row in (*first["data"], *second["data"])]
    assert len(seen) == len(set(seen)) == 4


@pytest.mark.proves("GET /v1/transactions(status, type, from, to, walletId, recipient)", "Payment(timestamp)")
async def test_times_bound_the_lists_to_the_millisecond(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    path = f"/v1/wallets/{wallet['wallet_id']}/transactions"
    [row] = (await world.ok("GET", path))["data"]
    before = datetime.fromisoformat(row["timestamp"])

    def at(milliseconds: int) -> str:
        moment = before + timedelta(milliseconds=milliseconds)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    assert len((await world.ok("GET", f"{path}?from={at(0)}&to={at(1)}"))["data"]) == 1
    assert (await world.ok("GET", f"{path}?from={at(1)}"))["data"] == []
    assert (await world.ok("GET", f"{path}?to={at(0)}"))["data"] == []


@pytest.mark.proves("GET /v1/transactions", "GET /v1/transactions(status, type, from, to, walletId, recipient)")
async def test_recipient_is_found_however_the_payment_named_it(world: ServiceWorld) -> None:
    wallet, other = await world.wallet(), await world.wallet(funds=None)
    await world.ok("PUT", "/v1/recipients/found.example.com", {"address": await world.payee()})

    for named in (other["wallet_id"], "Found.Example.COM"):
        await world.pay(wallet, named, "1")
        assert len((await world.ok("GET", f"/v1/transactions?recipient={named}"))["data"]) == 1


@pytest.mark.proves("Transaction(explorer_url_1, explorer_url_2)")
async def test_explorer_links_do_not_show_the_nodes_address(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    [row] = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
    stored = world.service.db.read_now(lambda conn: transaction(conn, world.org, row["tx_id"]))
    assert stored is not None
    elsewhere = world.settings.model_copy(update={"rpc_url": "https://node.example.com/?api-key=hidden"})

    links = transactions.shown(elsewhere, "localnet", stored)

    assert links.explorer_url_1 == f"https://explorer.solana.com/tx/{row['tx_signature']}"
    assert links.explorer_url_2 == f"https://solscan.io/tx/{row['tx_signature']}"


@pytest.mark.proves("Event(summary)")
async def test_every_event_of_a_payment_has_a_summary(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    await world.pay(wallet, to, "1")
    await world.pay(wallet, to, "9")

    events = (await world.ok("GET", f"/v1/events?walletId={wallet['wallet_id']}"))["data"]

    summaries = {one["event"]: one["summary"] for one in events}
    assert summaries["transaction.pending"] == f"1.00 USDC to {to} sent"
    assert summaries["transaction.blocked"] == f"9.00 USDC to {to} refused by max_per_tx"
