"""`agent-vault keeper` next to `serve`: killed between sending and confirmation, and on a host whose clock is off."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from app.core.timestamps import iso, parse_iso_ms
from tests.support.processes import PATIENCE, exit_code, running, serving
from tests.support.warm import COMMAND_LINE

#: Runs the command line and kills it as soon as the chain has accepted a transaction of the keeper.
_DEADLY = """
import os, signal, sys
from app.keeper import keeper
send = keeper.send
async def deadly(*arguments):
    await send(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
keeper.send = deadly
from app.commands.main import main
main(sys.argv[1:])
"""
#: Runs the command line in a process whose clock is so many hours off.
_CLOCK_OFF = """
import sys, time
hours = float(sys.argv.pop(1))
for name, unit in (("time", 1), ("time_ns", 10**9)):
    setattr(time, name, lambda real=getattr(time, name), shift=int(hours * 3600 * unit): real() + shift)
from app.commands.main import main
main(sys.argv[1:])
"""
#: Another interpreter, because modules take the clock at their import.
_SHIFTED = f"import os, sys; os.execv(sys.executable, [sys.executable, '-uc', {_CLOCK_OFF!r}, *sys.argv[1:]])"
_KEEPER_ELSEWHERE = {"AGENT_VAULT_KEEPER": "false", "AGENT_VAULT_KEEPER_INTERVAL": "0.05"}


async def test_keeper_killed_after_sending_still_tops_up_once(tmp_path: Path) -> None:
    async with serving(tmp_path, COMMAND_LINE, **_KEEPER_ELSEWHERE) as serve:
        client = serve.client
        keeper = ("keeper", "--data-dir", str(tmp_path), "--rpc-url", serve.rpc)
        body = {"agentId": "low", "label": "Low", "policyId": "pol_moderate"}
        wallet = (await client.post("/v1/wallets", json=body)).json()["wallet_id"]
        rule = {"enabled": True, "triggerBelow": "10", "topupAmount": "25"}
        assert (await client.put(f"/v1/wallets/{wallet}/auto-topup", json=rule)).status_code == 200

        async with running(_DEADLY, *keeper, until=b"Keeper at work", **_KEEPER_ELSEWHERE) as process:
            assert await exit_code(process) == -9
        async with running(COMMAND_LINE, *keeper, until=b"Keeper at work", **_KEEPER_ELSEWHERE):
            # A second wallet shows that the keeper has looked at everything since.
            body["agentId"] = "later"
            answer = await client.post("/v1/wallets", json=body)
            assert answer.status_code == 200, answer.text
            later = answer.json()["wallet_id"]
            assert (await client.put(f"/v1/wallets/{later}/auto-topup", json=rule)).status_code == 200
            async with asyncio.timeout(PATIENCE):
                while await _balance(client, later) != "25.00":  # noqa: ASYNC110 - asks over HTTP
                    await asyncio.sleep(0.05)

        rows = (await client.get(f"/v1/wallets/{wallet}/transactions?type=funding")).json()["data"]
        assert [(row["amount"], row["status"]) for row in rows] == [("25.00", "confirmed")]
        assert await _balance(client, wallet) == "25.00"


@pytest.mark.proves("Limits: Host's clock")
@pytest.mark.parametrize("hours", [-5, 5])
async def test_keeper_with_a_clock_hours_off_freezes_in_time(tmp_path: Path, hours: int) -> None:
    async with serving(tmp_path, COMMAND_LINE, **_KEEPER_ELSEWHERE) as serve:
        client = serve.client
        ends = int(time.time()) + 4
        rules = {"name": "Soon over", "expiry": iso(ends)}
        policy = (await client.post("/v1/policies", json=rules)).json()["policy_id"]
        body = {"agentId": "soon", "label": "Soon", "policyId": policy}
        wallet = (await client.post("/v1/wallets", json=body)).json()["wallet_id"]

        keeper = (str(hours), "keeper", "--data-dir", str(tmp_path), "--rpc-url", serve.rpc)
        async with running(_SHIFTED, *keeper, until=b"Keeper at work", **_KEEPER_ELSEWHERE):
            async with asyncio.timeout(PATIENCE):
                while (await client.get(f"/v1/wallets/{wallet}")).json()["status"] != "frozen":  # noqa: ASYNC110 - asks over HTTP
                    await asyncio.sleep(0.05)

        events = (await client.get(f"/v1/events?event=policy.expired&walletId={wallet}")).json()["data"]
        [frozen] = [parse_iso_ms(one["timestamp"]) / 1000 for one in events]
        assert ends <= frozen < ends + PATIENCE


async def _balance(client: httpx.AsyncClient, wallet: str) -> str:
    return str((await client.get(f"/v1/wallets/{wallet}")).json()["usdc_balance"])
