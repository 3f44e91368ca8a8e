"""Kill -9 of `serve` around a grant: it takes effect once, and what was granted before a crash is settled after it."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from solders.keypair import Keypair

from tests.support.processes import PATIENCE, exit_code, serving

#: Runs `serve` with a clock that is ahead, and kills it once a grant is stored, before or after the chain gets it.
_LAUNCHER = """
import os, signal, sys, time
ahead, clock = float(sys.argv[2]), time.time
time.time = lambda: clock() + ahead
from app.submission.submitter import Submitter
when, send = sys.argv[1], Submitter._post
async def post(self, attempt):
    if attempt.type == "grant_allowance" and when == "stored":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = await send(self, attempt)
    if attempt.type == "grant_allowance" and when == "sent":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
Submitter._post = post
from app.commands.main import main
main(sys.argv[3:])
"""


def _before_midnight(seconds: float) -> float:
    """Return how far a clock must be ahead so that a month ends in so many seconds."""
    now = datetime.now(UTC)
    first = (now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)
    return (first - now).total_seconds() - seconds


@pytest.mark.parametrize("when", ["stored", "sent"])
async def test_allowance_granted_before_a_kill_is_settled_after_it(tmp_path: Path, when: str) -> None:
    headers = {"Idempotency-Key": "interrupted"}
    ahead = _before_midnight(PATIENCE)
    async with serving(tmp_path, _LAUNCHER, when, str(ahead)) as killed:
        client = killed.client
        rules = {"name": "A", "allowAllowances": True, "maxPerDay": "10", "maxPerMonth": "10"}
        policy = (await client.post("/v1/policies", json=rules)).json()["policy_id"]
        made = []
        for name in ("payer", "payee"):
            wallet = {"agentId": name, "label": name, "policyId": policy}
            made.append((await client.post("/v1/wallets", json=wallet)).json())
        path = f"/v1/wallets/{made[0]['wallet_id']}"
        await client.post(f"{path}/fund", json={"amount": "50", "currency": "USDC"})
        body = {
            "amount": "6",
            "destination": made[1]["chain_address"],
            "delegate": str(Keypair().pubkey()),
            "expiresIn": 5,
        }
        with contextlib.suppress(httpx.HTTPError):
            await client.post(f"{path}/allowances", json=body, headers=headers)
        assert await exit_code(killed.process) == -9

    # Its next run begins after midnight.
    async with serving(tmp_path, _LAUNCHER, "never", str(ahead + PATIENCE)) as started:
        client = started.client
        async with asyncio.timeout(PATIENCE):
            while True:
                # What was stored may have become too old to land; the request itself tells, under its key.
                granted = await client.post(f"{path}/allowances", json=body, headers=headers)
                found = (await client.get(f"{path}/allowances")).json()["data"]
                if granted.status_code == 200 and [one["status"] for one in found] == ["settled"]:
                    break
                await asyncio.sleep(0.05)
        balance = (await client.get(path)).json()["usdc_balance"]
        rows = (await client.get(f"{path}/transactions?status=confirmed")).json()["data"]
        payment = {"walletId": made[0]["wallet_id"], "to": made[1]["wallet_id"], "amount": "1", "currency": "USDC"}
        simulated = (await client.post("/v1/payments/simulate", json=payment)).json()

    assert [(one["spent_amount"], one["returned_amount"]) for one in found] == [("0.00", "6.00")]
    assert balance == "50.00"
    reached = {one["rule"]: one["attempted"] for one in simulated["rules"]}
    assert (reached["max_per_day"], reached["max_per_month"]) == ("1.00", "1.00")
    assert [(one["type"], one["amount"]) for one in rows][:2] == [("escrow_refund", "6.00"), ("payment", "6.00")]
