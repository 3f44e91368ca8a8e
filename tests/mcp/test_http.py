"""`/mcp`: every tool by the official client over HTTP, with an agent's own credentials."""

import hashlib
import json
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.core.errors import UnavailableError
from app.core.timestamps import now_ms, parse_iso_ms
from app.mcp.tools import TOOLS
from app.store.guard import mark_restored
from app.submission.database_guard import DatabaseGuard
from tests.mcp.clients import CHANGING, agent, connected, headers_of, new_key
from tests.support.http import served, site
from tests.support.service_world import Json, ServiceWorld, error_of
from tests.support.unowned import unowned

pytestmark = pytest.mark.asyncio(loop_scope="module")

_KEY = "one payment of the test"
_OUTPUT = b"the answer"
_PROOF = f"sha256:{hashlib.sha256(_OUTPUT).hexdigest()}"


async def _free(_request: Request) -> Response:
    return PlainTextResponse("free")


def _rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.proves("POST /mcp")
async def test_every_tool_over_http(world: ServiceWorld) -> None:
    payee, worker = await world.payee(), await world.wallet()
    async with agent(world, maxPerTx="5", maxPerDay="20", requireCoSign="3") as one:
        called = {"list_transactions"}

        async def done(tool: str, **arguments: Any) -> Any:
            called.add(tool)
            content = await one.call(tool, **arguments)
            assert content["outcome"] == "done", content
            return content["data"]

        # What may be paid, and a payment
        shown = await done("get_wallet")
        assert shown["wallet"]["wallet_id"] == one.wallet["wallet_id"]
        [day] = [rule for rule in shown["limits"] if rule["rule"] == "max_per_day"]
        assert day["headroom"] == "20.00"
        assert (await done("check_payment", to=payee, amount="2"))["allowed"] is True
        paid = await done("pay", to=payee, amount="2", memo="for the answer")
        assert await world.balance(payee) == 2_000_000
        assert (await done("get_transaction", tx_id=paid["tx_id"]))["memo"] == "for the answer"
        listed = await done("list_transactions", status="confirmed", type="payment", limit=1)
        assert [row["tx_id"] for row in listed["data"]] == [paid["tx_id"]]

        # A URL that asks for nothing
        async with site(_free) as free:
            assert (await done("quote_paid_url", url=f"{free}/"))["price"] is None
            assert (await done("fetch_paid_url", url=f"{free}/", max_amount="1"))["resource"]["body"] == "free"

        # Above the co-sign threshold: an approval, then the same payment
        refused = await one.call("pay", to=payee, amount="4")
        approval_id = refused["refusal"]["approval_id"]
        assert refused["outcome"] == "refused"
        called.add("request_approval_status")
        waiting = await one.call("request_approval_status", approval_id=approval_id)
        assert (waiting["outcome"], waiting["data"]["status"]) == ("pending", "pending")
        await world.ok("POST", f"/v1/approvals/{approval_id}/approve", {})
        assert (await done("request_approval_status", approval_id=approval_id))["status"] == "approved"
        assert (await done("pay", to=payee, amount="4"))["status"] == "confirmed"

        # Escrows: one disputed, one completed by the other side
        terms = {"to_wallet": worker["wallet_id"], "amount": "1", "task_description": "Answer."}
        disputed = await done("create_escrow", **terms)
        await done("dispute_escrow", escrow_id=disputed["escrow_id"], reason="Nobody answered.")
        assert (await done("get_escrow", escrow_id=disputed["escrow_id"]))["status"] == "disputed"
        locked = await done("create_escrow", **terms, expected_output_hash=_PROOF)
        async with served(world) as url, connected(url, await headers_of(world, worker)) as other:
            proof = {"escrow_id": locked["escrow_id"], "proof_type": "output_hash", "proof": _PROOF}
            proof["idempotency_key"] = new_key()
            completed = await other.call_tool("complete_escrow", proof)
            called.add("complete_escrow")
        assert completed.structured_content["data"]["status"] == "released"

        assert called == {tool.name for tool in TOOLS}


async def test_refusal_names_rule_limit_headroom_and_when_it_passes(world: ServiceWorld) -> None:
    payee = await world.payee()
    async with agent(world, maxPerDay="5") as one:
        await one.call("pay", to=payee, amount="4")

        refused = await one.call("pay", to=payee, amount="2.50", idempotency_key="seventh order of the day")

        refusal = refused["refusal"]
        assert refusal["rule"] == "max_per_day"
        assert (refusal["limit"], refusal["attempted"], refusal["headroom"]) == ("5.00", "6.50", "1.00")
        assert refusal["retry_at"] is not None
        assert refusal["retry_at"] in refused["message"]
        assert refused["idempotency_key"] == "seventh order of the day"
        assert refused["error"]["code"] == "policy_violation"
        assert refused["data"] is None
        assert await world.balance(payee) == 4_000_000


async def test_null_means_that_an_argument_is_absent(world: ServiceWorld) -> None:
    required: dict[str, Json] = {
        "check_payment": {"to": await world.payee(), "amount": "1"},
        "pay": {"to": await world.payee(), "amount": "1"},
        "quote_paid_url": {},
        "fetch_paid_url": {"max_amount": "1"},
        "create_escrow": {"to_wallet": await world.payee(), "amount": "1", "task_description": "Answer."},
    }
    async with agent(world) as one, site(_free) as free:

        async def called(tool: str, **given: Any) -> Json:
            listed = {found.name: found for found in (await one.client.list_tools()).tools}[tool].input_schema
            nulls = dict.fromkeys(listed["properties"].keys() - set(listed["required"]))
            content = await one.call(tool, **{**nulls, **given})
            assert content["outcome"] == "done", content
            return content

        for tool, given in required.items():
            await called(tool, **given, **({"url": f"{free}/"} if "url" in tool else {}))
        await called("get_wallet")
        rows = (await called("list_transactions"))["data"]["data"]
        await called("get_transaction", tx_id=rows[0]["tx_id"])
        [escrow] = (await world.ok("GET", f"/v1/payments/a2a?wallet_id={one.wallet['wallet_id']}"))["data"]
        await called("get_escrow", escrow_id=escrow["escrow_id"])
        await called("dispute_escrow", escrow_id=escrow["escrow_id"], reason="None came.")


@pytest.mark.proves("QuotePaidResource(headers)", "FetchPaidResource(headers)")
@pytest.mark.parametrize("headers", [[{"name": "Accept", "value": "text/plain"}], {"Accept": "text/plain"}])
async def test_headers_are_a_list_or_an_object(world: ServiceWorld, headers: Any) -> None:
    seen = []

    async def echo(request: Request) -> Response:
        seen.append(request.headers["accept"])
        return PlainTextResponse("free")

    async with agent(world) as one, site(echo) as url:
        for tool, more in (("quote_paid_url", {}), ("fetch_paid_url", {"max_amount": "1"})):
            content = await one.call(tool, url=f"{url}/", headers=headers, **more)
            assert content["outcome"] == "done", content

    assert seen == ["text/plain", "text/plain"]


async def test_repeated_key_returns_the_first_outcome_and_its_time(world: ServiceWorld) -> None:
    payee, key = await world.payee(), new_key()
    async with agent(world) as one:
        first = await one.call("pay", to=payee, amount="1", idempotency_key=key)
        again = await one.call("pay", to=payee, amount="1.00", idempotency_key=key)
        other = await one.call("pay", to=payee, amount="1")

        assert (first["repeated"], first["first_called_at"]) == (False, None)
        assert (other["repeated"], other["first_called_at"]) == (False, None)
        assert again["repeated"] is True
        assert abs(parse_iso_ms(again["first_called_at"]) - now_ms()) < 60_000
        assert again["first_called_at"] in again["message"]
        assert (again["outcome"], again["data"]) == ("done", first["data"])
        assert again["idempotency_key"] == first["idempotency_key"] == key
        assert other["data"]["tx_id"] != first["data"]["tx_id"]
        assert await world.balance(payee) == 2_000_000


async def test_answer_over_http_names_the_first_call_only_if_asked(world: ServiceWorld) -> None:
    wallet, to, headers = await world.wallet(), await world.payee(), {"Idempotency-Key": new_key()}
    await world.pay(wallet, to, "1", headers=headers)
    plain = await world.pay(wallet, to, "1", headers=headers)
    asked = await world.pay(wallet, to, "1", headers={**headers, "Prefer": "first-called-at"})

    assert plain.headers["idempotent-replayed"] == asked.headers["idempotent-replayed"] == "true"
    assert "first-called-at" not in plain.headers
    assert asked.headers["first-called-at"].endswith("Z")
    assert asked.content == plain.content


@pytest.mark.parametrize("key", [None, "", "short", 15 * "x", " " * 20, f"  {'x' * 15}  ", 10**20, ["x" * 16], True])
@pytest.mark.parametrize("tool", sorted(CHANGING))
async def test_call_without_a_valid_key_changes_nothing(world: ServiceWorld, tool: str, key: Any) -> None:
    async with agent(world) as one:
        arguments = {} if key is None else {"idempotency_key": key}
        result = await one.client.call_tool(
            tool, {"to": "x", "amount": "1", **arguments} if tool == "pay" else arguments
        )

    content = result.structured_content
    assert result.is_error
    assert (content["outcome"], content["idempotency_key"]) == ("invalid", None)
    for said in ("idempotency_key", "required", "at least 16 characters", "Nothing was paid", "new random key"):
        assert said in content["message"]


async def test_payment_without_a_key_pays_nothing(world: ServiceWorld) -> None:
    payee = await world.payee()
    async with agent(world) as one:
        for arguments in ({}, {"idempotency_key": None}, {"idempotency_key": "order-1"}):
            refused = await one.client.call_tool("pay", {"to": payee, "amount": "1", **arguments})
            assert "Nothing was paid" in refused.structured_content["message"]
    assert await world.balance(payee) == 0


async def test_payment_whose_outcome_is_unknown_says_so_and_how_to_go_on(own_world: ServiceWorld) -> None:
    payee = await own_world.payee()
    async with agent(own_world) as one:
        own_world.line.lose_requests = lambda _method: True

        lost = await one.call("pay", to=payee, amount="1", idempotency_key=_KEY)

        own_world.line.mend()
        again = await one.call("pay", to=payee, amount="1", idempotency_key=_KEY)
        assert lost["outcome"] == "unknown"
        assert lost["error"]["code"] == "chain_unavailable"
        assert "idempotency_key" in lost["message"]
        assert again["outcome"] == "done"
        assert await own_world.balance(payee) == 1_000_000


async def test_vault_that_cannot_be_looked_up_leaves_nothing_sent(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    payee = await own_world.payee()
    async with agent(own_world) as one:

        async def fail(*_arguments: object, **_named: object) -> None:
            raise UnavailableError("storage_unavailable")

        with monkeypatch.context() as patched:
            patched.setattr("app.wallets.routes.wallets.page", fail)
            lost = await one.call("pay", to=payee, amount="1")
            shown = await one.call("get_wallet")

        assert (lost["outcome"], lost["error"]["code"]) == ("unavailable", "storage_unavailable")
        assert "changed nothing" in lost["message"]
        assert (shown["outcome"], shown["idempotency_key"]) == ("unavailable", None)
        assert await own_world.balance(payee) == 0
        again = await one.call("pay", to=payee, amount="1", idempotency_key=lost["idempotency_key"])
        assert again["outcome"] == "done"
        assert await own_world.balance(payee) == 1_000_000


async def test_payment_after_a_restore_asks_whether_it_was_made(own_world: ServiceWorld) -> None:
    world, payee = own_world, await own_world.payee()
    async with agent(world) as one:
        await world.service.db.write(lambda conn: mark_restored(conn, gap_checked=False))
        await world.service.part(DatabaseGuard).tick()

        asked = await one.call("pay", to=payee, amount="1", idempotency_key=_KEY)
        made = await one.call("pay", to=payee, amount="1", idempotency_key=_KEY, after_restore=True)

        assert (asked["outcome"], asked["error"]["code"]) == ("unknown", "restore_unacknowledged")
        for name in ("`after_restore`", "`list_transactions`", "`get_transaction`", "`idempotency_key`"):
            assert name in asked["message"]
        for name in ("GET ", "afterRestore", "agent-vault", "changed nothing", "nothing has changed"):
            assert name not in asked["message"]
        assert made["outcome"] == "done"
        assert await world.balance(payee) == 1_000_000


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("pay", {"to": "nobody", "amount": "1"}, "to"),
        ("pay", {"to": "11111111111111111111111111111112", "amount": 1}, "amount"),
        ("pay", {"to": "11111111111111111111111111111112", "amount": "1", "currency": "EUR"}, "currency"),
        ("pay", {"to": "11111111111111111111111111111112", "amount": "1", "tip": "9"}, "tip"),
        ("pay", {"amount": "1"}, "to"),
        ("pay", {"to": "11111111111111111111111111111112", "amount": "1", "afterRestore": True}, "afterRestore"),
        ("pay", {"to": "11111111111111111111111111111112", "amount": "1", "walletId": "wal_x"}, "walletId"),
        ("list_transactions", {"limit": "2"}, "limit: must be an integer"),
        ("list_transactions", {"limit": True}, "limit: must be an integer"),
        ("list_transactions", {"cursor": 5}, "cursor: must be a string"),
        ("list_transactions", {"x402_host": "a.example:80"}, "x402_host: must be a host without a port"),
        ("create_escrow", {"amount": "1", "task_description": "x"}, "to_wallet"),
        ("get_transaction", {}, "tx_id"),
        ("get_transaction", {"tx_id": "../keys"}, "no object with this id"),
        ("get_transaction", {"tx_id": ".."}, "tx_id"),
        ("list_transactions", {"colour": "red"}, "colour"),
        ("get_transaction", {"tx_id": "\u20ac" * 10_000}, "too long"),
        ("list_transactions", {"cursor": "\u20ac" * 10_000}, "too long"),
        ("pay", {"to": "nobody", "amount": "1", "idempotency_key": 5}, "idempotency_key"),
    ],
)
async def test_wrong_arguments_are_named_and_change_nothing(
    world: ServiceWorld, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async with agent(world) as one:
        content = await one.call(tool, **arguments)

        assert content["outcome"] == "invalid"
        assert said in content["message"]
        assert isinstance(content["idempotency_key"], str | None)
        assert "toWallet" not in content["message"]
        shown = await world.ok("GET", f"/v1/wallets/{one.wallet['wallet_id']}")
        assert shown["usdc_balance"] == "100.00"


async def test_number_that_is_not_finite_is_invalid(world: ServiceWorld) -> None:
    headers = {**await headers_of(world, await world.wallet()), "Accept": "application/json, text/event-stream"}
    call = _rpc(
        "tools/call", name="pay", arguments={"to": await world.payee(), "amount": float("inf"), "idempotency_key": _KEY}
    )
    async with served(world) as url, httpx.AsyncClient(base_url=url, headers=headers) as http:
        # JSON has no such number, but one that is too large becomes one.
        body = json.dumps(call).replace("Infinity", "1e400")
        answer = await http.post("/mcp", content=body, headers={"Content-Type": "application/json"})

    content = answer.json()["result"]["structuredContent"]
    assert (content["outcome"], content["error"]["code"]) == ("invalid", "invalid_request")


async def test_tool_and_resource_that_do_not_exist_are_refused(world: ServiceWorld) -> None:
    async with agent(world) as one:
        with pytest.raises(MCPError, match="no tool"):
            await one.client.call_tool("rotate_token", {})
        with pytest.raises(MCPError, match="no resource"):
            await one.client.read_resource("agent-vault://keys")


async def test_policy_is_read_in_plain_words(world: ServiceWorld) -> None:
    async with agent(world, maxPerDay="7", velocityCap=3) as one:
        listed = await one.client.list_resources()
        policy, guide = await one.read("agent-vault://policy"), await one.read("agent-vault://guide")

        assert {str(found.uri) for found in listed.resources} == {"agent-vault://policy", "agent-vault://guide"}
        assert "In any 24 hours, at most 7.00 USDC may be paid." in policy
        assert "In any hour, at most 3 payments may be made." in policy
        assert "idempotency_key" in guide


@pytest.mark.proves("POST /mcp")
async def test_request_without_a_key_is_refused(world: ServiceWorld) -> None:
    async with served(world) as url, httpx.AsyncClient(base_url=url) as http:
        for headers in ({}, {"Authorization": "Bearer avk_test_no"}, {"Authorization": "Basic eDp5"}):
            refused = await http.post("/mcp", json=_rpc("tools/list"), headers=headers)

            error_of(refused, 401, "authentication_failed")


async def test_foreign_host_and_origin_do_not_reach_the_tools(world: ServiceWorld) -> None:
    key = {"Authorization": f"Bearer {world.keys['admin']}"}
    async with served(world) as url, httpx.AsyncClient(base_url=url) as http:
        for foreign in ({"Host": "attacker.example"}, {"Origin": "https://attacker.example"}):
            refused = await http.post("/mcp", json=_rpc("tools/list"), headers={**key, **foreign})

            error_of(refused, 403, "host_not_allowed")


async def test_agents_key_alone_pays_nothing(world: ServiceWorld) -> None:
    wallet, payee = await world.wallet(), await world.payee()
    headers = await headers_of(world, wallet)
    del headers["Session-Token"]
    async with served(world) as url, connected(url, headers) as client:
        refused = await client.call_tool("pay", {"to": payee, "amount": "1", "idempotency_key": new_key()})

        assert refused.is_error
        assert refused.structured_content["error"]["code"] == "session_token_invalid"
        assert await world.balance(payee) == 0


async def test_agent_reaches_no_other_wallet(world: ServiceWorld) -> None:
    other, payee = await world.wallet(), await world.payee()
    async with agent(world) as one:
        refused = await one.call("pay", wallet_id=other["wallet_id"], to=payee, amount="1")

        assert refused["error"]["code"] == "insufficient_permissions"
        assert await world.balance(payee) == 0


async def test_results_hold_no_credential(world: ServiceWorld) -> None:
    async with agent(world) as one:
        said = [await one.call(tool.name) for tool in TOOLS]

        text = json.dumps(said)
        for secret in one.headers.values():
            assert secret.removeprefix("Bearer ") not in text


async def test_frozen_wallet_is_refused_with_a_remedy(world: ServiceWorld) -> None:
    payee = await world.payee()
    async with agent(world) as one:
        await world.ok("PATCH", f"/v1/wallets/{one.wallet['wallet_id']}", {"status": "frozen"})

        refused = await one.call("pay", to=payee, amount="1")

        assert refused["outcome"] == "refused"
        assert refused["refusal"] is None
        assert refused["error"]["code"] == "wallet_frozen"
        assert "Ask an admin of the organisation to unfreeze" in refused["message"]
        assert "PATCH" not in refused["message"]


async def test_payee_without_an_owner_is_paid_only_if_the_policy_lists_it(world: ServiceWorld) -> None:
    payee = unowned()
    async with agent(world) as one:
        anyway: Json = {"to": payee, "amount": "1", "allow_unverified_recipient": True}
        checked = await one.call("check_payment", to=payee, amount="1")
        refused = await one.call("pay", **anyway)

        assert [said.partition(":")[0] for said in checked["data"]["warnings"]] == [payee]
        assert (refused["outcome"], refused["error"]["code"]) == ("refused", "recipient_unverified")
        assert "ask an admin of the organisation to list it in the policy" in refused["message"]
        listing = {"allowedRecipients": [payee], "allowUnverifiedRecipient": True}
        policy = await world.policy(**listing)
        await world.ok("PATCH", f"/v1/wallets/{one.wallet['wallet_id']}", {"policyId": policy["policy_id"]})
        assert (await one.call("pay", **anyway))["outcome"] == "done"
