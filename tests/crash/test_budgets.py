"""Kill -9 of `serve` between storing and sending a payment under a budget: it is paid and charged once."""

import asyncio
import contextlib
from pathlib import Path

import httpx
from solders.keypair import Keypair

from tests.support.processes import PATIENCE, exit_code, serving

#: Runs `serve` and kills it once a payment is stored, before the chain gets it.
_LAUNCHER = """
import os, signal, sys
from app.submission.submitter import Submitter
deadly, send = sys.argv[1] == "stored", Submitter._post
async def post(self, attempt):
    if deadly and attempt.type == "payment":
        os.kill(os.getpid(), signal.SIGKILL)
    return await send(self, attempt)
Submitter._post = post
from app.commands.main import main
main(sys.argv[2:])
"""


async def test_payment_that_a_kill_interrupted_is_charged_to_its_budget_once(tmp_path: Path) -> None:
    payee, headers = str(Keypair().pubkey()), {"Idempotency-Key": "interrupted"}
    async with serving(tmp_path, _LAUNCHER, "stored") as killed:
        budget = (await killed.client.post("/v1/budgets", json={"name": "Team", "maxPerDay": "10"})).json()
        wallet = {"agentId": "one", "label": "One", "policyId": "pol_moderate", "budgetId": budget["budget_id"]}
        made = (await killed.client.post("/v1/wallets", json=wallet)).json()
        funding = {"amount": "50", "currency": "USDC"}
        await killed.client.post(f"/v1/wallets/{made['wallet_id']}/fund", json=funding)
        order = {"walletId": made["wallet_id"], "to": payee, "amount": "6", "currency": "USDC"}
        with contextlib.suppress(httpx.HTTPError):
            await killed.client.post("/v1/payments", json=order, headers=headers)
        assert await exit_code(killed.process) == -9

    async with serving(tmp_path, _LAUNCHER, "never") as started:
        client = started.client
        async with asyncio.timeout(PATIENCE):
            while True:
                paid = await client.post("/v1/payments", json=order, headers=headers)
                if paid.status_code == 200:
                    break
                await asyncio.sleep(0.05)
        shown = (await client.get(f"/v1/budgets/{budget['budget_id']}")).json()
        refused = await client.post("/v1/payments", json=order)
        rows = (await client.get("/v1/transactions?type=payment&status=confirmed")).json()["data"]

    assert paid.json()["status"] == "confirmed"
    assert (shown["consumption"]["day"], shown["consumption"]["payments_in_hour"]) == ("6.00", 1)
    assert refused.json()["error"]["violation"]["rule"] == "budget_max_per_day"
    assert [row["tx_id"] for row in rows] == [paid.json()["tx_id"]]
