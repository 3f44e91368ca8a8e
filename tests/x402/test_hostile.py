"""Resources that lie, stall or lead elsewhere: each gets a clear error, and nothing is paid unless it says so."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from tests.support import node
from tests.support.http import site
from tests.support.service_world import GENESIS_HASHES, Json, ServiceWorld, error_of
from tests.x402.conftest import Buyer, Market
from tests.x402.servers import settled

pytestmark = pytest.mark.asyncio(loop_scope="module")


def offer(market: Market, **changed: Any) -> Json:
    accepted = {
        "scheme": "exact",
        "network": market.network,
        "amount": "10000",
        "asset": str(market.world.localnet.usdc_mint),
        "payTo": market.payee,
        "maxTimeoutSeconds": 60,
        "extra": {"feePayer": str(market.facilitator.pubkey())},
    }
    return {name: value for name, value in {**accepted, **changed}.items() if value is not None}


def old_offer(market: Market) -> Json:
    """The same in the words of version 1."""
    return offer(market, network="solana", amount=None, maxAmountRequired="10000", resource="http://x/", description="")


def demanding(*offers: Json, version: int = 2, **more: Any) -> Response:
    content = {"x402Version": version, "accepts": list(offers), "error": "Payment required", **more}
    if version == 2:
        content["resource"] = {"url": "http://x/"}
        header = base64.b64encode(json.dumps(content).encode()).decode()
        return Response(b"{}", 402, headers={"PAYMENT-REQUIRED": header})
    return Response(json.dumps(content).encode(), 402)


async def refused(market: Market, answer: Response, code: str, *, status: int = 422, **body: Any) -> Json:
    """Ask a site that always answers so; nothing must be paid."""
    buyer, before = await market.buyer(), await market.received()

    async def handler(_request: Request) -> Response:
        return answer

    async with site(handler) as url:
        got = await buyer.post("fetch", **{"url": f"{url}/", "maxAmount": "1", **body})
    assert await market.received() == before
    return error_of(got, status, code)


@pytest.mark.proves("error x402_no_acceptable_offer")
@pytest.mark.parametrize(
    "changed",
    [
        {"network": "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"},
        {"network": "eip155:8453"},
        {"asset": str(Keypair().pubkey())},
        {"scheme": "upto"},
    ],
)
async def test_offers_for_other_chains_mints_and_schemes_are_not_taken(market: Market, changed: Json) -> None:
    await refused(market, demanding(offer(market, **changed)), "x402_no_acceptable_offer")


@pytest.mark.proves("error x402_invalid_terms")
@pytest.mark.parametrize(
    "changed",
    [
        {"amount": "0"},
        {"amount": "-5"},
        {"amount": "1.5"},
        {"amount": str(2**64)},
        {"amount": "١٢"},
        {"payTo": "nobody"},
        {"extra": {}},
        {"extra": {"feePayer": "nobody"}},
        {"extra": {"feePayer": str(Keypair().pubkey()), "memo": "x" * 257}},
        {"extra": {"feePayer": str(Keypair().pubkey()), "memo": 7}},
        {"maxTimeoutSeconds": None},
        {"amount": None},
    ],
)
async def test_malformed_terms_are_refused(market: Market, changed: Json) -> None:
    await refused(market, demanding(offer(market, **changed)), "x402_invalid_terms")


@pytest.mark.proves("error x402_invalid_terms")
@pytest.mark.parametrize(
    "answer",
    [
        Response(b"", 402),
        Response(b"pay me", 402),
        Response(b"[]", 402),
        Response(b'{"x402Version": 3, "accepts": []}', 402),
        Response(b"[" * 30_000, 402),
        Response(b"{}", 402, headers={"PAYMENT-REQUIRED": "%%%"}),
        Response(b"{}", 402, headers={"PAYMENT-REQUIRED": base64.b64encode(b"{").decode()}),
        Response(b"{}", 402, headers={"PAYMENT-REQUIRED": base64.b64encode(b"\xff\xfe").decode()}),
    ],
)
async def test_answer_402_without_terms_is_refused(market: Market, answer: Response) -> None:
    await refused(market, answer, "x402_invalid_terms")


@pytest.mark.proves("error x402_price_too_high")
async def test_cheapest_of_the_acceptable_offers_is_the_one_that_counts(market: Market) -> None:
    offers = [offer(market, amount="900000"), offer(market, amount="20000"), offer(market, scheme="upto", amount="1")]
    error = await refused(market, demanding(*offers), "x402_price_too_high", maxAmount="0.01")

    assert error["price"] == "0.02"


async def test_payee_that_cannot_be_paid_gets_nothing(market: Market) -> None:
    stranger = str(Keypair().pubkey())

    async def handler(request: Request) -> Response:
        said = "BlockhashNotFound" if "payment-signature" in request.headers else "Payment required"
        return demanding(offer(market, payTo=stranger), error=said)

    buyer = await market.buyer()
    async with site(handler) as url:
        got = await buyer.post("fetch", url=f"{url}/", maxAmount="1")

    error_of(got, 400, "invalid_recipient")
    shown = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}")
    assert shown["usdc_balance"] == "100.00"


@pytest.mark.parametrize("fee_payer", [str(Pubkey([7] * 32)), str(Pubkey([0] * 31 + [1]))])
async def test_facilitator_without_sol_is_blamed_itself(market: Market, fee_payer: str) -> None:
    buyer = await market.buyer()
    terms = {
        "x402Version": 2,
        "accepts": [offer(market, extra={"feePayer": fee_payer})],
        "resource": {"url": "http://x/"},
    }

    got = await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=terms, maxAmount="1")

    error = error_of(got, 422, "x402_resource_unavailable")
    assert "facilitator" in error["message"]
    assert "answered" not in error


async def test_vault_is_not_made_to_pay_itself(market: Market) -> None:
    buyer = await market.buyer()

    async def handler(_request: Request) -> Response:
        return demanding(offer(market, payTo=buyer.wallet["chain_address"]))

    async with site(handler) as url:
        got = await buyer.post("fetch", url=f"{url}/", maxAmount="1")

    error_of(got, 400, "invalid_recipient")


@pytest.mark.proves(
    "POST /v1/x402/fetch", "PaidFor(resource_status)", "Transaction(x402)", "PaidRequest(resource_status)"
)
async def test_resource_that_demands_for_ever_is_given_one_payment(market: Market) -> None:
    buyer, given = await market.buyer(), []

    async def handler(request: Request) -> Response:
        given.append(request.headers.get("payment-signature"))
        return demanding(offer(market), error="BlockhashNotFound")

    async with site(handler) as url:
        first = await buyer.fetch(f"{url}/", idempotencyKey="for-ever")
        second = await buyer.fetch(f"{url}/", idempotencyKey="for-ever")

    # Asked, tried out, paid, and the same payment again.
    assert len(given) == 4
    assert len(set(given)) == 3
    assert given[2] == given[3]
    assert first["payment"] == second["payment"]
    assert first["resource"]["status"] == 402
    assert first["payment"]["status"] == "pending"
    assert first["payment"]["x402"]["resource_status"] == 402


async def test_stock_client_signs_again_when_its_caller_repeats_the_call(market: Market, tmp_path: Path) -> None:
    """What a key of ours saves: called twice, `@x402/fetch` gives two payments, and both can be settled."""
    # It takes public networks alone; which chain it asks is told by the address.
    demanded, given = offer(market, network=f"solana:{GENESIS_HASHES['devnet'][:32]}"), list[str | None]()

    async def handler(request: Request) -> Response:
        given.append(request.headers.get("payment-signature"))
        return demanding(demanded, error="Payment required")

    signer, key_file = Keypair(), tmp_path / "buyer.json"
    key_file.write_text(json.dumps(list(bytes(signer))))
    tokens = await market.world.token_account(signer.pubkey())
    await market.world.localnet.mint_usdc(tokens, 20_000)

    async with site(handler) as url:
        said = await node.output("x402", "fetch.mjs", f"{url}/", f"{url}/", RPC=market.rpc, KEY=str(key_file))

    # Of each call the second demand is returned, not paid.
    assert json.loads(said) == [402, 402]
    assert [header is not None for header in given] == [False, True, False, True]
    before = await market.received()
    for header in (given[1], given[3]):
        assert header is not None
        signature = await market.world.service.chain.send(bytes(settled(header, market.facilitator)))
        await market.world.service.chain.confirm(signature, timeout=30)
    assert await market.received() - before == 20_000


@pytest.mark.proves("error x402_resource_unavailable")
async def test_resource_that_hangs_is_unavailable_and_costs_nothing(own_market: Market) -> None:
    buyer, release = await own_market.buyer(), asyncio.Event()

    async def handler(_request: Request) -> Response:
        await release.wait()
        return PlainTextResponse("late")

    async with site(handler) as url:
        got = await buyer.post("fetch", url=f"{url}/", maxAmount="1")
        release.set()

    error = error_of(got, 422, "x402_resource_unavailable")
    assert "did not answer" in error["message"]
    assert error["answered"] is False


async def test_redirection_is_returned_and_not_followed(market: Market) -> None:
    buyer, asked = await market.buyer(), []

    async def handler(request: Request) -> Response:
        asked.append(request.url.path)
        return Response(b"", 302, headers={"Location": "http://169.254.169.254/latest/meta-data"})

    async with site(handler) as url:
        got = await buyer.fetch(f"{url}/a")

    assert got["resource"]["status"] == 302
    assert asked == ["/a"]


@pytest.mark.proves("PaidResource(body, body_encoding, truncated)")
async def test_endless_body_and_gzip_bomb_are_cut(market: Market) -> None:
    buyer = await market.buyer()
    bomb = gzip.compress(b"0" * 50_000_000)

    async def handler(request: Request) -> Response:
        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65_536
                # Once the client is gone, nothing else lets others run.
                await asyncio.sleep(0)

        if request.url.path == "/bomb":
            return Response(bomb, headers={"Content-Encoding": "gzip"})
        return StreamingResponse(endless())

    async with site(handler) as url:
        long = await buyer.fetch(f"{url}/long")
        packed = await buyer.fetch(f"{url}/bomb")

    assert long["resource"]["truncated"] is True
    assert len(long["resource"]["body"]) == 65_536
    assert packed["resource"]["truncated"] is True
    assert packed["resource"]["body"] == "0" * 65_536


@pytest.mark.proves("QuotePaidResource(headers)", "FetchPaidResource(headers)", "PaidResource(status, headers)")
async def test_credentials_and_headers_of_the_payment_never_leave(market: Market) -> None:
    buyer, seen = await market.buyer(), []

    async def handler(request: Request) -> Response:
        seen.append(dict(request.headers))
        return PlainTextResponse("free", headers={"Set-Cookie": "a=b"})

    async with site(handler) as url:
        got = await buyer.fetch(
            f"{url}/",
            headers={"Accept": "text/plain", "Accept-Encoding": "zstd", "X-Payment": "mine", "Connection": "upgrade"},
        )

    assert seen[0]["accept"] == "text/plain"
    assert seen[0]["accept-encoding"] == "identity"
    assert not {"authorization", "session-token", "x-payment", "payment-signature", "cookie"} & seen[0].keys()
    assert buyer.key not in json.dumps(seen)
    assert buyer.session not in json.dumps(seen)
    assert "set-cookie" not in got["resource"]["headers"]


@pytest.mark.proves("QuotePaidResource(headers)", "FetchPaidResource(headers)", "PaidResource(status, headers)")
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer x"},
        {"Cookie": "a"},
        {"Accept": "a\nb"},
        [{"name": "Authorization", "value": "Bearer x"}],
        [{"name": "Accept", "value": "a"}, {"name": "Accept", "value": "b"}],
        [{"name": "Accept", "value": "a"}, {"name": "accept", "value": "b"}],
        [{"name": "Accept"}],
        [{"name": "Accept", "value": "a", "more": "b"}],
        [{"name": ["Accept"], "value": "a"}],
        [{"name": "Accept", "value": 1}],
        ["Accept"],
        "Accept: a",
    ],
)
async def test_headers_that_could_carry_more_are_refused(market: Market, headers: object) -> None:
    buyer = await market.buyer()

    got = await buyer.post("fetch", url="http://127.0.0.1:9/", maxAmount="1", headers=headers)

    assert "headers" in error_of(got, 400, "invalid_request")["message"]


async def test_ports_of_the_service_itself_are_no_resources(market: Market) -> None:
    buyer, settings = await market.buyer(), market.world.settings
    for port in (settings.port, settings.localnet_port, settings.localnet_port + 1):
        for host in ("127.0.0.1", "localhost", "[::1]"):
            got = await buyer.post("fetch", url=f"http://{host}:{port}/v1/keys", maxAmount="1")

            error_of(got, 400, "invalid_request")


#: URLs that lead into private networks, or nowhere.
_INWARD = [
    "http://127.0.0.1/",
    "https://127.0.0.1/",
    "https://localhost/",
    "https://127.1/",
    "https://0x7f000001/",
    "https://2130706433/",
    "https://0177.0.0.1/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://100.64.0.1/",
    "https://192.0.0.192/",
    "https://168.63.129.16/",
    "https://198.18.0.1/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[fe80::1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[2001:db8::1]/",
    "https://[fe80::1%25eth0]/",
    "https://metadata/",
    "https://service.internal/",
    "https://user:pw@example.com/",
    "https://example.com:8443/",
    "http://example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_",
    "https://example.com/#@127.0.0.1/",
    "https://127.0.0.1\\@example.com/",
    "https:///",
    "https://exa mple.com/",
    "//127.0.0.1/",
    "javascript:alert(1)",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mainnet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    """A service whose chain says that it is mainnet, where nothing is relaxed."""
    folder = tmp_path_factory.mktemp("mainnet")
    async with ServiceWorld(folder, genesis_hash=GENESIS_HASHES["mainnet-beta"]) as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tourist(mainnet: ServiceWorld) -> Buyer:
    """An agent there whose policy lets it ask every host."""
    policy = await mainnet.policy(x402Hosts=["*"])
    wallet = await mainnet.wallet(policy["policy_id"])
    return Buyer(mainnet, wallet, mainnet.key("agent", wallet["wallet_id"]), await mainnet.session(wallet))


@pytest.mark.proves("QuotePaidResource(url)", "FetchPaidResource(url)")
@pytest.mark.parametrize("url", _INWARD)
async def test_no_url_leads_into_a_private_network(tourist: Buyer, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    connected: list[Any] = []

    async def connect(_loop: asyncio.AbstractEventLoop, _protocol: Any, *address: Any, **_: Any) -> None:
        connected.append(address)
        raise OSError("no network")

    # Client and chain of the test are called without a connection.
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", connect)

    for buyer in (tourist, replace(tourist, paths="x402")):
        for got in (await buyer.post("fetch", url=url, maxAmount="1"), await buyer.post("quote", url=url)):
            assert got.json()["error"]["code"] in {"invalid_request", "x402_resource_unavailable"}, got.text
            assert got.status_code in {400, 422}
    assert connected == []


@pytest.mark.proves("error x402_host_not_allowed")
async def test_host_that_the_policy_does_not_list_is_not_asked(mainnet: ServiceWorld) -> None:
    policy = await mainnet.policy()
    wallet = await mainnet.wallet(policy["policy_id"])
    buyer = Buyer(mainnet, wallet, mainnet.key("agent", wallet["wallet_id"]), await mainnet.session(wallet))

    got = await buyer.post("fetch", url="https://api.example.com/weather", maxAmount="1")

    assert error_of(got, 422, "x402_host_not_allowed")["host"] == "api.example.com"


async def test_domain_of_a_policy_is_paid_at_its_own_host_and_address(market: Market) -> None:
    world, other = market.world, await market.world.payee()
    await world.ok("PUT", "/v1/recipients/shop.example.com", {"address": market.payee})
    await world.ok("PUT", "/v1/recipients/other.example.com", {"address": other})
    buyer = await market.buyer(allowedRecipients=["shop.example.com", "other.example.com"], x402Hosts=["*"])

    async def asked(host: str, pay_to: str) -> httpx.Response:
        terms = {"x402Version": 2, "accepts": [offer(market, payTo=pay_to)], "resource": {"url": f"https://{host}/"}}
        return await buyer.post("payments", url=f"https://{host}/", paymentRequired=terms, maxAmount="1")

    # Both are permitted, but neither may ask in the name of the other, nor anybody else in theirs
    for host, pay_to in (
        ("shop.example.com", other),
        ("other.example.com", market.payee),
        ("shop.example.com.evil.example", market.payee),
        ("evil.example", market.payee),
    ):
        assert error_of(await asked(host, pay_to), 422, "x402_host_not_allowed")["host"] == host
    error_of(await asked("shop.example.com", await world.payee()), 422, "x402_host_not_allowed")
    assert (await asked("SHOP.example.com", market.payee)).status_code == 200

    # An address on the list is paid for any host
    free = await market.buyer(allowedRecipients=["shop.example.com", other])
    terms = {"x402Version": 2, "accepts": [offer(market, payTo=other)], "resource": {"url": "https://evil.example/"}}
    handed = await free.post("payments", url="https://evil.example/", paymentRequired=terms, maxAmount="1")
    assert handed.status_code == 200, handed.text


@pytest.mark.proves(
    "CreatePolicy(x402Hosts)",
    "UpdatePolicy(x402Hosts)",
    "ClonePolicy(x402Hosts)",
    "PreviewPolicy(x402Hosts)",
    "Policy(x402_hosts)",
)
async def test_hosts_of_a_policy_are_set_changed_copied_and_cleared(market: Market) -> None:
    world = market.world
    made = await world.policy(x402Hosts=["127.0.0.1"])
    path = f"/v1/policies/{made['policy_id']}"
    buyer = Buyer(world, wallet := await world.wallet(made["policy_id"]), world.key("agent", wallet["wallet_id"]), "")
    buyer.session = await world.session(wallet)

    async def handler(_request: Request) -> Response:
        return PlainTextResponse("free")

    async with site(handler) as url:
        assert (await buyer.fetch(f"{url}/"))["resource"]["body"] == "free"
        changed = await world.ok("PATCH", path, {"x402Hosts": ["api.example.com"], "name": "Narrow"})
        error_of(await buyer.post("fetch", url=f"{url}/", maxAmount="1"), 422, "x402_host_not_allowed")
        copy = await world.ok("POST", f"{path}/clone", {"name": "Copy"})
        cleared = await world.ok("PATCH", path, {"x402Hosts": None})
        assert (await buyer.fetch(f"{url}/"))["resource"]["body"] == "free"

    assert (made["x402_hosts"], changed["x402_hosts"], changed["name"]) == (
        ["127.0.0.1"],
        ["api.example.com"],
        "Narrow",
    )
    assert (copy["x402_hosts"], cleared["x402_hosts"]) == (["api.example.com"], None)
    log = (await world.ok("GET", f"{path}/audit-log"))["data"]
    assert log[0]["changes"]["x402_hosts"] == {"from": ["127.0.0.1"], "to": ["api.example.com"]}
    for wrong in (["https://x.example"], ["UPPER.example"], ["a b"], [""], ["x.example/"], "x.example", ["h"] * 101):
        error_of(await world.call("PATCH", path, {"x402Hosts": wrong}), 400, "invalid_request")
