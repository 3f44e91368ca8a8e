"""Tests the whole line over real sockets: HTTP request, program, chain, indexer, read models, and back to HTTP."""

import asyncio
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.support.http import served
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def on_chains(*, smoke: bool = False) -> pytest.MarkDecorator:
    """Run a test on the embedded chain and on a validator."""
    validator = pytest.param("validator", marks=pytest.mark.validator(smoke=smoke))
    return pytest.mark.parametrize("own_world", ["embedded", validator], indirect=True)


@on_chains(smoke=True)
async def test_agent_pays_until_the_policy_stops_it(own_world: ServiceWorld) -> None:
    world = own_world

    async with served(world) as base:
        admin = httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {world.keys['admin']}"})
        async with admin:

            async def post(path: str, body: dict[str, Any]) -> Any:
                response = await admin.post(path, json=body)
                assert response.status_code == 200, response.text
                return response.json()

            # Given a policy, a wallet under it with money, and an agent with its own key and session
            shop = str(Keypair().pubkey())
            policy = await post("/v1/policies", {"name": "Shopping", "maxPerTx": "5", "maxPerDay": "8"})
            body = {"agentId": "shopper", "label": "Shopper", "policyId": policy["policy_id"]}
            wallet = await post("/v1/wallets", body)
            path = f"/v1/wallets/{wallet['wallet_id']}"
            await post(f"{path}/fund", {"amount": "50", "currency": "USDC"})
            token = (await post(f"{path}/rotate-token", {"ttlSeconds": 600}))["session_token"]
            agent = {
                "Authorization": f"Bearer {world.key('agent', wallet['wallet_id'])}",
                "Session-Token": token,
            }

            async def pay(amount: str) -> httpx.Response:
                order = {"walletId": wallet["wallet_id"], "to": shop, "amount": amount, "currency": "USDC"}
                return await admin.post("/v1/payments", json=order, headers=agent)

            # When the agent pays within the policy and beyond it
            paid = (await pay("4.50")).json()
            over_limit = error_of(await pay("6"), 402, "policy_violation")
            over_daily_limit = error_of(await pay("4"), 402, "policy_violation")

            # Then the chain holds exactly the one payment
            assert paid["status"] == "confirmed"
            assert over_limit["violation"]["rule"] == "max_per_tx"
            assert over_daily_limit["violation"]["rule"] == "max_per_day"
            assert await world.balance(shop) == 4_500_000
            assert await world.balance(wallet["chain_address"]) == 45_500_000

            # And a budget stops it earlier than its own policy
            budget = await post("/v1/budgets", {"name": "Team", "maxPerDay": "0.75"})
            assert (await admin.patch(path, json={"budgetId": budget["budget_id"]})).status_code == 200
            assert (await pay("0.50")).json()["status"] == "confirmed"
            over_budget = error_of(await pay("0.50"), 402, "policy_violation")
            assert over_budget["violation"]["rule"] == "budget_max_per_day"
            left = (await admin.get(f"/v1/budgets/{budget['budget_id']}")).json()["headroom"]
            assert left["day"] == "0.25"

            # And a freeze stops payments, even for the operator
            frozen = await admin.patch(path, json={"status": "frozen"})
            assert frozen.json()["status"] == "frozen"
            error_of(await pay("1"), 422, "wallet_frozen")


@on_chains()
async def test_read_models_can_be_rebuilt_from_the_chain_and_own_records(own_world: ServiceWorld) -> None:
    """Deletes the indexer's database and rebuilds it and the read models, which must then show the same."""
    world = own_world
    policy = await world.policy(maxPerTx="5", allowedRecipients=["shop.example.com"])
    shop = await world.payee()
    await world.ok("PUT", "/v1/recipients/shop.example.com", {"address": shop, "category": "marketplace"})
    wallet = await world.wallet(policy["policy_id"], tags=["a"])
    await world.session(wallet)
    await world.pay(wallet, "shop.example.com", "2", body={"memo": "kept"})
    await world.pay(wallet, "shop.example.com", "6")
    await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/withdraw", {"amount": "1"})
    lists = ["/v1/wallets", "/v1/policies", "/v1/transactions", "/v1/events?limit=100"]
    paths = [*lists, "/v1/recipients/shop.example.com"]
    before = [await world.ok("GET", path) for path in paths]

    await world.stop()
    for suffix in ("", "-wal", "-shm"):
        (world.settings.data_dir / f"chain.db{suffix}").unlink(missing_ok=True)
    await world.start()
    await world.service.indexer.catch_up()
    await world.service.projector.rebuild()

    assert [await world.ok("GET", path) for path in paths] == before


@on_chains()
async def test_money_is_neither_created_nor_lost(own_world: ServiceWorld) -> None:
    world = own_world
    first, second, shop = await world.wallet(funds="30"), await world.wallet(funds="20"), await world.payee()

    orders = [(first, shop), (second, shop), (first, second["wallet_id"]), (second, first["wallet_id"])]
    await asyncio.gather(*(world.pay(payer, to, "1.000001") for payer, to in orders * 5))
    await world.catch_up()

    owners = [world.org, first["chain_address"], second["chain_address"], shop]
    assert sum([await world.balance(owner) for owner in owners]) == 1_000_000_000_000
    for wallet in (first, second):
        held = await world.balance(wallet["chain_address"])
        expected = f"{held // 1_000_000}.{held % 1_000_000:06}".rstrip("0").ljust(4, "0")
        # Payments between two wallets within one slot can be read in another order than they landed. The indexer's
        # comparison with the chain corrects the balance afterwards.
        async with asyncio.timeout(30):
            path = f"/v1/wallets/{wallet['wallet_id']}"
            while (await world.ok("GET", path))["usdc_balance"] != expected:  # noqa: ASYNC110 - polls as a client does
                await asyncio.sleep(0.1)
    tokens = world.service.addresses.token_account(Pubkey.from_string(shop))
    assert await world.service.chain.token_balance(tokens) == 10 * 1_000_001
