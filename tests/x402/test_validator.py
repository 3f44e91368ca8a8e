"""Paid requests on a validator: the public packages settle both lanes there as on the embedded chain."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.service_world import error_of
from tests.validator.node import Node
from tests.validator.service import ValidatorWorld
from tests.x402.conftest import SOL, Market
from tests.x402.plain import old_shop, pythons_shops

pytestmark = [pytest.mark.validator, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(validator: Node, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    """A market whose chain is a validator."""
    folder: Path = tmp_path_factory.mktemp("market")
    async with ValidatorWorld(folder / "service", validator) as world:
        found = Market(world, validator.url, folder, await world.payee())
        await world.localnet.airdrop(found.facilitator.pubkey(), SOL)
        yield found


@pytest.mark.parametrize(("takes_us", "lane"), [(True, "enforced"), (False, "allowance")])
@pytest.mark.parametrize("flow", ["", "upfront"])
async def test_resource_is_paid_once_on_a_validator(market: Market, takes_us: bool, lane: str, flow: str) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()
    key = buyer.wallet["wallet_id"]
    async with market.shop(takes_us=takes_us, FLOW=flow, MEMO="order 7") as shop:
        bought = await buyer.fetch(f"{shop}/weather", idempotencyKey=key)
        again = await buyer.fetch(f"{shop}/weather", idempotencyKey=key)

    assert bought["resource"]["status"] == 200
    assert (bought["payment"]["status"], bought["payment"]["x402"]["lane"]) == ("confirmed", lane)
    assert bought["payment"]["tx_signature"] is not None
    assert again == bought
    assert await market.received() - before == 10_000


async def test_first_version_and_pythons_facilitator_on_a_validator(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()
    async with old_shop(market) as url:
        bought = [await buyer.fetch(f"{url}/")]
    async with pythons_shops(market, monkeypatch) as shops:
        bought += [await buyer.fetch(one) for one in shops]

    assert [one["resource"]["status"] for one in bought] == [200, 200, 200]
    assert {(one["payment"]["status"], one["payment"]["x402"]["lane"]) for one in bought} == {
        ("confirmed", "allowance")
    }
    assert len({one["payment"]["tx_signature"] for one in bought}) == 3
    assert await market.received() - before == 30_000


@pytest.mark.parametrize(("takes_us", "lane"), [(True, "enforced"), (False, "allowance")])
async def test_approval_lets_a_paid_request_pass_on_a_validator(market: Market, takes_us: bool, lane: str) -> None:
    buyer, before = await market.buyer(allowAllowances=True, requireCoSign="0.005"), await market.received()
    async with market.shop(takes_us=takes_us) as shop:
        refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")
        approval_id = error_of(refused, 402, "policy_violation")["approval_id"]
        await market.world.ok("POST", f"/v1/approvals/{approval_id}/approve", {})
        bought = await buyer.fetch(f"{shop}/weather")

    assert bought["resource"]["status"] == 200
    assert (bought["payment"]["status"], bought["payment"]["x402"]["lane"]) == ("confirmed", lane)
    assert bought["payment"]["policy_triggered"] is True
    assert (await market.world.ok("GET", f"/v1/approvals/{approval_id}"))["status"] == "used"
    assert await market.received() - before == 10_000
