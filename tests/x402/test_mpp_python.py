"""Payments to an MPP server of the Python package: supported ones are paid once, others return everything."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
from solana_pay_kit import MemoryStore
from solana_pay_kit._paycore.errors import PaymentError
from solana_pay_kit._paycore.rpc import SolanaRpc
from solana_pay_kit.protocols.mpp.core.headers import format_receipt, format_www_authenticate, parse_authorization
from solana_pay_kit.protocols.mpp.intents.charge import ChargeRequest
from solana_pay_kit.protocols.mpp.server.charge import ChargeOptions, Config, Mpp
from solders.keypair import Keypair
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.keeper.keeper import Keeper
from app.x402.watch import IssuedPaymentWatch
from tests.support.http import site
from tests.support.service_world import error_of
from tests.x402.conftest import Buyer, Market

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Kiosk:
    """A resource of the package. It asks for one price, and may insist on another one once it is paid."""

    def __init__(self, market: Market, rpc: SolanaRpc, options: Mapping[str, Any], **config: Any) -> None:
        mint = str(market.world.localnet.usdc_mint)
        given = {"recipient": market.payee, "currency": mint, "network": "localnet", "rpc_url": market.rpc}
        secret = "0123456789abcdef0123456789abcdef"
        self.server = Mpp(Config(**{**given, "secret_key": secret, "store": MemoryStore(), "rpc": rpc, **config}))
        self.options, self.raised, self.reasons = options, "0", list[str]()

    async def answer(self, request: Request) -> Response:
        challenge = self.server.charge_with_options("0.01", ChargeOptions(**self.options))
        if (header := request.headers.get("authorization")) is None:
            return Response(b"", 402, headers={"WWW-Authenticate": format_www_authenticate(challenge)})
        expected = ChargeRequest.from_dict(challenge.decode_request())
        expected.amount = str(int(expected.amount) + int(self.raised))
        try:
            receipt = await self.server.verify_credential_with_expected(parse_authorization(header), expected)
        except PaymentError as error:
            self.reasons.append(str(error.code))
            return JSONResponse({"code": error.code}, 402)
        return PlainTextResponse("sunny", headers={"Payment-Receipt": format_receipt(receipt)})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rpc(market: Market) -> AsyncIterator[SolanaRpc]:
    client = SolanaRpc(market.rpc)
    yield client
    await client.aclose()


@asynccontextmanager
async def _kiosk(market: Market, rpc: SolanaRpc, options: Mapping[str, Any] = {}, **config: Any) -> AsyncIterator[Any]:
    # The package looks up the mint's program synchronously, and the chain runs in this loop.
    kiosk = await asyncio.to_thread(Kiosk, market, rpc, options, **config)
    async with site(kiosk.answer) as url:
        yield kiosk, url


async def _balance(market: Market, buyer: Buyer) -> str:
    await market.world.catch_up()
    await IssuedPaymentWatch(market.world.service, interval=3600, patience=0).tick()
    shown = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}")
    return str(shown["usdc_balance"])


#: Servers that take the payment: the options of their challenges, their settings, and whether they pay the fees.
_PAID: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "plain": ({}, {}, False),
    "sponsored": ({}, {}, True),
    "memo": ({"external_id": "order 7"}, {}, True),
    "push too": ({}, {"accept_push_mode": True}, False),
}


@pytest.mark.proves("POST /v1/paid-requests/fetch", "PaidRequest(protocol)")
@pytest.mark.parametrize("case", _PAID)
async def test_python_server_is_paid_once(market: Market, rpc: SolanaRpc, case: str) -> None:
    (options, config, sponsors), before = _PAID[case], await market.received()
    signer = {"fee_payer_signer": market.facilitator} if sponsors else {}
    buyer = await market.buyer(allowAllowances=True)
    async with _kiosk(market, rpc, options, **config, **signer) as (kiosk, url):
        bought, again = [await buyer.fetch(f"{url}/", idempotencyKey=f"paid {case}") for _ in range(2)]

    assert kiosk.reasons == []
    assert (bought["resource"]["body"], bought["payment"]["status"]) == ("sunny", "confirmed")
    assert again == bought
    assert bought["payment"]["tx_signature"] is not None
    assert await market.received() - before == 10_000
    assert await _balance(market, buyer) == "99.99"


async def test_python_server_that_wants_splits_is_not_paid(market: Market, rpc: SolanaRpc) -> None:
    buyer, splits = await market.buyer(allowAllowances=True), [{"recipient": str(Keypair().pubkey()), "amount": "1000"}]
    async with _kiosk(market, rpc, {"splits": splits}) as (_, url):
        refused = await buyer.post("fetch", url=f"{url}/", maxAmount="1")
    assert "splits" in error_of(refused, 422, "x402_no_acceptable_offer")["message"]
    assert await _balance(market, buyer) == "100.00"


async def test_python_server_that_refuses_the_payment_returns_everything(market: Market, rpc: SolanaRpc) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()
    async with _kiosk(market, rpc) as (kiosk, url):
        kiosk.raised = "1"
        refused = await buyer.fetch(f"{url}/")
    assert (kiosk.reasons, refused["resource"]["status"]) == (["amount-mismatch"], 402)
    assert (refused["payment"]["status"], await _balance(market, buyer)) == ("failed", "100.00")
    assert await market.received() == before


async def test_freeze_before_the_python_server_settles_returns_everything(market: Market, rpc: SolanaRpc) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()
    async with _kiosk(market, rpc) as (kiosk, url), httpx.AsyncClient() as client:
        demanded = (await client.get(f"{url}/")).headers["www-authenticate"]
        handed = (await buyer.post("payments", url=f"{url}/", paymentRequired=demanded, maxAmount="1")).json()
        await market.world.ok("PATCH", f"/v1/wallets/{buyer.wallet['wallet_id']}", {"status": "frozen"})
        await Keeper(market.world.service, interval=3600).tick()
        answer = await client.get(f"{url}/", headers={handed["header_name"]: handed["header_value"]})
    assert (answer.status_code, len(kiosk.reasons)) == (402, 1)
    assert (await _balance(market, buyer), await market.received()) == ("100.00", before)
