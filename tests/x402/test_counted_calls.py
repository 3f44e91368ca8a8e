"""What a paid request costs: calls of the chain's nodes and signatures, which MPP must not make more numerous."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from app.core.hardware_tokens import signature_by
from tests.x402.conftest import Market
from tests.x402.mpp import shop

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def resources(market: Market) -> AsyncIterator[dict[str, str]]:
    """A resource for each way of paying out of an allowance: its address."""
    async with market.shop(takes_us=False) as x402, shop(market) as mpp:
        yield {"x402": f"{x402}/weather", "sponsored": f"{mpp}/weather?sponsored=1", "unsponsored": f"{mpp}/weather"}


async def test_request_by_mpp_costs_no_more_than_by_x402(
    market: Market, resources: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a facilitator that is known, and the tasks that follow the chain whether or not somebody pays
    buyer, asked, signed = await market.buyer(allowAllowances=True), list[str](), list[Any]()
    await buyer.fetch(resources["x402"])
    mine, others = asyncio.current_task(), asyncio.all_tasks()

    def note(method: str) -> None:
        task = asyncio.current_task()
        # Grant and settlement are asked for until they have landed.
        if (task is mine or task not in others) and method != "getSignatureStatuses":
            asked.append(method)

    async def counting(signer: Any, message: bytes) -> Any:
        signed.append(signer)
        return await signature_by(signer, message)

    monkeypatch.setattr(market.world.line, "hold", note)
    monkeypatch.setattr("app.chain.transactions.signature_by", counting)

    # When each resource is paid out of an allowance
    costs = dict[str, tuple[int, int]]()
    for name, url in resources.items():
        asked.clear()
        signed.clear()
        bought = await buyer.fetch(url)
        assert (bought["payment"]["status"], bought["payment"]["paid_request"]["lane"]) == ("confirmed", "allowance")
        assert "simulateTransaction" in asked
        costs[name] = (len(asked), len(signed))

    # Then MPP makes at most as many calls and signatures, and one more signature where the service pays the fee
    calls, signatures = costs["x402"]
    assert costs["sponsored"][0] <= calls
    assert costs["unsponsored"][0] <= calls
    assert (costs["sponsored"][1], costs["unsponsored"][1]) == (signatures, signatures + 1)
    # The grant has three signatures, the transfer and the settlement have one each.
    assert (calls, signatures) <= (12, 5)
