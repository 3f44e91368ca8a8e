"""Two nodes in processes of their own: payments through both, and the death of the one that follows the chain.

With `--full` 40 rounds of orders instead of one, and as many deaths.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.core.money import MICRO_PER_USDC, parse_usdc
from app.localnet.genesis import USDC_MINT
from tests.nodes.nodes import Nodes, nodes_on
from tests.support.postgres import Cluster

_ORDERS, _ALLOWED = 24, 18
"""Payments of one USDC that are asked for in each round, and how many of them the budget allows."""
_TAKEOVER = 10.0


@pytest_asyncio.fixture(name="nodes")
async def _nodes(cluster: Cluster, template: str, tmp_path: Path) -> AsyncIterator[Nodes]:
    async with nodes_on(cluster, template, tmp_path, usdc=1_000) as nodes:
        await asyncio.gather(nodes.start("one"), nodes.start("two"))
        yield nodes


async def _order(nodes: Nodes, order: dict[str, Any], key: str, at: int) -> str | None:
    """Make a payment through some node, and repeat it elsewhere until there is an outcome: its id, None if refused."""
    async with asyncio.timeout(60):
        while True:
            client = list(nodes.clients.values())[at % len(nodes.clients)]
            at += 1
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.post("/v1/payments", json=order, headers={"Idempotency-Key": key})
                if answer.status_code == 402:
                    return None
                assert answer.status_code in {200, 409, 503}, answer.text
                made = answer.json()
                if made.get("status") == "pending":
                    made = (await client.get(f"/v1/transactions/{made['tx_id']}")).json()
                if made.get("status") in {"confirmed", "failed"}:
                    return str(made["tx_id"]) if made["status"] == "confirmed" else None
            await asyncio.sleep(0.1)


async def test_nothing_is_lost_or_doubled_when_the_node_in_charge_dies(
    nodes: Nodes, request: pytest.FixtureRequest
) -> None:
    rounds = 40 if request.config.getoption("--full") else 1
    allowed = rounds * _ALLOWED
    budget = await nodes.ok("POST", "/v1/budgets", {"name": "Fleet", "maxPerDay": f"{allowed}.00"})
    wallets = [
        await nodes.ok(
            "POST",
            "/v1/wallets",
            {"agentId": f"agent-{n}", "label": "A", "policyId": "pol_permissive", "budgetId": budget["budget_id"]},
        )
        for n in range(2)
    ]
    payee = await nodes.ok("POST", "/v1/wallets", {"agentId": "payee", "label": "P", "policyId": "pol_permissive"})
    for one in wallets:
        await nodes.ok("POST", f"/v1/wallets/{one['wallet_id']}/fund", {"amount": str(allowed)})
    answers: dict[str, str | None] = {}

    def orders(number: int) -> dict[str, dict[str, Any]]:
        to = {"to": payee["chain_address"], "amount": "1", "currency": "USDC"}
        return {f"{number}/{at}": {"walletId": wallets[at // 2 % 2]["wallet_id"], **to} for at in range(_ORDERS)}

    every: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        asked = orders(number)
        every |= asked

        async def pay(key: str, order: dict[str, Any], at: int) -> None:
            answers[key] = await _order(nodes, order, key, at)

        paying = asyncio.gather(*(pay(key, order, at) for at, (key, order) in enumerate(asked.items())))
        dead = await _kill_in_charge(nodes, lambda: len(answers) > number * _ORDERS + 4)  # noqa: B023 - at once
        await paying
        if number + 1 < rounds:
            await nodes.start(dead)

    # Then each order was paid once or refused by the budget, whoever is asked again
    for key, order in every.items():
        assert await _order(nodes, order, key, int(key.split("/")[1]) + 1) == answers[key]
    paid = {one for one in answers.values() if one is not None}
    assert len(paid) == sum(one is not None for one in answers.values()) == allowed
    listed = await _all(nodes, "/v1/transactions?type=payment&status=confirmed")
    assert {one["tx_id"] for one in listed} == paid

    # And the sums are equal: in the list, in the wallets, on the chain
    sums = [(await nodes.ok("GET", f"/v1/wallets/{one['wallet_id']}"))["usdc_balance"] for one in (*wallets, payee)]
    assert sum(parse_usdc(one) for one in sums) == 2 * allowed * MICRO_PER_USDC
    assert parse_usdc(sums[2]) == allowed * MICRO_PER_USDC
    found = await nodes.chain.call(
        "getTokenAccountsByOwner", [payee["chain_address"], {"mint": str(USDC_MINT)}, {"encoding": "jsonParsed"}]
    )
    amounts = [int(one["account"]["data"]["parsed"]["info"]["tokenAmount"]["amount"]) for one in found["value"]]
    assert sum(amounts) == allowed * MICRO_PER_USDC
    events = await _all(nodes, "/v1/events?type=transaction.completed")
    assert len({one["event_id"] for one in events}) == len(events) == len(paid)


async def _all(nodes: Nodes, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await nodes.ok("GET", f"{path}&limit=50{cursor}")
        found += page["data"]
        if not page["has_more"]:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def _kill_in_charge(nodes: Nodes, ready: Any) -> str:
    """Kill the node that follows the chain once something was paid; returns its name after another took over."""
    async with asyncio.timeout(30):
        while not ready() or (dead := await asyncio.to_thread(nodes.holder)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await nodes.stop(dead)
    began = time.monotonic()
    async with asyncio.timeout(30):
        while await asyncio.to_thread(nodes.holder) is None:  # noqa: ASYNC110 - asks the database
            await asyncio.sleep(0.05)
    assert time.monotonic() - began < _TAKEOVER
    return dead
