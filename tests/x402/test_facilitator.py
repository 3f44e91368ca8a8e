"""What the public package's facilitator refuses, and what happens around a settlement.

Each case is why a payment by a vault has the form that it has: the service would be paid for nothing, or pay for
nothing, if one of them changed with the package.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from based58 import b58decode
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from starlette.requests import Request

from app.access.keyring import system
from app.api.operation import Call
from app.chain.transactions import sign_for
from app.payments.expenses import ExpenseRequest
from app.payments.service import PAY
from app.recipients.service import resolve
from app.submission.claim import Claim
from app.x402.settlement.instructions import issued_payment
from tests.support.service_world import Json
from tests.x402.conftest import Buyer, Market
from tests.x402.plain import pythons_facilitator
from tests.x402.servers import facilitator
from tests.x402.test_hostile import offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

Change = Callable[[list[Instruction]], list[Instruction]]


class Settler:
    """A facilitator that is asked directly."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, step: str, payment: Json) -> Json:
        async with httpx.AsyncClient(timeout=30) as client:
            body = {"paymentPayload": payment, "paymentRequirements": payment["accepted"]}
            found: Json = (await client.post(f"{self._url}/{step}", json=body)).json()
            return found

    async def refusal(self, payment: Json) -> str:
        """Why it does not accept a payment."""
        said = await self.ask("verify", payment)
        assert said["isValid"] is False, said
        return f"{said['invalidReason']} {said.get('invalidMessage', '')}"


@contextlib.asynccontextmanager
async def _settler(market: Market, **options: Any) -> AsyncIterator[Settler]:
    async with facilitator(market.folder, market.facilitator, rpc=market.rpc, network=market.network, **options) as url:
        yield Settler(url)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def settler(market: Market) -> AsyncIterator[Settler]:
    """A facilitator that accepts the program."""
    async with _settler(market, allowed=str(market.world.service.codec.program_id)) as found:
        yield found


async def expense(market: Market, buyer: Buyer, amount: int = 10_000, payee: str | None = None) -> ExpenseRequest:
    service = market.world.service
    session = Keypair.from_seed(b58decode(buyer.session.removeprefix("avs_").encode()))
    caller = system(market.world.org, "test")
    return ExpenseRequest(
        market.world.wallet_record(buyer.wallet["wallet_id"]),
        await resolve(service, caller, payee or market.payee),
        amount,
        kind=PAY,
        call=Call(service, caller, Request({"type": "http"}), Claim(service.db)),
        memo=None,
        session=session,
        issued=True,
    )


async def signed(market: Market, one: ExpenseRequest, instructions: list[Instruction], **demanded: Any) -> Json:
    """A payment for an offer, signed by the wallet's session; no check of ours stands before it."""
    assert one.session is not None
    blockhash = await market.world.service.chain.blockhash(fresh=True)
    raw = await sign_for(
        instructions, payer=market.facilitator.pubkey(), signers=[one.session], blockhash=blockhash.hash
    )
    accepted = offer(market, **demanded)
    return {"x402Version": 2, "payload": {"transaction": base64.b64encode(raw).decode()}, "accepted": accepted}


def _opening(payer: Pubkey, market: Market) -> Instruction:
    return market.world.build.create_token_account(payer=payer, owner=Keypair().pubkey())


_CASES: dict[str, tuple[Change, str]] = {
    "units": (lambda made: [set_compute_unit_limit(400_001), *made[1:]], "smart_wallet_compute_units_too_high"),
    "price": (lambda made: [made[0], set_compute_unit_price(50_001), *made[2:]], "smart_wallet_priority_fee_too_high"),
    "two payments": (lambda made: [*made[:3], made[2], made[3]], "multiple_matching_transfers"),
}


@pytest.mark.parametrize("case", _CASES)
async def test_facilitator_refuses_another_form(market: Market, settler: Settler, case: str) -> None:
    change, reason = _CASES[case]
    one = await expense(market, await market.buyer())

    assert reason in await settler.refusal(await signed(market, one, change(issued_payment(one, None))))


async def test_facilitator_refuses_an_account_opened_beside_the_payment(market: Market, settler: Settler) -> None:
    one = await expense(market, await market.buyer())
    made = issued_payment(one, None)
    made.insert(2, _opening(market.facilitator.pubkey(), market))

    assert "program_not_allowed" in await settler.refusal(await signed(market, one, made))


@pytest.mark.parametrize("memos", [0, 2])
async def test_facilitator_counts_the_memos_that_it_demands(market: Market, settler: Settler, memos: int) -> None:
    one = await expense(market, await market.buyer())
    made = issued_payment(one, "order 7")
    extra = {"feePayer": str(market.facilitator.pubkey()), "memo": "order 7"}

    payment = await signed(market, one, [*made[:3], *made[3:] * memos], extra=extra)

    assert "memo_count" in await settler.refusal(payment)


async def test_facilitator_refuses_too_small_an_amount(market: Market, settler: Settler) -> None:
    one = await expense(market, await market.buyer(), amount=9_999)

    assert "transfer_mismatch" in await settler.refusal(await signed(market, one, issued_payment(one, None)))


@pytest.mark.parametrize("signature", [bytes(64), bytes([1] * 64)], ids=["missing", "wrong"])
async def test_facilitator_checks_the_sessions_signature(market: Market, settler: Settler, signature: bytes) -> None:
    one = await expense(market, await market.buyer())
    payment = await signed(market, one, issued_payment(one, None))
    raw = base64.b64decode(payment["payload"]["transaction"])
    changed = raw[:65] + signature + raw[129:]
    payment["payload"]["transaction"] = base64.b64encode(changed).decode()

    assert "signature_invalid" in await settler.refusal(payment)


@pytest.mark.parametrize(
    ("policy", "stranger", "code"),
    [({"maxPerTx": "0.005"}, False, "6005"), ({"requireCoSign": "0.005"}, False, "6009"), ({}, True, "6063")],
)
async def test_facilitator_names_the_programs_refusal(
    market: Market, settler: Settler, policy: Json, stranger: bool, code: str
) -> None:
    payee = str(Keypair().pubkey()) if stranger else market.payee
    one = await expense(market, await market.buyer(**policy), payee=payee)

    said = await settler.refusal(await signed(market, one, issued_payment(one, None), payTo=payee))

    assert "simulation_failed" in said
    assert code in said


async def test_facilitators_that_do_not_know_the_program_say_so(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await expense(market, await market.buyer())
    payment = await signed(market, one, issued_payment(one, None))

    async with _settler(market, allowed=str(Keypair().pubkey())) as other:
        assert "smart_wallet_program_not_allowed" in await other.refusal(payment)
    async with _settler(market, v1="solana") as static:
        assert "no_transfer_instruction" in await static.refusal(payment)
        old = {**payment, "x402Version": 1, "scheme": "exact", "network": "solana"}
        old["accepted"] = {**payment["accepted"], "network": "solana", "maxAmountRequired": "10000"}
        assert "no_transfer_instruction" in await static.refusal(old)
    async with pythons_facilitator(market, monkeypatch) as python:
        assert "no_transfer_instruction" in await Settler(python).refusal(payment)


async def _issued_payments(market: Market, buyer: Buyer, url: str = "http://127.0.0.1:9/x") -> Json:
    terms = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": url}}
    answer = await buyer.post("payments", url=url, paymentRequired=terms, maxAmount="1")
    found: Json = answer.json()
    return found


async def test_payment_settles_once_however_often_it_is_shown(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with market.shop() as shop, httpx.AsyncClient(timeout=30) as client:
        demanded = (await client.get(f"{shop}/weather")).headers["payment-required"]
        body = {"url": f"{shop}/weather", "paymentRequired": demanded, "maxAmount": "1"}
        handed = (await buyer.post("payments", **body)).json()
        header = {handed["header_name"]: handed["header_value"]}
        both = await asyncio.gather(*(client.get(f"{shop}/weather", headers=header) for _ in range(2)))
        late = await client.get(f"{shop}/weather", headers=header)

    assert sorted(one.status_code for one in both) == [200, 402]
    [refused] = [one for one in both if one.status_code == 402]
    assert "duplicate_settlement" in base64.b64decode(refused.headers["payment-response"]).decode()
    assert late.status_code == 402
    assert "AlreadyProcessed" in base64.b64decode(late.headers["payment-required"]).decode()
    assert await market.received() - before == 10_000


@pytest.mark.parametrize(("flow", "charged"), [("", 0), ("upfront", 10_000)])
async def test_failing_resource_charges_only_up_front(market: Market, flow: str, charged: int) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with market.shop(FLOW=flow) as shop:
        bought = await buyer.fetch(f"{shop}/broken")

    assert (bought["resource"]["status"], bought["payment"]["x402"]["resource_status"]) == (500, 500)
    assert bought["payment"]["status"] == ("confirmed" if charged else "pending")
    assert await market.received() - before == charged


async def test_payment_of_a_failing_route_can_settle_at_another(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with market.shop() as shop, httpx.AsyncClient(timeout=30) as client:
        demanded = (await client.get(f"{shop}/broken")).headers["payment-required"]
        body = {"url": f"{shop}/broken", "paymentRequired": demanded, "maxAmount": "1", "idempotencyKey": "kept"}
        handed = (await buyer.post("payments", **body)).json()
        header = {handed["header_name"]: handed["header_value"]}
        broken = await client.get(f"{shop}/broken", headers=header)
        # The client keeps its payment, and a repetition hands out no other.
        again = (await buyer.post("payments", **body)).json()
        given = await client.get(f"{shop}/weather", headers=header)

    assert (broken.status_code, given.status_code) == (500, 200)
    assert again["header_value"] == handed["header_value"]
    assert await market.received() - before == 10_000


async def test_payment_refused_by_a_freeze_can_settle_after_it(market: Market, settler: Settler) -> None:
    buyer, before = await market.buyer(), await market.received()
    payment = (await _issued_payments(market, buyer))["payload"]
    path = f"/v1/wallets/{buyer.wallet['wallet_id']}"

    assert (await settler.ask("verify", payment))["isValid"] is True
    await market.world.ok("PATCH", path, {"status": "frozen"})
    assert (await settler.ask("settle", payment))["success"] is False
    await market.world.ok("PATCH", path, {"status": "active"})
    settled = await settler.ask("settle", payment)

    assert settled["success"] is True
    assert await market.received() - before == 10_000


async def test_rotation_of_the_session_cancels_what_is_outstanding(market: Market, settler: Settler) -> None:
    buyer = await market.buyer()
    payment = (await _issued_payments(market, buyer))["payload"]

    await market.world.session(buyer.wallet)

    assert "6014" in await settler.refusal(payment)


async def test_payment_over_an_expired_blockhash_is_refused(own_market: Market) -> None:
    market = own_market
    payment = (await _issued_payments(market, await market.buyer()))["payload"]
    async with _settler(market, allowed=str(market.world.service.codec.program_id)) as settler:
        await market.world.later(120)

        assert "BlockhashNotFound" in await settler.refusal(payment)
