"""`agent-vault keeper` beside `serve`, killed between sending and confirmation, and started again."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from tests.server.test_command_line import free_ports

_PATIENCE = 30.0
_ROOT = Path(__file__).resolve().parents[2]

#: Runs the command line; the keeper dies as soon as the chain has taken a transaction of its.
_DEADLY = """
import os, signal, sys
from app.keeper.keeper import Keeper
send = Keeper._send
async def deadly(self, *arguments):
    await send(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)
Keeper._send = deadly
from app.server.cli import main
main(sys.argv[1:])
"""
_COMMAND = "import sys; from app.server.cli import main; main(sys.argv[1:])"


@contextlib.asynccontextmanager
async def _running(code: str, *arguments: str, until: bytes) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "AGENT_VAULT_KEEPER": "false"}
    environment["AGENT_VAULT_KEEPER_INTERVAL"] = "0.05"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            while not (line := await process.stdout.readline()).startswith(until):
                assert line, f"it ended before it said {until!r}"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_keeper_killed_after_sending_tops_up_once_all_the_same(tmp_path: Path) -> None:
    port, rpc_port = free_ports()
    data = ("--data-dir", str(tmp_path))
    serve = ("serve", *data, "--port", str(port), "--localnet-port", str(rpc_port))
    keeper = ("keeper", *data, "--rpc-url", f"http://127.0.0.1:{rpc_port}")
    async with _running(_COMMAND, *serve, until=b"curl "):
        key = (tmp_path / "admin-api-key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
            body = {"agentId": "low", "label": "Low", "policyId": "pol_moderate"}
            wallet = (await client.post("/v1/wallets", json=body)).json()["wallet_id"]
            rule = {"enabled": True, "triggerBelow": "10", "topupAmount": "25"}
            assert (await client.put(f"/v1/wallets/{wallet}/auto-topup", json=rule)).status_code == 200

            async with _running(_DEADLY, *keeper, until=b"Keeper at work") as process, asyncio.timeout(_PATIENCE):
                assert await process.wait() == -9
            async with _running(_COMMAND, *keeper, until=b"Keeper at work"):
                # A second wallet shows that it has looked at everything since.
                body["agentId"] = "later"
                later = (await client.post("/v1/wallets", json=body)).json()["wallet_id"]
                assert (await client.put(f"/v1/wallets/{later}/auto-topup", json=rule)).status_code == 200
                async with asyncio.timeout(_PATIENCE):
                    while await _balance(client, later) != "25.00":  # noqa: ASYNC110 - asks over HTTP
                        await asyncio.sleep(0.05)

            rows = (await client.get(f"/v1/wallets/{wallet}/transactions?type=funding")).json()["data"]
            assert [(row["amount"], row["status"]) for row in rows] == [("25.00", "confirmed")]
            assert await _balance(client, wallet) == "25.00"


async def _balance(client: httpx.AsyncClient, wallet: str) -> str:
    return str((await client.get(f"/v1/wallets/{wallet}")).json()["usdc_balance"])
