"""Calls whose answers are lost: a client that retries under one key pays once, and two keys are two payments.

With `--full` there are sixty of each, and the service is killed in ten of them. `tests/mcp/frameworks.py` does the same
with agent frameworks.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.mcp.clients import connected, new_key
from tests.mcp.lossy import PRICE, Shop, shop
from tests.support.service_world import Json

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TRIES = 8
_LOST = (httpx.HTTPError, httpx2.HTTPError, MCPError, TimeoutError, ExceptionGroup)

Buy = Callable[[Shop, str], Awaitable[Json]]


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="lossy")
async def _lossy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with shop(tmp_path_factory.mktemp("lossy")) as one:
        yield one


async def _by_tool(lossy: Shop, key: str) -> Json:
    """Pay by the tool, with a new connection for each try."""
    for _ in range(_TRIES):
        with contextlib.suppress(*_LOST):
            async with asyncio.timeout(20), connected(lossy.url, lossy.headers) as client:
                content: Json = (await client.call_tool("pay", lossy.order(key))).structured_content
                if content["outcome"] == "done":
                    assert content["repeated"] is True
                    return content["data"]  # type: ignore[no-any-return]
        await asyncio.sleep(0.2)
    raise AssertionError(f"{key} was not answered")


async def _over_http(lossy: Shop, key: str) -> Json:
    """Pay over HTTP."""
    body = {
        "walletId": lossy.wallet_id,
        "to": lossy.to,
        "amount": str(PRICE),
        "currency": "USDC",
        "idempotencyKey": key,
    }
    async with httpx.AsyncClient(base_url=lossy.url, headers=lossy.headers, timeout=20) as client:
        for _ in range(_TRIES):
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.post("/v1/payments", json=body)
                if answer.status_code == 200 and answer.json()["status"] == "confirmed":
                    found: Json = answer.json()
                    return found
            await asyncio.sleep(0.2)
    raise AssertionError(f"{key} was not answered")


@pytest.mark.parametrize("buy", [_by_tool, _over_http])
async def test_lost_answers_under_one_key_are_one_payment_each(
    lossy: Shop, buy: Buy, request: pytest.FixtureRequest
) -> None:
    count, kills = (30, 5) if request.config.getoption("--full") else (4, 1)
    before, keys = await lossy.received(), [new_key() for _ in range(count)]
    lossy.deadly |= {*keys[:kills]}

    paid = [await buy(lossy, key) for key in keys]

    assert all(lossy.arrivals[key] >= 2 for key in keys)
    assert len({one["tx_id"] for one in paid}) == count
    assert await lossy.received() - before == count


@pytest.mark.parametrize("buy", [_by_tool, _over_http])
async def test_intended_pairs_under_two_keys_are_two_payments_each(
    lossy: Shop, buy: Buy, request: pytest.FixtureRequest
) -> None:
    pairs = 30 if request.config.getoption("--full") else 2
    before = await lossy.received()

    for _ in range(pairs):
        first, second = [await buy(lossy, key) for key in (new_key(), new_key())]
        assert first["tx_id"] != second["tx_id"]

    assert await lossy.received() - before == 2 * pairs


async def test_client_that_gives_up_at_once_learns_the_outcome_by_its_key(lossy: Shop) -> None:
    before, key = await lossy.received(), new_key()
    async with httpx2.AsyncClient(headers=lossy.headers, timeout=0.005) as http:
        with contextlib.suppress(*_LOST):
            async with (
                asyncio.timeout(5),
                Client(streamable_http_client(f"{lossy.deployment.url}/mcp", http_client=http)) as hasty,
            ):
                await hasty.call_tool("pay", lossy.order(key))

    async with connected(lossy.deployment.url, lossy.headers) as client:
        for _ in range(2):
            content = (await client.call_tool("pay", lossy.order(key))).structured_content
            assert content["outcome"] == "done"

    assert await lossy.received() - before == 1
