"""Bad input of every kind gets the contract's envelope, changes nothing and is not echoed."""

import json
from typing import Any

import httpx
import pytest

from app.core.errors import CATALOGUE
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ADDRESS = "7xKXtg2CW87d97TXJSDpbD5jBkheTqA83TZRuJosgAsU"
_LONG = "x" * 1_000


async def _raw(world: ServiceWorld, content: bytes, media_type: str | None = "application/json") -> httpx.Response:
    headers = {"Authorization": f"Bearer {world.keys['admin']}"}
    if media_type is not None:
        headers["Content-Type"] = media_type
    return await world.client.post("/v1/payments", content=content, headers=headers)


@pytest.mark.proves("Conventions: Unknown fields")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"null",
        b"1",
        b'{"amount": NaN}',
        b'{"amount": Infinity}',
        b'{"amount": -Infinity}',
        b"\xff\xfe",
        b'{"walletId": "\xc3\x28"}',
        b'{"walletId": "a", "walletId": "b"}',
        b'{"memo": "\\ud800"}',
        b"[" * 60_000,
        b'{"a":' * 12_000,
        b'{"amount": ' + b"1" * 10_000 + b"}",
        b'{"amount": 1e999}',
        b"{}trailing",
    ],
)
async def test_malformed_json_is_refused(world: ServiceWorld, content: bytes) -> None:
    error = error_of(await _raw(world, content), 400, "invalid_request")

    assert ("missing" in error["message"]) is (not content)


@pytest.mark.proves("Conventions: Unknown fields")
async def test_body_may_begin_with_a_byte_order_mark(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    body = {"walletId": wallet["wallet_id"], "to": await world.payee(), "amount": "1", "currency": "USDC"}
    mark, content = b"\xef\xbb\xbf", json.dumps(body).encode()

    paid = await _raw(world, mark + content)

    assert paid.json()["status"] == "confirmed", paid.text
    assert "missing" in error_of(await _raw(world, mark), 400, "invalid_request")["message"]
    for other in (mark + mark + content, content + mark, mark[:2] + content, content.decode().encode("utf-16")):
        error_of(await _raw(world, other), 400, "invalid_request")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_other_content_is_refused(world: ServiceWorld, media_type: str) -> None:
    error_of(await _raw(world, b"{}", media_type), 400, "invalid_request")


async def test_body_above_the_limit_is_refused(world: ServiceWorld) -> None:
    response = await _raw(world, b" " * (world.settings.max_body_bytes + 1))

    error_of(response, 413, "request_too_large")


_BAD_AMOUNTS: list[Any] = [
    "0",
    "0.00",
    "0.000000",
    "-1",
    "+1",
    "1.0000001",
    "1e3",
    "1E3",
    "NaN",
    "Infinity",
    "0x10",
    "1,5",
    "1.",
    ".5",
    " 1",
    "1 ",
    "1_000",
    "",
    "abc",
    "18446744073709.551616",
    "18446744073709551616",
    "9" * 500,
    "١٢",
    "１",  # noqa: RUF001
    1,
    1.5,
    -1,
    0,
    True,
    None,
    [],
    {},
    2**64,
]


@pytest.mark.proves("error invalid_amount", "FundWallet(amount)", "CreatePayment(amount)", "PayFromWallet(amount)")
@pytest.mark.parametrize("amount", _BAD_AMOUNTS)
async def test_bad_amount_is_refused_wherever_money_is_named(world: ServiceWorld, amount: object) -> None:
    wallet = await _shared_wallet(world)
    path = f"/v1/wallets/{wallet}"
    requests = [
        ("/v1/payments", {"walletId": wallet, "to": _ADDRESS, "amount": amount, "currency": "USDC"}),
        ("/v1/payments/simulate", {"walletId": wallet, "to": _ADDRESS, "amount": amount}),
        (f"{path}/pay", {"to": _ADDRESS, "amount": amount, "currency": "USDC"}),
        (f"{path}/fund", {"amount": amount}),
        (f"{path}/withdraw", {"amount": amount}),
    ]
    if amount is not None and amount not in ("0", "0.00", "0.000000"):
        requests.append(("/v1/policies", {"name": "Bad", "maxPerTx": amount}))
    for where, body in requests:
        error_of(await world.call("POST", where, body), 400, "invalid_amount")


async def test_largest_amount_is_an_amount(world: ServiceWorld) -> None:
    wallet = await _shared_wallet(world)
    body = {"walletId": wallet, "to": await world.payee(), "amount": "18446744073709.551615", "currency": "USDC"}

    response = await world.call("POST", "/v1/payments", body)

    assert response.status_code in {402, 422}, response.text


_shared: dict[int, str] = {}


async def _shared_wallet(world: ServiceWorld) -> str:
    if id(world) not in _shared:
        _shared[id(world)] = (await world.wallet(funds="1"))["wallet_id"]
    return _shared[id(world)]


_PAYMENT = {"walletId": "wal_x", "to": _ADDRESS, "amount": "1", "currency": "USDC"}
_WALLET = {"agentId": "bad", "label": "Bad", "policyId": "pol_moderate"}


@pytest.mark.proves(
    "Conventions: Unknown fields",
    "error invalid_request",
    "Limits: Currency",
    "Limits: agentId, label, name",
    "Limits: memo",
    "Limits: tags",
    "Limits: idempotencyKey",
    "CreateWallet(agentId)",
    "CreatePayment(walletId, currency)",
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/payments", {}),
        *(("POST", "/v1/payments", {key: _PAYMENT[key] for key in _PAYMENT if key != left}) for left in _PAYMENT),
        ("POST", "/v1/payments", {**_PAYMENT, "surprise": 1}),
        ("POST", "/v1/payments", {**_PAYMENT, "<script>": 1}),
        ("POST", "/v1/payments", {**_PAYMENT, "\ud800": 1}),
        ("POST", "/v1/payments", {**_PAYMENT, "wallet_id": "wal_x"}),
        ("POST", "/v1/payments", {**_PAYMENT, "currency": "EUR"}),
        ("POST", "/v1/payments", {**_PAYMENT, "currency": "usdc"}),
        ("POST", "/v1/payments", {**_PAYMENT, "memo": "x" * 513}),
        ("POST", "/v1/payments", {**_PAYMENT, "memo": 5}),
        ("POST", "/v1/payments", {**_PAYMENT, "memo": "\x00"}),
        ("POST", "/v1/payments", {**_PAYMENT, "walletId": None}),
        ("POST", "/v1/payments", {**_PAYMENT, "walletId": ["wal_x"]}),
        ("POST", "/v1/payments", {**_PAYMENT, "idempotencyKey": ""}),
        ("POST", "/v1/payments", {**_PAYMENT, "idempotencyKey": "x" * 256}),
        ("POST", "/v1/payments", {**_PAYMENT, "idempotencyKey": 7}),
        ("POST", "/v1/payments", {**_PAYMENT, "idempotencyKey": "réglée"}),
        ("POST", "/v1/payments", {**_PAYMENT, "idempotencyKey": "order 1\n"}),
        ("POST", "/v1/payments", {**_PAYMENT, "idempotencyKey": " order 1"}),
        ("POST", "/v1/wallets", {**_WALLET, "agentId": "x" * 129}),
        ("POST", "/v1/wallets", {**_WALLET, "agentId": ""}),
        ("POST", "/v1/wallets", {**_WALLET, "agentId": " bad"}),
        ("POST", "/v1/wallets", {**_WALLET, "agentId": "bad\n"}),
        ("POST", "/v1/wallets", {**_WALLET, "label": "x" * 129}),
        ("POST", "/v1/wallets", {**_WALLET, "label": "   "}),
        ("POST", "/v1/wallets", {**_WALLET, "tags": "a,b"}),
        ("POST", "/v1/wallets", {**_WALLET, "tags": ["x" * 65]}),
        ("POST", "/v1/wallets", {**_WALLET, "tags": ["x"] * 33}),
        ("POST", "/v1/wallets", {**_WALLET, "tags": [1]}),
        ("POST", "/v1/wallets", {**_WALLET, "policyId": 1}),
        ("POST", "/v1/policies", {"name": "x" * 129}),
        ("POST", "/v1/policies", {"name": ""}),
        ("POST", "/v1/policies", {"name": " "}),
        ("PATCH", "/v1/policies/pol_x", {"name": "\t"}),
        ("POST", "/v1/policies", {"name": "x", "velocityCap": "5"}),
        ("POST", "/v1/policies", {"name": "x", "velocityCap": 1.5}),
        ("POST", "/v1/policies", {"name": "x", "velocityCap": -1}),
        ("POST", "/v1/policies", {"name": "x", "velocityCap": 2**32}),
        ("POST", "/v1/policies", {"name": "x", "velocityCap": True}),
        ("POST", "/v1/policies", {"name": "x", "expiry": "tomorrow"}),
        ("POST", "/v1/policies", {"name": "x", "expiry": 1_900_000_000}),
        ("POST", "/v1/policies", {"name": "x", "expiry": "1969-12-31T23:59:59Z"}),
        ("POST", "/v1/policies", {"name": "x", "expiry": "0001-01-01T00:00:00+14:00"}),
        ("POST", "/v1/policies", {"name": "x", "blockedCategories": ["chess"]}),
        ("POST", "/v1/policies", {"name": "x", "blockedCategories": "gambling"}),
        ("POST", "/v1/policies", {"name": "x", "blockedCategories": [1]}),
        ("POST", "/v1/policies", {"name": "x", "allowedRecipients": None}),
        ("PUT", "/v1/recipients/example.com", {"address": _ADDRESS, "category": "chess"}),
    ],
)
async def test_bad_field_is_refused(world: ServiceWorld, method: str, path: str, body: Any) -> None:
    headers = {"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json"}
    response = await world.client.request(method, path, content=json.dumps(body), headers=headers)

    error = error_of(response, 400, "invalid_request")

    assert "Traceback" not in response.text
    assert "<script>" not in error["message"] or error["message"].count("<") <= 1


@pytest.mark.proves("Conventions: Names", "Conventions: Errors")
@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/payments", {**_PAYMENT, "surprise": 1}, "surprise: is unknown to this request."),
        (
            "/v1/payments",
            {**_PAYMENT, "wallet_id": "wal_x"},
            "body: walletId and wallet_id are the same; send only one of them.",
        ),
        ("/v1/payments", {**_PAYMENT, "currency": "EUR"}, "currency: must be 'USDC'."),
        ("/v1/payments", {**_PAYMENT, "amount": 1}, "amount: must be a decimal string, not a number."),
        ("/v1/payments", {**_PAYMENT, "amount": True}, "amount: must be a decimal string."),
        ("/v1/payments", {"to": _ADDRESS, "amount": "1", "currency": "USDC"}, "walletId: is required."),
        ("/v1/wallets", {**_WALLET, "label": 5}, "label: must be a string."),
        ("/v1/wallets", {**_WALLET, "label": ""}, "label: must have 1 or more characters."),
        ("/v1/wallets", {**_WALLET, "label": "x" * 129}, "label: must have at most 128 characters."),
        ("/v1/wallets", {**_WALLET, "tags": "a"}, "tags: must be an array."),
        ("/v1/wallets", {**_WALLET, "tags": ["x"] * 33}, "tags: must have at most 32 items."),
        ("/v1/wallets/fund-batch", {"allocations": []}, "allocations: must have 1 or more items."),
        ("/v1/wallets/fund-batch", {"allocations": [5]}, "allocations.0: must be an object."),
        (
            "/v1/wallets/fund-batch",
            {"allocations": [{"walletId": "a", "wallet_id": "b", "amount": "1"}]},
            "allocations.0: walletId and wallet_id are the same; send only one of them.",
        ),
        ("/v1/policies", {"name": "x", "velocityCap": "5"}, "velocityCap: must be a whole number."),
        ("/v1/policies", {"name": "x", "velocityCap": -1}, "velocityCap: must be at least 0."),
        ("/v1/policies", {"name": "x", "expiry": "1969-12-31T23:59:59Z"}, "expiry: must be in the years 1970 to 9999."),
        (
            "/v1/policies",
            {"name": "x", "expiry": "tomorrow"},
            "expiry: must be an ISO 8601 timestamp such as 2026-05-01T00:00:00Z.",
        ),
        (
            "/v1/payments/a2a/escrow_x/complete",
            {"proofType": "output_hash", "proof": "x", "outputUrl": "example"},
            "outputUrl: must be a URL such as https://example.com/output.",
        ),
        (
            "/v1/payments/a2a/escrow_x/dispute",
            {"reason": "late", "evidence": "abc"},
            "evidence: must be sha256: and 64 hexadecimal digits.",
        ),
    ],
)
async def test_message_names_the_field_and_what_it_must_be(
    world: ServiceWorld, path: str, body: Json, message: str
) -> None:
    error = (await world.call("POST", path, body)).json()["error"]

    assert error["message"] == message


@pytest.mark.proves("UpdateWallet(label, policyId, tags, status)")
@pytest.mark.parametrize("name", ["label", "policyId", "tags", "status"])
async def test_update_takes_no_null_and_no_nonsense(world: ServiceWorld, name: str) -> None:
    path = f"/v1/wallets/{await _shared_wallet(world)}"
    for body in ({name: None}, {}, {name: 5}, {name: "x" * 129}, {"status": "archived"}, {"agentId": "new"}):
        error_of(await world.call("PATCH", path, body), 400, "invalid_request")


@pytest.mark.proves("error invalid_recipient")
@pytest.mark.parametrize(
    "to",
    [
        "nonsense",
        "localhost",
        "127.0.0.1",
        "[::1]",
        "https://example.com",
        "example.com/path",
        "example.com:443",
        "user@example.com",
        "ex ample.com",
        "-bad.example.com",
        "..",
        "wal_unknown",
        "0" * 44,
        _ADDRESS[:-1] + "0",
        _ADDRESS + _ADDRESS,
        "例え",
        "",
        "\x00",
        "x" * 300,
        5,
        None,
        [_ADDRESS],
    ],
)
async def test_bad_recipient_is_refused(world: ServiceWorld, to: object) -> None:
    wallet = await _shared_wallet(world)
    escrow = {"fromWallet": wallet, "toWallet": to, "amount": "1", "currency": "USDC", "taskDescription": "Work"}
    requests = [
        ("/v1/payments", {"walletId": wallet, "to": to, "amount": "1", "currency": "USDC"}, "to: "),
        ("/v1/payments/simulate", {"walletId": wallet, "to": to, "amount": "1"}, "to: "),
        ("/v1/payments/a2a", escrow, "toWallet: "),
        ("/v1/policies", {"name": "x", "allowedRecipients": [_ADDRESS, to]}, "allowedRecipients.1: "),
    ]
    for path, body, field in requests:
        error = error_of(await world.call("POST", path, body), 400, "invalid_recipient")
        assert error["message"].startswith(field)


async def test_unknown_category_is_named_by_its_place(world: ServiceWorld) -> None:
    body = {"name": "x", "blockedCategories": ["gambling", "chess"]}

    error = error_of(await world.call("POST", "/v1/policies", body), 400, "invalid_request")

    assert error["message"].startswith("blockedCategories.1: must be one of uncategorized, adult, ")


@pytest.mark.proves(
    "Conventions: Unknown fields",
    "error invalid_request",
    "Limits: Page of a list",
    "GET /v1/transactions(status, type, from, to, walletId, recipient)",
)
@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=-1",
        "limit=ten",
        "limit=1_0",
        "limit=5.0",
        "limit=5e0",
        "limit=%205",
        "limit=5%20",
        "limit=%2B5",
        "limit=\u0665",
        "limit=" + "1" * 5_000,
        "limit=",
        "limit=5&limit=6",
        "cursor=nonsense",
        "cursor=",
        "cursor=" + "A" * 600,
        "cursor=WzEsMl0",
        "cursor=e30",
        "cursor=%00",
        "cursor=WzEsIlx1ZDgwMCJd",
        "status=unknown",
        "surprise=1",
        "walletId=",
        "from=yesterday",
        "to=2026-13-01",
        "to=2026-W47",
        "to=20261121",
        "from=2026-05-02&to=2026-05-01",
        "from=2026-05-01&to=2026-05-01",
        "type=gift",
        "recipient=",
    ],
)
async def test_bad_query_is_refused(world: ServiceWorld, query: str) -> None:
    error_of(await world.call("GET", f"/v1/transactions?{query}"), 400, "invalid_request")


@pytest.mark.parametrize("status", ["2_00", "200.0", "%2B200", "%20200"])
async def test_status_of_the_request_log_is_a_whole_number(world: ServiceWorld, status: str) -> None:
    error = error_of(await world.call("GET", f"/v1/request-log?status={status}"), 400, "invalid_request")

    assert error["message"].startswith("status: ")


@pytest.mark.proves("Conventions: Errors", "GET /v1/wallets(tags)", "GET /v1/events(from, to)")
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("transactions?surprise=1", "surprise: is unknown to this request."),
        ("transactions?limit=ten", "limit: must be a whole number."),
        ("transactions?spending=maybe", "spending: must be true or false."),
        (
            "transactions?from=2026-05-01T00:00:00+02:00",
            "from: must have a + before its offset; encode the + as %2B in a query.",
        ),
        ("transactions?from=2026-05-02&to=2026-05-01", "to: must be later than from."),
        ("events?from=2026-05-02&to=2026-05-01", "to: must be later than from."),
        ("events?type=ping&event=ping", "query: type and event are the same; send only one of them."),
        ("transactions?walletId=a&wallet_id=b", "query: walletId and wallet_id are the same; send only one of them."),
        ("wallets?tags=", "tags.0: must have 1 or more characters."),
        ("wallets?tags=a,,b", "tags.1: must have 1 or more characters."),
    ],
)
async def test_message_names_the_parameter_and_what_it_must_be(world: ServiceWorld, query: str, message: str) -> None:
    error = error_of(await world.call("GET", f"/v1/{query}"), 400, "invalid_request")

    assert error["message"] == message


async def test_query_where_none_is_taken_is_refused(world: ServiceWorld) -> None:
    error_of(await world.call("GET", "/v1/policies?limit=5"), 400, "invalid_request")


@pytest.mark.proves(
    "error not_found",
    "error wallet_not_found",
    "error policy_not_found",
    "error transaction_not_found",
    "error recipient_not_found",
)
@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v1/wallets/wal_unknown", "wallet_not_found"),
        ("GET", "/v1/wallets/%00", "wallet_not_found"),
        ("GET", "/v1/wallets/' OR 1=1 --", "wallet_not_found"),
        ("GET", f"/v1/wallets/{_LONG}", "wallet_not_found"),
        ("GET", "/v1/wallets/wal_unknown/transactions", "wallet_not_found"),
        ("GET", "/v1/transactions?walletId=wal_unknown", "wallet_not_found"),
        ("GET", "/v1/events?walletId=wal_unknown", "wallet_not_found"),
        ("GET", "/v1/policies/pol_unknown", "policy_not_found"),
        ("GET", f"/v1/policies/{_LONG}", "policy_not_found"),
        ("GET", "/v1/payments/tx_unknown", "transaction_not_found"),
        ("GET", "/v1/transactions/tx_unknown", "transaction_not_found"),
        ("GET", f"/v1/recipients/{_ADDRESS}", "recipient_not_found"),
        ("GET", "/v1/recipients/nobody.example.com", "recipient_not_found"),
        ("GET", "/v1/unknown", "not_found"),
        ("POST", "/v1/payments/", "not_found"),
        ("GET", "/docs/", "not_found"),
        ("GET", "/nothing", "not_found"),
        ("POST", "/v1/payments/a/b/c", "not_found"),
        ("GET", "/docs/errors/unknown", "not_found"),
    ],
)
async def test_unknown_things_are_not_found(world: ServiceWorld, method: str, path: str, code: str) -> None:
    error_of(await world.call(method, path), 404, code)


@pytest.mark.proves("error method_not_allowed")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/wallets", {"GET", "HEAD", "POST"}),
        ("DELETE", "/v1/policies", {"GET", "HEAD", "POST"}),
        ("GET", "/v1/payments", {"POST"}),
        ("DELETE", "/v1/payments/a2a", {"GET", "HEAD", "POST"}),
        ("PUT", "/v1/wallets/fund-batch", {"POST"}),
        ("POST", "/v1/wallets/wal_x", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("TRACE", "/v1/events", {"GET", "HEAD"}),
    ],
)
async def test_other_methods_are_not_allowed(world: ServiceWorld, method: str, path: str, allowed: set[str]) -> None:
    response = await world.call(method, path)

    error_of(response, 405, "method_not_allowed")
    assert set(response.headers["allow"].split(", ")) == allowed


async def test_whole_number_may_be_written_with_a_point(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"

    for text, status in (("60.0", 200), ("6e1", 200), ("60.5", 400), ("1e400", 400)):
        response = await world.client.post(
            path,
            content=f'{{"ttlSeconds": {text}}}',
            headers={"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json"},
        )
        assert response.status_code == status, response.text


async def test_payment_from_an_unknown_wallet_is_refused(world: ServiceWorld) -> None:
    error_of(await world.call("POST", "/v1/payments", _PAYMENT), 404, "wallet_not_found")


async def test_refused_requests_leave_nothing(world: ServiceWorld) -> None:
    before = await world.ok("GET", "/v1/wallets?limit=100"), await world.ok("GET", "/v1/policies")

    for body in ({**_WALLET, "tags": ["x" * 65]}, {**_WALLET, "surprise": 1}):
        await world.call("POST", "/v1/wallets", body)
    await world.call("POST", "/v1/policies", {"name": "x", "maxPerTx": "-1"})

    assert (await world.ok("GET", "/v1/wallets?limit=100"), await world.ok("GET", "/v1/policies")) == before


@pytest.mark.proves("error internal_error")
async def test_unexpected_error_is_answered_without_details(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("the secret plan")

    monkeypatch.setattr("app.wallets.routes.wallets.page", fail)

    response = await world.call("GET", "/v1/wallets")

    error_of(response, 500, "internal_error")
    assert "secret plan" not in response.text


async def test_every_code_has_its_page(world: ServiceWorld) -> None:
    for code, kind in CATALOGUE.items():
        page = await world.client.get(f"/docs/errors/{code}")
        assert page.status_code == 200
        assert code in page.text
        assert str(kind.status) in page.text
