"""`/mcp` as an HTTP endpoint: its bodies, its paths, its rate limits, and the traces of a call in log and audit."""

import asyncio
import json
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from app.access.request_log import RequestLog
from tests.mcp.clients import connected, headers_of, new_key
from tests.support.http import PATIENCE, served
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ACCEPT = {"Accept": "application/json, text/event-stream"}


def _call(tool: str, /, **arguments: Any) -> Json:
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


async def _balance(world: ServiceWorld, wallet: Json) -> str:
    found: str = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"]
    return found


@pytest.mark.parametrize(
    "given_twice",
    [
        ('"amount": "0.01"', '"amount": "0.01", "amount": "9.00"'),
        ('"method": "tools/call"', '"method": "tools/list", "method": "tools/call"'),
        ('"params": {', '"params": {}, "params": {'),
    ],
)
async def test_name_given_twice_is_refused_and_pays_nothing(world: ServiceWorld, given_twice: tuple[str, str]) -> None:
    wallet = await world.wallet()
    headers = {**await headers_of(world, wallet), **_ACCEPT, "Content-Type": "application/json"}
    whole = json.dumps(_call("pay", to=await world.payee(), amount="0.01", idempotency_key=new_key()))
    assert given_twice[0] in whole

    refused = await world.client.post("/mcp", content=whole.replace(*given_twice), headers=headers)

    assert "twice" in error_of(refused, 400, "invalid_request")["message"]
    assert await _balance(world, wallet) == "100.00"


@pytest.mark.parametrize("body", ["{", "[]", '[{"jsonrpc": "2.0"}]', '"x"', "\ufffe", "NaN"])
async def test_body_that_is_no_json_object_is_refused(world: ServiceWorld, body: str) -> None:
    headers = {"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json", **_ACCEPT}

    error_of(await world.client.post("/mcp", content=body.encode(), headers=headers), 400, "invalid_request")


async def test_body_above_the_limit_is_refused(world: ServiceWorld) -> None:
    headers = {"Authorization": f"Bearer {world.keys['admin']}", **_ACCEPT}
    call = _call("pay", memo="x" * world.settings.max_body_bytes)

    error_of(await world.client.post("/mcp", json=call, headers=headers), 413, "request_too_large")


async def test_long_body_in_any_script_reaches_the_tool(world: ServiceWorld) -> None:
    headers = {"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json", **_ACCEPT}
    text = "\u0411" * (world.settings.max_body_bytes // 2 - 500)
    call = _call("pay", to="x", amount="1", memo=text, idempotency_key=new_key())

    answer = await world.client.post("/mcp", content=json.dumps(call, ensure_ascii=False), headers=headers)

    assert answer.json()["result"]["structuredContent"]["outcome"] == "invalid"


@pytest.mark.proves("POST /mcp/")
async def test_path_with_a_slash_at_its_end_works(world: ServiceWorld) -> None:
    payee, headers = await world.payee(), await headers_of(world, await world.wallet())
    async with served(world) as url, connected(f"{url}/mcp/#", headers) as client:
        paid = await client.call_tool("pay", {"to": payee, "amount": "1", "idempotency_key": new_key()})

    assert paid.structured_content["outcome"] == "done"
    assert await world.balance(payee) == 1_000_000


async def test_call_above_the_rate_limit_is_a_refused_result(own_world: ServiceWorld) -> None:
    world, payee = own_world, await own_world.payee()
    wallet = await world.wallet()
    headers = {**await headers_of(world, wallet), **_ACCEPT}
    await world.stop()
    # A burst of six: a payment with a named vault takes two requests.
    await world.start(rate_limit=1, rate_limit_burst=6)
    order = {"wallet_id": wallet["wallet_id"], "to": payee, "amount": "1", "idempotency_key": new_key()}
    for _ in range(3):
        paid = await world.client.post("/mcp", json=_call("pay", **order), headers=headers)
        assert paid.json()["result"]["structuredContent"]["outcome"] == "done"

    refused = await world.client.post("/mcp", json=_call("pay", **order), headers=headers)
    unlisted = await world.client.post(
        "/mcp", json={"jsonrpc": "2.0", "id": "l", "method": "tools/list"}, headers=headers
    )
    told = await world.client.post(
        "/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers
    )

    assert refused.status_code == unlisted.status_code == 200
    result = refused.json()["result"]
    content = result["structuredContent"]
    assert result["isError"] is True
    assert (content["outcome"], content["error"]["code"], content["data"]) == ("refused", "rate_limited", None)
    assert f"Wait {refused.headers['retry-after']} seconds" in content["message"]
    assert content["error"]["request_id"].startswith("req_")
    assert unlisted.json()["id"] == "l"
    assert "Wait " in unlisted.json()["error"]["message"]
    assert (told.status_code, told.content) == (202, b"")
    await world.service.part(RequestLog).tick()
    logged = (await world.ok("GET", "/v1/request-log?limit=20"))["data"]
    assert [one["path"] for one in logged if one["status"] == 429] == ["/v1/payments"]
    assert await world.balance(payee) == 1_000_000


@pytest.mark.parametrize("burst", [6, 7])
async def test_official_client_sees_the_rate_limit_as_a_result(own_world: ServiceWorld, burst: int) -> None:
    world, payee = own_world, await own_world.payee()
    headers = await headers_of(world, await world.wallet())
    await world.stop()
    # The calls and the requests of a tool each count, so the limit is reached before a tool's requests or in between.
    await world.start(rate_limit=1, rate_limit_burst=burst)
    async with served(world) as url, connected(url, headers) as client:
        await client.list_tools()
        said = []
        for _ in range(4):
            answer = await client.call_tool("pay", {"to": payee, "amount": "1", "idempotency_key": new_key()})
            said.append(answer.structured_content["outcome"])
        assert said[-1] == "refused"
        assert await world.balance(payee) == said.count("done") * 1_000_000
        with pytest.raises(MCPError, match=r"Wait \d+ seconds"):
            await client.list_resources()


async def test_failed_authentications_keep_their_limit_and_status(own_world: ServiceWorld) -> None:
    await own_world.stop()
    await own_world.start(failed_authentications=2)

    said = [(await own_world.client.post("/mcp", json=_call("pay"))).status_code for _ in range(4)]

    assert said == [401, 401, 429, 429]


async def test_call_is_logged_counted_and_audited_like_its_request(own_world: ServiceWorld) -> None:
    world = own_world
    mine, other = await world.wallet(), await world.wallet()
    headers = {**await headers_of(world, mine), **_ACCEPT, "User-Agent": "mcp"}
    order = {"to": await world.payee(), "amount": "1"}
    await world.client.post("/mcp", json=_call("pay", **order, idempotency_key=new_key()), headers=headers)
    refused = await world.client.post(
        "/mcp", json=_call("pay", **order, wallet_id=other["wallet_id"], idempotency_key=new_key()), headers=headers
    )
    direct = await world.client.post(
        "/v1/payments", json={**order, "currency": "USDC", "wallet_id": other["wallet_id"]}, headers=headers
    )

    error_of(direct, 403, "insufficient_permissions")
    by_mcp = refused.json()["result"]["structuredContent"]["error"]
    assert by_mcp["code"] == "insufficient_permissions"
    await world.service.part(RequestLog).tick()
    logged = (await world.ok("GET", "/v1/request-log?limit=20"))["data"]
    entries = {one["request_id"]: one for one in logged}
    mcp, http = entries[by_mcp["request_id"]], entries[direct.headers["request-id"]]
    same = ("method", "path", "status", "code", "wallet_id")
    assert [mcp.get(name) for name in same] == [http.get(name) for name in same]
    assert sum(one["path"] == "/v1/payments" and one["status"] == 200 for one in logged) == 1
    refusals: list[Json] = []
    async with asyncio.timeout(PATIENCE):
        while not refusals:
            refusals = (await world.ok("GET", "/v1/audit-log?action=access.refused"))["data"]
            await asyncio.sleep(0.01)
    assert refusals[0]["request_id"] == by_mcp["request_id"]
    assert refusals[0]["details"] == {"operation": "POST /v1/payments", "count": 1}
    text = (await world.client.get("/metrics")).text
    assert 'agent_vault_http_requests_total{route="/v1/payments",status="2xx"} 1.0' in text
    assert 'agent_vault_http_requests_total{route="/v1/payments",status="4xx"} 2.0' in text


@pytest.mark.parametrize("request_id", [1.5, None, True, [], {}])
async def test_request_with_an_invalid_id_gets_an_error(world: ServiceWorld, request_id: Any) -> None:
    wallet = await world.wallet()
    call = _call("pay", to=await world.payee(), amount="0.01", idempotency_key=new_key())
    headers = {**await headers_of(world, wallet), **_ACCEPT}

    refused = await world.client.post("/mcp", json={**call, "id": request_id}, headers=headers)

    assert refused.status_code == 400
    assert (refused.json()["id"], refused.json()["error"]["code"]) == (None, -32600)
    assert await _balance(world, wallet) == "100.00"
