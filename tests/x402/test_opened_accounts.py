"""Payees without a token account: the grant of an allowance opens it, if the policy says so."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair
from starlette.requests import Request
from starlette.responses import Response

from app.chain.fees import TOKEN_ACCOUNT_RENT
from app.store.fee_payer_use import use_of
from tests.support.http import site
from tests.support.service_world import Json, error_of
from tests.support.unowned import unowned
from tests.x402.conftest import Buyer, Market
from tests.x402.conftest import opened as market_in
from tests.x402.mpp import challenge, charge
from tests.x402.servers import settled
from tests.x402.test_hostile import demanding, offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_OPENING = {"allowAllowances": True, "opensAccounts": True}


async def _paid(market: Market, buyer: Buyer, payee: str, **body: Any) -> Any:
    demanded = challenge(charge(market, recipient=payee))
    return await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=demanded, maxAmount="1", **body)


async def _use(market: Market, buyer: Buyer) -> tuple[int, int]:
    service = market.world.service
    day = service.clock.seen_ms() // 86_400_000
    return await service.db.read(lambda conn: use_of(conn, buyer.wallet["wallet_id"], day))


@pytest.mark.proves("CreatePolicy(opensAccounts)")
async def test_grant_opens_the_payees_account_once(market: Market) -> None:
    buyer, payee = await market.buyer(**_OPENING, maxPerDay="1", allowedRecipients=[]), str(Keypair().pubkey())
    handed, used = list[httpx.Response](), [await _use(market, buyer)]
    for _ in range(2):
        handed.append(await _paid(market, buyer, payee))
        used.append(await _use(market, buyer))

    assert [one.status_code for one in handed] == [200, 200], handed[0].text
    assert [accounts for _, accounts in used] == [0, 1, 1]
    (before, _), (opened, _), (after, _) = used
    assert opened - before == after - opened + TOKEN_ACCOUNT_RENT
    for one in handed:
        await market.world.service.chain.send(bytes(settled(one.json()["header_value"], market.facilitator)))
    assert await market.world.balance(payee) == 20_000


async def test_policy_without_the_permission_opens_no_account(market: Market) -> None:
    buyer = await market.buyer(allowAllowances=True)
    error_of(await _paid(market, buyer, str(Keypair().pubkey())), 400, "invalid_recipient")
    assert (await _use(market, buyer))[1] == 0


async def test_accounts_of_a_day_are_bounded(tmp_path: Path) -> None:
    async with market_in(tmp_path, token_accounts_per_day=1) as market:
        buyer = await market.buyer(**_OPENING)
        answers = [await _paid(market, buyer, str(Keypair().pubkey())) for _ in range(2)]
    assert answers[0].status_code == 200, answers[0].text
    assert "daily limit" in error_of(answers[1], 400, "invalid_recipient")["message"]


async def test_no_account_is_opened_for_an_unverified_payee(market: Market) -> None:
    buyer = await market.buyer(**_OPENING, maxPerTx="0.02")
    error_of(await _paid(market, buyer, unowned()), 422, "recipient_unverified")
    strict = await market.buyer(**_OPENING, maxPerTx="0.001")
    error_of(await _paid(market, strict, unowned()), 402, "policy_violation")
    error_of(await _paid(market, buyer, str(market.world.localnet.usdc_mint)), 400, "invalid_recipient")


async def test_quote_and_choice_know_the_permission(market: Market) -> None:
    payee = str(Keypair().pubkey())
    offers: list[Json] = [offer(market, payTo=payee, amount="1"), offer(market)]

    async def handler(request: Request) -> Response:
        return demanding(*offers, error=request.query_params["said"])

    quoted = []
    async with site(handler) as url:
        for policy in (_OPENING, {"allowAllowances": True}):
            buyer = await market.buyer(**policy)
            answer = await buyer.post("quote", url=f"{url}/?said=program_not_allowed")
            quoted.append((answer.json()["price"], answer.json()["allowed"]))
    assert quoted == [("0.000001", True), ("0.01", True)]


@pytest.mark.proves(
    "ClonePolicy(opensAccounts)",
    "CreatePolicy(opensAccounts)",
    "Policy(opens_accounts)",
    "PreviewPolicy(opensAccounts)",
    "UpdatePolicy(opensAccounts)",
)
async def test_policy_says_whether_paid_requests_open_accounts(market: Market) -> None:
    world = market.world
    made = await world.policy(opensAccounts=True)
    path = f"/v1/policies/{made['policy_id']}"
    tag = (await world.call("GET", path)).headers["etag"]
    cloned = await world.ok("POST", f"{path}/clone", {"name": "Copy"})
    changed = await world.ok("PATCH", path, {"opensAccounts": False})

    assert [one["opens_accounts"] for one in (made, cloned, changed)] == [True, True, False]
    assert (await world.call("GET", path)).headers["etag"] != tag
    log = (await world.ok("GET", f"{path}/audit-log"))["data"]
    assert log[-1]["changes"] == {"opens_accounts": {"from": True, "to": False}}
    assert (await world.ok("GET", "/v1/policies/pol_locked"))["opens_accounts"] is False
