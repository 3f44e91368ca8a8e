"""The OpenAPI document, which matches the answers, and the documentation pages, which need no other host."""

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.core.errors import CATALOGUE
from app.server.application import operations
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_EXPECTED = {
    ("POST", "/v1/policies"),
    ("GET", "/v1/policies"),
    ("GET", "/v1/policies/{policy_id}"),
    ("PATCH", "/v1/policies/{policy_id}"),
    ("DELETE", "/v1/policies/{policy_id}"),
    ("POST", "/v1/policies/{policy_id}/clone"),
    ("POST", "/v1/policies/{policy_id}/preview"),
    ("GET", "/v1/policies/{policy_id}/audit-log"),
    ("POST", "/v1/budgets"),
    ("GET", "/v1/budgets"),
    ("GET", "/v1/budgets/{budget_id}"),
    ("PATCH", "/v1/budgets/{budget_id}"),
    ("DELETE", "/v1/budgets/{budget_id}"),
    ("POST", "/v1/wallets"),
    ("GET", "/v1/wallets"),
    ("GET", "/v1/wallets/{wallet_id}"),
    ("PATCH", "/v1/wallets/{wallet_id}"),
    ("DELETE", "/v1/wallets/{wallet_id}"),
    ("POST", "/v1/wallets/fund-batch"),
    ("POST", "/v1/wallets/{wallet_id}/fund"),
    ("POST", "/v1/wallets/{wallet_id}/withdraw"),
    ("POST", "/v1/wallets/{wallet_id}/forget-recipient"),
    ("POST", "/v1/wallets/{wallet_id}/rotate-token"),
    ("PUT", "/v1/wallets/{wallet_id}/auto-topup"),
    ("GET", "/v1/wallets/{wallet_id}/auto-topup"),
    ("POST", "/v1/wallets/{wallet_id}/pay"),
    ("POST", "/v1/payments"),
    ("POST", "/v1/payments/simulate"),
    ("POST", "/v1/x402/quote"),
    ("POST", "/v1/x402/fetch"),
    ("POST", "/v1/x402/payments"),
    ("POST", "/v1/paid-requests/quote"),
    ("POST", "/v1/paid-requests/fetch"),
    ("POST", "/v1/paid-requests/payments"),
    ("GET", "/v1/payments/{tx_id}"),
    ("POST", "/v1/payments/a2a"),
    ("GET", "/v1/payments/a2a"),
    ("POST", "/v1/wallets/{wallet_id}/allowances"),
    ("GET", "/v1/wallets/{wallet_id}/allowances"),
    ("POST", "/v1/wallets/{wallet_id}/allowances/{allowance_id}/settle"),
    ("GET", "/v1/payments/a2a/{escrow_id}"),
    ("POST", "/v1/payments/a2a/{escrow_id}/complete"),
    ("POST", "/v1/payments/a2a/{escrow_id}/dispute"),
    ("POST", "/v1/payments/a2a/{escrow_id}/dispute/withdraw"),
    ("POST", "/v1/payments/a2a/{escrow_id}/resolve"),
    ("POST", "/v1/x402/fetch"),
    ("POST", "/v1/x402/payments"),
    ("POST", "/v1/x402/quote"),
    ("GET", "/v1/approvals"),
    ("GET", "/v1/approvals/{approval_id}"),
    ("POST", "/v1/approvals/{approval_id}/approve"),
    ("POST", "/v1/approvals/{approval_id}/reject"),
    ("GET", "/v1/insights/spending"),
    ("GET", "/v1/transactions"),
    ("GET", "/v1/transactions/{tx_id}"),
    ("GET", "/v1/wallets/{wallet_id}/transactions"),
    ("POST", "/v1/transactions/export"),
    ("GET", "/v1/transactions/exports"),
    ("GET", "/v1/transactions/exports/{export_id}"),
    ("GET", "/v1/events"),
    ("GET", "/v1/audit-log"),
    ("GET", "/v1/alerts"),
    ("PUT", "/v1/alerts"),
    ("GET", "/v1/wallets/{wallet_id}/alerts"),
    ("GET", "/v1/wallets/{wallet_id}/sol"),
    ("PUT", "/v1/wallets/{wallet_id}/alerts"),
    ("GET", "/v1/recipients"),
    ("PUT", "/v1/recipients/{recipient}"),
    ("GET", "/v1/recipients/{recipient}"),
    ("POST", "/v1/keys"),
    ("GET", "/v1/organization"),
    ("PATCH", "/v1/organization"),
    ("GET", "/v1/signed-transactions"),
    ("POST", "/v1/signed-transactions"),
    ("DELETE", "/v1/signed-transactions/{id}"),
    ("GET", "/v1/keys"),
    ("GET", "/v1/request-log"),
    ("DELETE", "/v1/keys/{key_id}"),
    ("POST", "/v1/keys/{key_id}/rotate"),
    ("POST", "/v1/organization/pause"),
    ("PUT", "/v1/organization/key-restrictions"),
    ("GET", "/v1/people"),
    ("DELETE", "/v1/people/{person_id}"),
    ("POST", "/v1/webhooks"),
    ("GET", "/v1/webhooks"),
    ("GET", "/v1/webhooks/{webhook_id}"),
    ("PATCH", "/v1/webhooks/{webhook_id}"),
    ("DELETE", "/v1/webhooks/{webhook_id}"),
    ("POST", "/v1/webhooks/{webhook_id}/test"),
    ("POST", "/v1/webhooks/{webhook_id}/rotate-secret"),
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"),
    ("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/resend"),
    ("POST", "/v1/webhooks/{webhook_id}/deliveries/replay"),
    ("POST", "/v1/test/clock"),
}


async def _document(world: ServiceWorld) -> dict[str, Any]:
    response = await world.client.get("/openapi.json")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


@pytest.mark.proves("GET /openapi.json")
async def test_document_names_every_operation_and_its_errors(world: ServiceWorld) -> None:
    document = await _document(world)

    assert document["openapi"].startswith("3.1")
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert found == _EXPECTED
    assert found == {(method, route.path) for route in operations for method in (route.methods or set()) - {"HEAD"}}
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            responses = operation["responses"]
            assert {"200", "400", "401", "403", "500"} <= set(responses)
            for status, response in responses.items():
                codes = [] if status == "200" else response["description"].split(", ")
                assert all(CATALOGUE[code].status == int(status) for code in codes)


async def test_every_reference_resolves_and_no_component_is_unused(world: ServiceWorld) -> None:
    document = await _document(world)

    for kind in ("schemas", "headers"):
        named = set(re.findall(rf"#/components/{kind}/([\w-]+)", str(document)))
        assert named == set(document["components"][kind])


async def test_document_tells_how_to_authenticate(world: ServiceWorld) -> None:
    document = await _document(world)

    assert document["security"] == [{"api_key": []}]
    scheme = document["components"]["securitySchemes"]["api_key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")


async def test_document_names_the_headers_where_they_apply(world: ServiceWorld) -> None:
    operations = {
        operation["operationId"]: operation
        for methods in (await _document(world))["paths"].values()
        for operation in methods.values()
    }

    def taken(name: str) -> set[str]:
        return {one["name"] for one in operations[name]["parameters"] if one["in"] == "header"}

    def answered(name: str, status: str) -> set[str]:
        return set(operations[name]["responses"][status]["headers"])

    always = {"Request-Id", "Service-Time", "RateLimit", "RateLimit-Policy"}
    assert taken("create_payment") == {"Idempotency-Key", "Session-Token"}
    assert taken("update_policy") == taken("delete_policy") == {"Idempotency-Key", "If-Match"}
    assert taken("create_policy") == {"Idempotency-Key"}
    assert taken("get_policy") == set()
    assert answered("get_policy", "200") == {*always, "ETag"}
    assert answered("update_policy", "200") == {*always, "ETag", "Idempotent-Replayed"}
    assert answered("create_payment", "200") == {*always, "Idempotent-Replayed"}
    assert answered("create_payment", "402") == always
    assert answered("create_payment", "401") == {*always, "WWW-Authenticate"}
    for status in ("409", "429", "503"):
        assert answered("create_payment", status) == {*always, "Retry-After"}


async def test_document_links_what_is_made_to_what_is_done_with_it(world: ServiceWorld) -> None:
    paths = (await _document(world))["paths"]

    links = paths["/v1/wallets"]["post"]["responses"]["200"]["links"]

    assert links["get_wallet"] == {
        "operationId": "get_wallet",
        "parameters": {"wallet_id": "$response.body#/wallet_id"},
    }
    assert {"update_wallet", "archive_wallet", "fund_wallet", "pay_from_wallet"} <= set(links)
    assert set(paths["/v1/payments"]["post"]["responses"]["200"]["links"]) == {"get_payment", "get_transaction"}


async def test_every_body_has_an_example_with_its_required_fields(world: ServiceWorld) -> None:
    """The schemathesis run sends them and so shows that they are accepted."""
    document = await _document(world)
    bodies = {
        operation["operationId"]: operation["requestBody"]["content"]["application/json"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    }

    for name, media in bodies.items():
        schema = document["components"]["schemas"][media["schema"]["$ref"].rpartition("/")[2]]
        shown = media.get("example", {})
        assert set(schema.get("required", ())) <= set(shown) <= set(schema["properties"]), name
        assert "idempotencyKey" not in shown, name
        faults = Draft202012Validator({**schema, "components": document["components"]}).iter_errors(shown)
        assert [fault.message for fault in faults if "example" in media] == [], name
    assert bodies["create_payment"]["example"]["walletId"].startswith("wal_")
    assert bodies["update_wallet"]["example"] == {"status": "frozen"}


@pytest.mark.proves("Conventions: Names")
async def test_names_in_bodies_are_camel_case_and_in_answers_snake_case(world: ServiceWorld) -> None:
    schemas = (await _document(world))["components"]["schemas"]

    theirs = {"walletId", "to", "amount", "currency", "memo", "idempotencyKey"}
    assert {*theirs, "allowUnverifiedRecipient", "afterRestore"} == set(schemas["CreatePayment"]["properties"])
    assert {"tx_id", "wallet_id", "on_chain_slot", "policy_triggered"} <= set(schemas["Payment"]["properties"])
    assert schemas["CreatePayment"]["additionalProperties"] is False


@pytest.mark.proves("GET /openapi.json")
async def test_answers_hold_what_the_document_says(world: ServiceWorld) -> None:
    document = await _document(world)
    policy = await world.policy(maxPerTx="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    paid = (await world.pay(wallet, to, "1")).json()
    a2a = {"fromWallet": wallet["wallet_id"], "toWallet": to, "currency": "USDC", "taskDescription": "Work"}
    escrow = await world.ok("POST", "/v1/payments/a2a", {**a2a, "amount": "1"})
    answers = {
        "Policy": policy,
        "Wallet": wallet,
        "WalletDetail": await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"),
        "Payment": paid,
        "Transaction": await world.ok("GET", f"/v1/transactions/{paid['tx_id']}"),
        "Escrow": escrow,
        "EscrowPage": await world.ok("GET", "/v1/payments/a2a"),
        "WalletPage": await world.ok("GET", "/v1/wallets"),
        "TransactionPage": await world.ok("GET", "/v1/transactions"),
        "EventPage": await world.ok("GET", "/v1/events"),
        "ErrorEnvelope": (await world.pay(wallet, to, "6")).json(),
    }
    for name, answer in answers.items():
        schema = document["components"]["schemas"][name]
        assert set(schema["required"]) <= set(answer), name
        assert set(answer) <= set(schema["properties"]), name


@pytest.mark.proves("GET /docs", "GET /docs/{path}")
async def test_pages_need_nothing_from_elsewhere(world: ServiceWorld) -> None:
    for path in ("/docs", "/docs/api", "/docs/errors", "/docs/errors/policy_violation", "/docs/api/create_payment"):
        page = await world.client.get(path)
        assert page.headers["content-type"].startswith("text/html")
        assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
        assert "default-src 'none'" in page.headers["content-security-policy"]
    codes = (await world.client.get("/docs/errors")).text
    assert all(f"/docs/errors/{code}" in codes for code in CATALOGUE)
    listing = (await world.client.get("/docs/api")).text
    assert all(path in listing for _method, path in _EXPECTED)


@pytest.mark.proves("Conventions: Errors", "ErrorBody(docs)")
async def test_error_points_to_a_page_that_exists(world: ServiceWorld) -> None:
    response = await world.call("GET", "/v1/wallets/wal_unknown")
    docs = response.json()["error"]["docs"]

    page = await world.client.get(docs.removeprefix(world.settings.base_url()))

    assert page.status_code == 200
    assert "wallet_not_found" in page.text


@pytest.mark.proves("Conventions: Request id", "ErrorBody(request_id)")
async def test_every_answer_has_a_request_id_of_its_own(world: ServiceWorld) -> None:
    ids = {(await world.client.get(path)).headers["request-id"] for path in ("/docs", "/v1/wallets", "/nowhere")}

    assert len(ids) == 3
    assert all(one.startswith("req_") for one in ids)
