"""MPP servers that lie: each challenge that cannot be paid gets a clear error, and nothing is paid."""

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from solders.keypair import Keypair
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.x402.protocols.challenges import challenges_in
from tests.support.http import site
from tests.support.service_world import Json, error_of
from tests.x402.conftest import Buyer, Market
from tests.x402.mpp import challenge, charge, demanding, encoded

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DUPLICATE = '{"amount":"1","amount":"10000","currency":"USDC","recipient":"x","methodDetails":{"network":"localnet"}}'
Made = Callable[[Market], str | list[str]]

#: Challenges that are for others than this service, and the words that say so.
_FOREIGN: dict[str, tuple[Made, str]] = {
    "method": (lambda it: challenge(charge(it), method="tempo"), 'MPP with method "tempo"; this service pays "solana"'),
    "session": (
        lambda it: challenge(charge(it), intent="session"),
        'intent "session"; this service pays "charge"',
    ),
    "subscription": (lambda it: challenge(charge(it), intent="subscription"), 'this service pays "charge"'),
    "words": (
        lambda it: challenge(charge(it), method="Pay 5 USDC"),
        'another method; this service pays "solana"',
    ),
    "sol": (lambda it: challenge(charge(it, currency="sol")), "this service pays USDC"),
    "mint": (lambda it: challenge(charge(it, currency=str(Keypair().pubkey()))), "this service pays USDC"),
    "network": (lambda it: challenge(charge(it, methodDetails={"network": "devnet"})), "on another network"),
    "main network": (lambda it: challenge(charge(it, methodDetails={"network": "mainnet"})), "on another network"),
    "splits": (lambda it: challenge(charge(it, methodDetails={"splits": [{"amount": "1"}]})), "splits"),
    "confidential": (lambda it: challenge(charge(it, methodDetails={"confidential": True})), "confidential"),
}
#: Challenges that are malformed or expired, and the reason.
_MALFORMED: dict[str, tuple[Made, str]] = {
    "no id": (lambda it: challenge(charge(it), id=None), "id is missing"),
    "no request": (lambda it: challenge(charge(it), request=None), "request is missing, or"),
    "unterminated": (lambda it: challenge(charge(it))[:-1], "parameters cannot be read"),
    "twice": (lambda it: challenge(charge(it)) + ', id="two"', "two parameters"),
    "no base64": (lambda it: challenge(charge(it), request="%%%"), "cannot be read as JSON"),
    "no JSON": (lambda _: challenge("{"), "cannot be read as JSON"),
    "duplicate names": (lambda _: challenge(_DUPLICATE), "has a name twice"),
    "a list": (lambda it: challenge([charge(it)]), "not a JSON object"),
    "deep": (lambda _: challenge("[" * 9_000), "cannot be read as JSON"),
    "details": (lambda it: challenge({**charge(it), "methodDetails": []}), "not a JSON object"),
    "a list as network": (
        lambda it: challenge(charge(it, methodDetails={"network": ["localnet"]})),
        "network must be text",
    ),
    "a number": (lambda it: challenge(charge(it, amount=10_000)), "amount must be"),
    "zero": (lambda it: challenge(charge(it, amount="0")), "amount must be"),
    "above 2^64": (lambda it: challenge(charge(it, amount=str(2**64))), "amount must be"),
    "fraction": (lambda it: challenge(charge(it, amount="0.01")), "amount must be"),
    "recipient": (lambda it: challenge(charge(it, recipient="nobody")), "recipient must be an address"),
    "no sponsor": (lambda it: challenge(charge(it, methodDetails={"feePayerKey": None})), "feePayerKey must be"),
    "sponsor": (lambda it: challenge(charge(it, methodDetails={"feePayer": "yes"})), "feePayer must be true or false"),
    "token program": (lambda it: challenge(charge(it, methodDetails={"tokenProgram": "x"})), "tokenProgram"),
    "decimals": (lambda it: challenge(charge(it, methodDetails={"decimals": 9})), "decimals must be 6"),
    "memo": (lambda it: challenge(charge(it, externalId="x" * 257)), "externalId must have"),
    "half a character": (
        lambda it: challenge(charge(it, externalId="\ud800")),
        "externalId must have 1 to 256 bytes of UTF-8",
    ),
    "costly memo": (lambda it: challenge(charge(it, externalId="漢" * 40)), "compute budget"),
    "expired": (lambda it: challenge(charge(it), expires="2020-01-01T00:00:00Z"), "has expired"),
    "no time": (lambda it: challenge(charge(it), expires="soon"), "ISO 8601"),
    "digest": (lambda it: challenge(charge(it), digest=f"sha-256={'A' * 43}"), "digest"),
    "header": (lambda it: challenge(charge(it), header="Host"), "header cannot carry"),
    "too long": (lambda it: [challenge(charge(it))] * 10_000, ""),
    "long": (lambda it: [challenge(charge(it))] * 120, "WWW-Authenticate is too long"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def buyer(market: Market) -> Buyer:
    """An agent for all requests that cost nothing."""
    return await market.buyer(allowAllowances=True)


async def _refused(market: Market, buyer: Buyer, answer: Response, code: str) -> Json:
    async def handler(_request: Request) -> Response:
        return answer

    async with site(handler) as url:
        got = await buyer.post("fetch", url=f"{url}/", maxAmount="1")
    shown = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}")
    assert shown["usdc_balance"] == "100.00"
    return error_of(got, 422, code)


def _answer(market: Market, make: Made) -> Response:
    made = make(market)
    return demanding(*([made] if isinstance(made, str) else made))


@pytest.mark.proves("error x402_no_acceptable_offer")
@pytest.mark.parametrize("case", _FOREIGN)
async def test_challenge_for_others_is_named_and_not_paid(market: Market, buyer: Buyer, case: str) -> None:
    make, reason = _FOREIGN[case]
    error = await _refused(market, buyer, _answer(market, make), "x402_no_acceptable_offer")
    assert "the 402 response offers MPP" in error["message"]
    assert reason in error["message"]


@pytest.mark.proves("error x402_invalid_terms")
@pytest.mark.parametrize("case", _MALFORMED)
async def test_malformed_challenge_is_refused_with_its_fault(market: Market, buyer: Buyer, case: str) -> None:
    make, reason = _MALFORMED[case]
    code = "x402_resource_unavailable" if case == "too long" else "x402_invalid_terms"
    assert reason in (await _refused(market, buyer, _answer(market, make), code))["message"]


async def test_vault_is_not_made_to_pay_itself_by_mpp(market: Market, buyer: Buyer) -> None:
    got = await _offered(buyer, challenge(charge(market, recipient=buyer.wallet["chain_address"])))
    error_of(got, 400, "invalid_recipient")


async def _offered(buyer: Buyer, demanded: Any, **body: Any) -> Any:
    body = {"url": "http://127.0.0.1:9/x", "paymentRequired": demanded, "maxAmount": "1", **body}
    return await buyer.post("payments", **body)


@pytest.mark.proves("PayOffer(paymentRequired)")
async def test_bad_challenges_hide_no_good_one(market: Market) -> None:
    buyer = await market.buyer(allowAllowances=True)
    bad = [_MALFORMED[name][0](market) for name in ("unterminated", "duplicate names", "a number", "twice", "expired")]
    header = ", ".join([*map(str, bad), "Bearer abc==", challenge(charge(market)), 'Basic realm="x"'])

    handed = (await _offered(buyer, header)).json()

    assert [one.partition(":")[0] for one in handed["warnings"]] == [f"challenge[{n}] was skipped" for n in range(5)]
    assert handed["payload"]["challenge"]["id"] == "one"


@pytest.mark.proves("POST /v1/paid-requests/payments")
async def test_challenge_is_echoed_as_it_came(market: Market) -> None:
    buyer = await market.buyer(allowAllowances=True)
    request = json.dumps(charge(market), indent=1)
    padded = base64.urlsafe_b64encode(request.encode()).decode()
    more = {"opaque": "b3BhcXVl", "header": "Payment-Authorization", "description": r"say \"hi\", \\o/", "x": "y"}
    digest = "sha-256=" + base64.b64encode(hashlib.sha256(b"").digest()).decode()

    handed = (await _offered(buyer, challenge({}, request=padded, digest=digest, **more))).json()

    assert handed["header_name"] == "Payment-Authorization"
    assert handed["header_value"].startswith("Payment ")
    assert handed["payload"]["challenge"] == {
        "id": "one",
        "realm": "shop",
        "method": "solana",
        "intent": "charge",
        "request": padded,
        "digest": digest,
        **more,
        "description": r'say "hi", \o/',
    }


@pytest.mark.proves("HandedOut(payload)", "PayOffer(paymentRequired)")
async def test_paid_tool_of_mcp_demands_by_its_error(market: Market) -> None:
    buyer = await market.buyer(allowAllowances=True)
    named = {"id": "one", "realm": "shop", "method": "solana", "intent": "charge"}
    error = {"code": -32042, "data": {"challenges": [{**named, "request": charge(market)}]}}

    handed = (await _offered(buyer, error)).json()

    assert handed["payload"]["challenge"]["request"] == charge(market)
    assert handed["payment"]["paid_request"]["protocol"] == "mpp"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"id": 2**53 + 1}, "id is missing or not text"),
        ({"realm": ["shop"]}, "realm is missing or not text"),
        ({"method": {}}, "method is missing or not text"),
        ({"opaque": 2**53}, "canonical JSON"),
        ({"description": 10**400}, "canonical JSON"),
        ({"header": 7}, "header cannot carry"),
        ({"request": "{}"}, "cannot be read as JSON"),
        ({"request": 7}, "request is missing"),
        ({"request": {"amount": "1", "methodDetails": {"network": {}}}}, "network must be text"),
    ],
)
async def test_challenge_of_a_tool_that_cannot_be_echoed_is_refused(
    market: Market, buyer: Buyer, changed: Json, reason: str
) -> None:
    named = {"id": "one", "realm": "shop", "method": "solana", "intent": "charge", "request": charge(market)}
    got = await _offered(buyer, {"code": -32042, "data": {"challenges": [{**named, **changed}]}})
    assert reason in error_of(got, 422, "x402_invalid_terms")["message"]


@pytest.mark.proves("error x402_no_acceptable_offer")
async def test_protocol_that_the_service_does_not_pay_is_named(market: Market, buyer: Buyer) -> None:
    demanded, named = (
        'L402 macaroon="AGI", invoice="lnbc1"',
        'The 402 response offers protocol "L402"; this service pays x402 and MPP',
    )
    fetched = await _refused(market, buyer, demanding(demanded), "x402_no_acceptable_offer")
    handed = error_of(await _offered(buyer, demanded), 422, "x402_no_acceptable_offer")
    beside = error_of(await _offered(buyer, 'Pay!5 "now"'), 422, "x402_invalid_terms")
    assert [one["message"].startswith(named) for one in (fetched, handed)] == [True, True]
    assert "5" not in beside["message"]


async def test_key_of_another_request_pays_nothing_more(market: Market) -> None:
    buyer = await market.buyer(allowAllowances=True)
    first = await _offered(buyer, challenge(charge(market)), idempotencyKey="one")
    other = await _offered(buyer, challenge(charge(market)), url="http://127.0.0.1:9/y", idempotencyKey="one")
    fetched = await buyer.post("fetch", url="http://127.0.0.1:9/y", maxAmount="1", idempotencyKey="one")
    assert first.status_code == 200
    for refused in (other, fetched):
        error_of(refused, 409, "idempotency_conflict")
    found = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}/allowances")
    assert [one["amount"] for one in found["data"]] == ["0.01"]


async def test_server_that_demands_for_ever_returns_everything(market: Market) -> None:
    buyer, given = await market.buyer(allowAllowances=True), list[str]()
    receipt = encoded({"method": "solana", "reference": "1" * 88, "status": "success", "challengeId": "other"})

    async def handler(request: Request) -> Response:
        given.append(request.headers.get("authorization", ""))
        answer = demanding(challenge(charge(market), id=f"c{len(given)}"))
        answer.headers["Payment-Receipt"] = receipt
        return answer

    async with site(handler) as url:
        got = [await buyer.fetch(f"{url}/", idempotencyKey="for-ever") for _ in range(2)]

    assert [bool(one) for one in given] == [False, True]
    assert got[0] == got[1]
    assert (got[0]["resource"]["status"], got[0]["payment"]["status"]) == (402, "failed")
    assert got[0]["payment"]["tx_signature"] is None
    shown = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}")
    assert shown["usdc_balance"] == "100.00"


@pytest.mark.parametrize("status", [200, 302])
async def test_receipt_and_redirection_of_a_payment_are_not_believed(market: Market, status: int) -> None:
    buyer, before, asked = await market.buyer(allowAllowances=True), await market.received(), list[str]()

    async def handler(request: Request) -> Response:
        asked.append(request.url.path)
        if "authorization" not in request.headers:
            return demanding(challenge(charge(market)))
        receipt = encoded({"method": "solana", "reference": "1" * 88, "status": "success", "challengeId": "other"})
        headers = {"Payment-Receipt": receipt, "Location": str(request.url.replace(path="/elsewhere"))}
        return Response(b"yours", status, headers=headers)

    async with site(handler) as url:
        got = await buyer.fetch(f"{url}/a")

    # The credential stays with the resource, and the chain says that nothing was paid.
    assert asked == ["/a", "/a"]
    assert (got["resource"]["status"], got["payment"]["status"], got["payment"]["tx_signature"]) == (
        status,
        "failed",
        None,
    )
    shown = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}")
    assert (shown["usdc_balance"], await market.received()) == ("100.00", before)


async def test_amount_of_the_body_does_not_count(market: Market, buyer: Buyer) -> None:
    answer = demanding(challenge(charge(market)), body=json.dumps(charge(market, amount="1")).encode())

    async def handler(_request: Request) -> Response:
        return answer

    async with site(handler) as url:
        quoted = (await buyer.post("quote", url=f"{url}/")).json()
    assert (quoted["price"], quoted["protocol"]) == ("0.01", "mpp")


async def test_redirection_with_a_challenge_is_not_followed(market: Market, buyer: Buyer) -> None:

    async def handler(_request: Request) -> Response:
        headers = {"Location": "http://169.254.169.254/", "WWW-Authenticate": challenge(charge(market))}
        return Response(b"", 302, headers=headers)

    async with site(handler) as url:
        got = await buyer.fetch(f"{url}/")
    assert (got["resource"]["status"], got["payment"]) == (302, None)


async def test_requests_ask_for_what_the_service_pays(buyer: Buyer) -> None:
    seen = list[str | None]()

    async def handler(request: Request) -> Response:
        seen.append(request.headers.get("accept-payment"))
        return PlainTextResponse("free")

    async with site(handler) as url:
        await buyer.fetch(f"{url}/")
        await replace(buyer, paths="x402").fetch(f"{url}/")
    assert seen == ["solana/charge"] * 2


async def test_challenges_are_told_apart_by_their_schemes() -> None:
    found = challenges_in('Digest a="b, Payment id=\\"x\\"", Payment id=1, Negotiate, payment  id = "2" ,,')
    assert found == [
        ("Digest", {"a": 'b, Payment id="x"'}),
        ("Payment", {"id": "1"}),
        ("Negotiate", {}),
        ("payment", {"id": "2"}),
    ]
