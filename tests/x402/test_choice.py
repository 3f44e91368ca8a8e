"""The choice of the offer to pay: quote and payment agree, and an offer that cannot be paid hides no good one."""

import asyncio
import random
from collections.abc import Callable

import httpx
import pytest
from solders.compute_budget import set_compute_unit_limit
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import SimulatedTransactionInfo
from starlette.requests import Request
from starlette.responses import Response

from app.core.timestamps import now_ms
from app.store.x402 import put_facilitator
from app.x402.settlement.compute_units import MAX_UNITS, units_with
from tests.support.http import site
from tests.support.service_world import Json, error_of
from tests.support.unowned import unowned
from tests.x402.conftest import SOL, Buyer, Market
from tests.x402.mpp import challenge, charge
from tests.x402.mpp import demanding as mpp_demanding
from tests.x402.servers import settled
from tests.x402.test_hostile import demanding, offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


async def _quoted(buyer: Buyer, *offers: Json) -> Json:
    async def handler(_request: Request) -> Response:
        return demanding(*offers)

    async with site(handler) as url:
        got = await buyer.post("quote", url=f"{url}/")
    assert got.status_code == 200, got.text
    found: Json = got.json()
    return found


async def _paid(buyer: Buyer, *offers: Json) -> httpx.Response:
    terms = {"x402Version": 2, "accepts": [*offers], "resource": {"url": "http://x/"}}
    return await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=terms, maxAmount="1")


def _with_memo(market: Market, memo: str, **changed: str) -> Json:
    return offer(market, extra={"feePayer": str(market.facilitator.pubkey()), "memo": memo}, **changed)


@pytest.mark.parametrize("memo", ["漢" * 16, "😀" * 8, "\0" * 256, "Ж" * 128, "x" * 256, "\U0001faff" * 19])
async def test_memo_gets_the_compute_units_that_it_needs(market: Market, memo: str) -> None:
    buyer, before = await market.buyer(), await market.received()

    assert (await _quoted(buyer, _with_memo(market, memo)))["allowed"]
    handed = await _paid(buyer, _with_memo(market, memo))

    assert handed.status_code == 200, handed.text
    await market.world.service.chain.send(bytes(settled(handed.json()["header_value"], market.facilitator)))
    assert await market.received() - before == 10_000


async def test_memo_that_no_facilitator_settles_makes_an_offer_malformed(market: Market) -> None:
    buyer, costly = await market.buyer(), _with_memo(market, "漢" * 85, amount="1")

    quoted, handed = await _quoted(buyer, costly, offer(market)), await _paid(buyer, costly, offer(market))

    assert quoted["price"] == "0.01"
    assert handed.json()["payload"]["accepted"] == offer(market)
    for warnings in (quoted["warnings"], handed.json()["warnings"]):
        assert warnings[-1].startswith("accepts[0] was skipped: extra.memo has more characters")
    assert "extra.memo" in error_of(await _paid(buyer, costly), 422, "x402_invalid_terms")["message"]


async def test_payment_beyond_its_compute_units_blames_the_terms(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a memo program that costs more than the service knows
    monkeypatch.setattr("app.x402.settlement.instructions.units_with", lambda _memo: 0)

    refused = await _paid(await market.buyer(), _with_memo(market, "漢" * 16))

    assert "compute budget" in error_of(refused, 422, "x402_invalid_terms")["message"]


async def test_units_of_every_character_are_within_their_bound() -> None:
    svm, payer, chosen = LiteSVM(), Keypair(), random.Random(7)
    svm.airdrop(payer.pubkey(), 10**9)
    for start in (*range(0, 0x30000, 0x80), 0xE0000, 0x10FF80):
        memo = chr(chosen.randrange(start, start + 0x80))
        if not 0xD800 <= ord(memo) < 0xE000:
            budget = set_compute_unit_limit(1_400_000)
            message = Message([budget, Instruction(_MEMO, memo.encode(), [])], payer.pubkey())
            ran = svm.simulate_transaction(Transaction([payer], message, svm.latest_blockhash()))
            assert isinstance(ran, SimulatedTransactionInfo), ascii(memo)
            # Without a character, the memo program and the compute budget take 1,565 units.
            taken = ran.meta().compute_units_consumed() - 1_565
            assert taken <= units_with(memo) - units_with(""), ascii(memo)
    assert units_with("x" * 256) < 150_000 < MAX_UNITS


def _unpaid(market: Market) -> Json:
    return offer(market, amount="1", extra={"feePayer": str(Pubkey([7] * 32))})


#: Offers that are never paid: the error of a payment, and the quote's reason.
_NEVER_PAID: dict[str, tuple[Callable[[Market, Buyer], Json], str, str]] = {
    "no account": (
        lambda it, _: offer(it, amount="1", payTo=str(Keypair().pubkey())),
        "invalid_recipient",
        "no USDC account",
    ),
    "no owner": (lambda it, _: offer(it, amount="1", payTo=unowned()), "recipient_unverified", "no USDC account"),
    "itself": (
        lambda it, buyer: offer(it, amount="1", payTo=buyer.wallet["chain_address"]),
        "invalid_recipient",
        "cannot pay itself",
    ),
    "no SOL": (lambda it, _: _unpaid(it), "x402_resource_unavailable", "lacks SOL"),
    "a mint pays": (
        lambda it, _: offer(it, amount="1", extra={"feePayer": str(it.world.localnet.usdc_mint)}),
        "x402_resource_unavailable",
        "cannot pay the transaction fee",
    ),
}


@pytest.mark.proves("Quote(allowed, retry_at, rules)")
@pytest.mark.parametrize("case", _NEVER_PAID)
async def test_quote_gives_the_verdict_of_the_payment(market: Market, case: str) -> None:
    make, code, reason = _NEVER_PAID[case]
    buyer = await market.buyer()
    made = make(market, buyer)

    quoted, refused = await _quoted(buyer, made), await _paid(buyer, made)

    assert not quoted["allowed"]
    [warning] = quoted["warnings"]
    assert ("no known owner" if case == "no owner" else reason) in warning
    assert refused.json()["error"]["code"] == code


@pytest.mark.parametrize("case", _NEVER_PAID)
async def test_cheaper_offer_that_is_never_paid_hides_no_good_one(market: Market, case: str) -> None:
    make, _, reason = _NEVER_PAID[case]
    buyer = await market.buyer()
    offers = [offer(market, amount="20000"), make(market, buyer), offer(market)]

    quoted, handed = await _quoted(buyer, *offers), await _paid(buyer, *offers)

    assert (quoted["price"], quoted["allowed"]) == ("0.01", True)
    assert handed.json()["payload"]["accepted"] == offer(market)
    for warnings in (quoted["warnings"], handed.json()["warnings"]):
        [named] = warnings
        assert named.startswith("accepts[1] was skipped: ")
        assert reason in named


async def test_facilitator_known_to_refuse_the_program_hides_no_other(market: Market) -> None:
    buyer, refusing = await market.buyer(), Keypair().pubkey()
    await market.world.localnet.airdrop(refusing, SOL)
    offers = [offer(market, amount="1", extra={"feePayer": str(refusing)}), offer(market)]

    async def handler(_request: Request) -> Response:
        return demanding(*offers)

    async with site(handler) as url:
        world = market.world
        known = (world.org, url, str(refusing))
        await world.service.db.write(lambda conn: put_facilitator(conn, *known, accepts=False, now=now_ms()))
        quoted = (await buyer.post("quote", url=f"{url}/")).json()
        terms = {"x402Version": 2, "accepts": offers, "resource": {"url": "http://x/"}}
        handed = (await buyer.post("payments", url=f"{url}/", paymentRequired=terms, maxAmount="1")).json()

    assert (quoted["price"], quoted["allowed"]) == ("0.01", True)
    assert handed["payload"]["accepted"] == offer(market)
    for warnings in (quoted["warnings"], handed["warnings"]):
        [warning] = warnings
        assert warning.startswith("accepts[0] was skipped: ")
        assert "allowAllowances" in warning


async def test_sponsor_without_sol_is_refused_by_quote_and_payment(market: Market) -> None:
    buyer = await market.buyer(allowAllowances=True)
    asked = challenge(charge(market, methodDetails={"feePayerKey": str(Keypair().pubkey())}))

    async def handler(_request: Request) -> Response:
        return mpp_demanding(asked)

    async with site(handler) as url:
        quoted = (await buyer.post("quote", url=f"{url}/")).json()
        fetched = await buyer.post("fetch", url=f"{url}/", maxAmount="1")
    handed = await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=asked, maxAmount="1")

    assert (quoted["allowed"], quoted["error"]) == (False, "x402_resource_unavailable")
    for refused in (fetched, handed):
        assert "lacks SOL" in error_of(refused, 422, "x402_resource_unavailable")["message"]
    granted = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}/allowances")
    assert granted["data"] == []


async def test_cheaper_offer_off_the_allowlist_hides_no_listed_one(market: Market) -> None:
    buyer, other = await market.buyer(allowedRecipients=[market.payee]), await market.world.payee()
    offers = [offer(market, amount="1", payTo=other), offer(market)]

    quoted, handed = await _quoted(buyer, *offers), await _paid(buyer, *offers)

    assert (quoted["price"], quoted["allowed"]) == ("0.01", True)
    assert handed.json()["payload"]["accepted"] == offer(market)
    assert "allowedRecipients" in handed.json()["warnings"][0]
    # The program refuses the payment to the other alone, and the refusal is recorded.
    assert error_of(await _paid(buyer, offers[0]), 402, "policy_violation")["violation"]["rule"] == "allowed_recipients"


async def test_choice_asks_the_chain_once_at_most(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    buyer, asked = await market.buyer(), list[str]()
    many = [offer(market, amount="1", payTo=str(Keypair().pubkey())) for _ in range(60)]

    # The tasks that follow the chain ask it whether or not somebody pays.
    mine, others = asyncio.current_task(), asyncio.all_tasks()

    def note(method: str) -> None:
        task = asyncio.current_task()
        if task is mine or task not in others:
            asked.append(method)

    monkeypatch.setattr(market.world.line, "hold", note)
    one = await _quoted(buyer, offer(market))
    alone, asked[:] = [*asked], []
    several = await _quoted(buyer, *many[:40], offer(market))
    crowd, asked[:] = [*asked], []
    await _quoted(buyer, *many, offer(market))

    assert (one["price"], several["price"]) == ("0.01", "0.01")
    for calls in (alone, crowd, asked):
        assert calls.count("getMultipleAccounts") == 1, calls
        assert calls.count("simulateTransaction") == 1, calls
