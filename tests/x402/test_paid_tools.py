"""A paid tool of an MCP server, by the public package's wrapper: what its result demands is paid in `_meta`."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent
from x402 import ResourceConfig, x402ResourceServer
from x402.http import FacilitatorConfig, HTTPFacilitatorClient
from x402.mcp.server_async import PaymentWrapperConfig, create_payment_wrapper
from x402.mcp.types import MCPToolContext, MCPToolResult
from x402.mechanisms.svm.exact.server import ExactSvmScheme
from x402.schemas import AssetAmount

from tests.support.service_world import Json, error_of
from tests.x402.conftest import Market
from tests.x402.servers import facilitator
from tests.x402.test_hostile import offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: The MCP server, as a policy's `x402Hosts` would name it.
_URL = "https://tools.example.com/mcp"


@contextlib.asynccontextmanager
async def paid_tools(market: Market) -> AsyncIterator[Client]:
    """A client of an MCP server whose tool `weather` costs 0.01 USDC."""
    allowed = str(market.world.service.codec.program_id)
    async with (
        facilitator(
            market.folder, market.facilitator, rpc=market.rpc, network=market.network, allowed=allowed
        ) as settling,
        HTTPFacilitatorClient(FacilitatorConfig(url=settling)) as asked,
    ):
        # The package's types contradict each other.
        shop: Any = x402ResourceServer(asked)
        shop.register(market.network, ExactSvmScheme())
        shop.initialize()
        price = AssetAmount(amount="10000", asset=str(market.world.localnet.usdc_mint))
        config = ResourceConfig(scheme="exact", network=market.network, pay_to=market.payee, price=price)
        paid: Any = create_payment_wrapper(shop, PaymentWrapperConfig(accepts=shop.build_payment_requirements(config)))

        async def sunny(_arguments: Json, _context: MCPToolContext) -> MCPToolResult:
            return MCPToolResult(content=[{"type": "text", "text": "sunny"}])

        weather = paid(sunny)

        async def call(_ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
            said = await weather(params.arguments or {}, {"_meta": dict(params.meta or {}), "toolName": params.name})
            return CallToolResult(
                content=[TextContent(type="text", text=one["text"]) for one in said.content],
                structured_content=said.structured_content,
                is_error=said.is_error,
                _meta=said.meta,
            )

        async def listed(_ctx: ServerRequestContext[Any], _params: object) -> ListToolsResult:
            return ListToolsResult(tools=[])

        async with Client(Server("tools", on_call_tool=call, on_list_tools=listed)) as client:
            yield client


@pytest.mark.proves("HandedOut(payload)")
async def test_paid_tool_is_paid_in_the_meta_of_its_call(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with paid_tools(market) as tools:
        demanded = await tools.call_tool("weather", {})
        terms = demanded.model_dump(mode="json", by_alias=True, exclude_none=True)
        body = {"url": _URL, "paymentRequired": terms, "maxAmount": "0.05", "idempotencyKey": "weather"}
        handed = (await buyer.post("payments", **body)).json()
        meta: Any = {"x402/payment": handed["payload"]}
        answered = await tools.call_tool("weather", {}, meta=meta)

    assert demanded.is_error
    assert [one.text for one in answered.content if isinstance(one, TextContent)] == ["sunny"]
    assert (answered.meta or {})["x402/payment-response"]["success"] is True
    await market.world.catch_up()
    shown = await market.world.ok("GET", f"/v1/transactions/{handed['payment']['tx_id']}")
    assert (shown["status"], shown["amount"], shown["x402"]["url"]) == ("confirmed", "0.01", _URL)
    assert await market.received() - before == 10_000


@pytest.mark.proves("PayOffer(paymentRequired)")
@pytest.mark.parametrize("shape", ["structured", "text", "error", "terms"])
async def test_every_shape_of_a_paid_tools_demand_is_understood(market: Market, shape: str) -> None:
    terms: Json = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "mcp://tool/weather"}}
    text = {"content": [{"type": "text", "text": json.dumps(terms)}], "isError": True}
    given = {
        "structured": {"isError": True, "structuredContent": terms, "content": []},
        "text": text,
        "error": {"code": 402, "message": "Payment required", "data": terms},
        "terms": terms,
    }[shape]
    buyer = await market.buyer()

    handed = (await buyer.post("payments", url=_URL, paymentRequired=given, maxAmount="1")).json()

    assert handed["payload"]["accepted"] == offer(market)
    assert handed["payload"]["resource"] == terms["resource"]
    assert handed["payment"]["status"] == "pending"


@pytest.mark.parametrize(
    "given",
    [
        {"isError": True, "content": [{"type": "text", "text": "Pay first"}]},
        {"isError": False, "content": [], "structuredContent": {"weather": "sunny"}},
        {"content": [{"type": "text", "text": "[" * 5_000}]},
        {"content": ["x"]},
        {"code": 402, "data": "soon"},
        {"result": {}},
    ],
)
async def test_result_without_terms_is_no_demand(market: Market, given: Json) -> None:
    buyer = await market.buyer()

    got = await buyer.post("payments", url=_URL, paymentRequired=given, maxAmount="1")

    error_of(got, 422, "x402_invalid_terms")


@pytest.mark.proves("PayOffer(paymentRequired)")
@pytest.mark.parametrize("given", [5, None, [], True, "", "x" * 32_769])
async def test_demand_of_a_wrong_type_is_refused_in_the_apis_words(market: Market, given: object) -> None:
    buyer = await market.buyer()

    got = await buyer.post("payments", url=_URL, paymentRequired=given, maxAmount="1")

    message = error_of(got, 400, "invalid_request")["message"]
    assert message.startswith("paymentRequired: must ")
    assert "constrained" not in message
