"""Kill -9 of `serve` during paid requests: no key pays twice, no payment is missing, and budgets equal the chain.

It is killed once at each step, with `--full` about 30 times for each protocol: when the payment is stored, when the
resource has got it, when the facilitator has settled it, and when the resource has answered; where an allowance pays,
also once that is granted. It prints its counts, which `-rP` shows.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.core.money import format_usdc, parse_usdc
from tests.support.http import site
from tests.support.processes import PATIENCE, Serve, exit_code, serving
from tests.x402.mpp import challenge
from tests.x402.servers import settled

#: The steps by protocol. x402's version 1 and MPP take only a plain transfer, which an allowance pays.
_MOMENTS = {
    "x402 v2": ("stored", "sent", "settled", "answered"),
    "x402 v1": ("stored", "granted", "sent", "settled", "answered"),
    "mpp": ("stored", "granted", "sent", "settled", "answered"),
}
_ROUNDS = {"x402 v2": 8, "x402 v1": 6, "mpp": 6}
_HEADERS = {"x402 v2": "payment-signature", "x402 v1": "x-payment", "mpp": "authorization"}
_BUDGET = "100"

#: Runs `serve` and, armed by a signal, kills it before a stored payment or grant is sent, before a granted one is
#: delivered, or after the resource has answered.
_LAUNCHER = """
import os, signal, sys
from app.submission.submitter import Submitter
from app.x402 import service
moment, armed = sys.argv[1], False
def arm(*_):
    global armed
    armed = True
signal.signal(signal.SIGUSR1, arm)
deliver = service._deliver
async def deadly(*arguments):
    if armed and moment in ("stored", "granted"):
        os.kill(os.getpid(), signal.SIGKILL)
    answer = await deliver(*arguments)
    if armed and moment == "answered":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
service._deliver = deadly
post = Submitter._post
async def deadly_post(self, attempt):
    if armed and moment == "stored" and attempt.type == "grant_allowance":
        os.kill(os.getpid(), signal.SIGKILL)
    return await post(self, attempt)
Submitter._post = deadly_post
from app.commands.main import main
main(sys.argv[2:])
"""


class Shop:
    """A resource with its facilitator, which outlives the service. Order number n costs 10,000 + n micro-USDC."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.facilitator = Keypair()
        self.serve: Serve | None = None
        self.pay_to = ""
        self.chain: dict[str, Any] = {}
        #: When the shop kills the service, and whether the next payment does.
        self.moment, self.armed = "", False
        self.given: dict[str, set[str]] = {}

    @staticmethod
    def price(order: str) -> int:
        return 10_000 + int(order.rpartition("-")[2])

    async def answer(self, request: Request) -> Response:
        order, header = request.path_params["path"], request.headers.get(_HEADERS[self.protocol])
        if header is None:
            return self._demand(order, "Payment required")
        transaction = settled(header, self.facilitator)
        if transaction.message.recent_blockhash == Hash.default():
            return self._demand(order, "BlockhashNotFound")
        self.given.setdefault(order, set()).add(header)
        self._kill_at("sent")
        await self._settle(bytes(transaction), str(transaction.signatures[0]))
        self._kill_at("settled")
        return PlainTextResponse(f"{order} is yours")

    async def rpc(self, method: str, *params: Any) -> Any:
        assert self.serve is not None
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return (await client.post(self.serve.rpc, json=body)).json().get("result")

    async def settled(self, signature: str) -> bool:
        [status] = (await self.rpc("getSignatureStatuses", [signature]))["value"]
        return status is not None and status["err"] is None and status["confirmationStatus"] != "processed"

    async def _settle(self, raw: bytes, signature: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self.settled(signature):
                options = {"encoding": "base64", "skipPreflight": True}
                await self.rpc("sendTransaction", base64.b64encode(raw).decode(), options)
                await asyncio.sleep(0.05)

    def _kill_at(self, moment: str) -> None:
        if self.armed and self.moment == moment:
            assert self.serve is not None
            self.armed = False
            self.serve.process.kill()

    def _demand(self, order: str, error: str) -> Response:
        if self.protocol == "mpp":
            details = {"network": "localnet", "feePayer": True, "feePayerKey": str(self.facilitator.pubkey())}
            asked = {"amount": str(self.price(order)), "currency": self.chain["mint"], "recipient": self.pay_to}
            return Response(b"", 402, headers={"WWW-Authenticate": challenge({**asked, "methodDetails": details})})
        accepted: dict[str, Any] = {
            "scheme": "exact",
            "network": f"solana:{self.chain['genesis_hash'][:32]}",
            "amount": str(self.price(order)),
            "asset": self.chain["mint"],
            "payTo": self.pay_to,
            "maxTimeoutSeconds": 60,
            "extra": {"feePayer": str(self.facilitator.pubkey())},
        }
        if self.protocol == "x402 v1":
            accepted |= {"network": "solana", "maxAmountRequired": accepted["amount"], "resource": "http://x/"}
            accepted["description"] = ""
            return JSONResponse({"x402Version": 1, "accepts": [accepted], "error": error}, 402)
        terms = {"x402Version": 2, "accepts": [accepted], "error": error, "resource": {"url": "http://x/"}}
        header = base64.b64encode(json.dumps(terms).encode()).decode()
        return Response(b"{}", 402, headers={"PAYMENT-REQUIRED": header})


async def _open(serve: Serve, shop: Shop) -> str:
    """Make the wallet that buys, the vault that is paid, and the facilitator's SOL."""
    rules = {"name": "Buyer", "maxPerDay": _BUDGET, "allowAllowances": True}
    policy = (await serve.client.post("/v1/policies", json=rules)).json()["policy_id"]
    made = []
    for name in ("buyer", "shop"):
        body = {"agentId": name, "label": name, "policyId": policy}
        made.append((await serve.client.post("/v1/wallets", json=body)).json())
    await serve.client.post(f"/v1/wallets/{made[0]['wallet_id']}/fund", json={"amount": "50"})
    shop.chain = (await serve.client.get("/v1/organization")).json()
    shop.pay_to = made[1]["chain_address"]
    await shop.rpc("requestAirdrop", str(shop.facilitator.pubkey()), 10**9)
    return str(made[0]["wallet_id"])


async def _buy(serve: Serve, wallet: str, url: str, order: str) -> dict[str, Any] | None:
    """Ask for the order once; None if there is no final answer yet."""
    body = {"walletId": wallet, "url": f"{url}/{order}", "maxAmount": "1", "idempotencyKey": order}
    with contextlib.suppress(httpx.HTTPError):
        answer = await serve.client.post("/v1/paid-requests/fetch", json=body)
        assert answer.status_code in {200, 409, 422, 503}, answer.text
        found: dict[str, Any] = answer.json()
        if answer.status_code == 200 and found["payment"]["status"] == "confirmed":
            return found
    return None


@pytest.mark.parametrize("protocol", _MOMENTS)
async def test_paid_requests_killed_at_each_step_are_paid_once(
    tmp_path: Path, request: pytest.FixtureRequest, protocol: str
) -> None:
    kills = len(_MOMENTS[protocol]) * (_ROUNDS[protocol] if request.config.getoption("--full") else 1)
    shop, moments, orders = Shop(protocol), itertools.cycle(_MOMENTS[protocol]), list[str]()
    answers: dict[str, dict[str, Any]] = {}
    killed = Counter[str]()
    wallet = ""
    async with site(shop.answer) as url:
        for kill in range(kills + 1):
            shop.moment = next(moments) if kill < kills else "never"
            async with serving(tmp_path, _LAUNCHER, shop.moment, AGENT_VAULT_RATE_LIMIT="0") as serve:
                shop.serve = serve
                wallet = wallet or await _open(serve, shop)
                # Given that what was cut short is asked for again under its key
                async with asyncio.timeout(PATIENCE):
                    for order in [one for one in orders if one not in answers]:
                        while (answer := await _buy(serve, wallet, url, order)) is None:  # noqa: ASYNC110 - asks again
                            await asyncio.sleep(0.1)
                        answers[order] = answer
                if shop.moment == "never":
                    await _check(serve, shop, wallet, url, answers)
                    assert killed.total() == len(answers) == kills
                    sys.stdout.write(f"{protocol}: killed {dict(killed)}, {_counts(shop, answers)}\n")
                    return
                # When it is killed at a step of the next one
                orders.append(f"order-{kill}")
                shop.armed = True
                serve.process.send_signal(signal.SIGUSR1)
                assert await _buy(serve, wallet, url, orders[-1]) is None
                assert await exit_code(serve.process) == -9
                killed[shop.moment] += 1
                shop.armed = False


def _counts(shop: Shop, answers: dict[str, dict[str, Any]]) -> str:
    payloads = sum(len(given) for given in shop.given.values())
    return f"{len(answers)} keys with one payment each, {payloads} payloads delivered"


async def _outstanding(serve: Serve, wallet: str) -> bool:
    listed = (await serve.client.get(f"/v1/wallets/{wallet}/allowances", params={"limit": "100"})).json()["data"]
    return any(one["status"] != "settled" for one in listed)


async def _received(serve: Serve, shop: Shop) -> int:
    listed = (await serve.client.get("/v1/wallets")).json()["data"]
    [balance] = [one["usdc_balance"] for one in listed if one["chain_address"] == shop.pay_to]
    return parse_usdc(balance, allow_zero=True)


async def _check(serve: Serve, shop: Shop, wallet: str, url: str, answers: dict[str, dict[str, Any]]) -> None:
    """Then each key has paid once, each payment has its row, and budget and balances are what the chain says."""
    async with asyncio.timeout(PATIENCE):
        # Before a payment's allowance is settled, what it did not pay counts as spent.
        while await _outstanding(serve, wallet):  # noqa: ASYNC110 - asks again
            await asyncio.sleep(0.1)
    query = {"walletId": wallet, "x402Host": "127.0.0.1", "status": "confirmed", "limit": "100"}
    rows = (await serve.client.get("/v1/transactions", params=query)).json()["data"]
    assert sorted(row["paid_request"]["url"] for row in rows) == sorted(f"{url}/{order}" for order in answers)
    assert {row["tx_id"] for row in rows} == {answer["payment"]["tx_id"] for answer in answers.values()}
    for order, answer in answers.items():
        assert answer["payment"]["amount"] == format_usdc(shop.price(order))
        # A response that the row names is stored. Without one, an event reports the payment.
        named = answer["payment"]["paid_request"]["resource_status"]
        assert (answer["resource"] and answer["resource"]["status"]) == named, order
        landed = [await shop.settled(str(settled(one, shop.facilitator).signatures[0])) for one in shop.given[order]]
        assert landed.count(True) == 1, order
    paid = sum(shop.price(order) for order in answers)
    async with asyncio.timeout(PATIENCE):
        # A delegate's transfer is a deposit to the vault that is paid, which no event of the program announces.
        while await _received(serve, shop) != paid:  # noqa: ASYNC110 - asks again
            await asyncio.sleep(0.1)
    simulated = {"walletId": wallet, "to": shop.pay_to, "amount": "0.000001"}
    verdict = (await serve.client.post("/v1/payments/simulate", json=simulated)).json()
    [day] = [rule for rule in verdict["rules"] if rule["rule"] == "max_per_day"]
    assert parse_usdc(_BUDGET) - parse_usdc(day["headroom"]) == paid
