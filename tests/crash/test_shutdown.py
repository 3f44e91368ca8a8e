"""SIGTERM while a payment is under way: it is finished and answered, then the process ends."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

from tests.server.test_command_line import free_ports

_PATIENCE = 30.0
_ROOT = Path(__file__).resolve().parents[2]

#: Runs `serve` and holds every payment between its storing and its sending until a file appears.
_LAUNCHER = """
import asyncio, pathlib, sys
from app.submission.submitter import Submitter
release, send = pathlib.Path(sys.argv[1]), Submitter.resend
async def held(self, attempt):
    if attempt.type == "payment":
        print("held", flush=True)
        while not release.exists():
            await asyncio.sleep(0.01)
    return await send(self, attempt)
Submitter.resend = held
from app.server.cli import main
main(sys.argv[2:])
"""


@dataclass
class _Serving:
    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    url: str
    release: Path

    async def says(self, beginning: bytes) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            while not (line := await self.process.stdout.readline()).startswith(beginning):
                assert line, "serve ended"

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def hold_a_payment(self) -> "asyncio.Task[dict[str, Any]]":
        wallet = await self.post("/v1/wallets", {"agentId": "a", "label": "A", "policyId": "pol_moderate"})
        await self.post(f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "5"})
        body = {"to": str(Keypair().pubkey()), "amount": "1", "currency": "USDC"}
        paying = asyncio.create_task(self.post(f"/v1/wallets/{wallet['wallet_id']}/pay", body))
        await self.says(b"held")
        return paying

    async def refuses_connections(self) -> None:
        async with asyncio.timeout(_PATIENCE):
            while True:
                try:
                    async with httpx.AsyncClient() as other:
                        await other.get(f"{self.url}/healthz")
                except httpx.ConnectError:
                    return
                except (httpx.NetworkError, httpx.RemoteProtocolError):
                    # It was accepted just before, and closed before it was read.
                    continue


@contextlib.asynccontextmanager
async def _serve(folder: Path, **settings: str) -> AsyncIterator[_Serving]:
    port, rpc_port = free_ports()
    release = folder / "release"
    options = ["serve", "--data-dir", str(folder), "--port", str(port), "--localnet-port", str(rpc_port)]
    command = [sys.executable, "-c", _LAUNCHER, str(release), *options]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1", **settings}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE) as client:
            serving = _Serving(process, client, url, release)
            await serving.says(b"curl ")
            client.headers["Authorization"] = f"Bearer {(folder / 'admin-api-key').read_text().strip()}"
            yield serving
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_payment_under_way_is_answered_before_the_service_ends(tmp_path: Path) -> None:
    async with _serve(tmp_path) as serving:
        # Given a payment that is stored but not yet sent
        paying = await serving.hold_a_payment()

        # When the service is told to stop, it takes nothing new
        serving.process.send_signal(signal.SIGTERM)
        await serving.refuses_connections()
        assert not paying.done()
        serving.release.touch()

        # Then the payment is confirmed and answered, and only then the process ends
        async with asyncio.timeout(_PATIENCE):
            assert (await paying)["status"] == "confirmed"
            assert await serving.process.wait() == 0


async def test_service_ends_in_time_and_settles_what_was_cut_off_after_its_restart(tmp_path: Path) -> None:
    async with _serve(tmp_path, AGENT_VAULT_SHUTDOWN_TIMEOUT="0") as serving:
        paying = await serving.hold_a_payment()
        serving.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_PATIENCE):
            assert await serving.process.wait() == 0
        cut_off = await asyncio.gather(paying, return_exceptions=True)
        assert isinstance(cut_off[0], httpx.HTTPError | AssertionError)
        serving.release.touch()

    async with _serve(tmp_path) as again, asyncio.timeout(_PATIENCE):
        while True:
            [row] = (await again.client.get("/v1/transactions?type=payment")).json()["data"]
            if row["status"] != "pending":
                break
            await asyncio.sleep(0.05)
    assert row["status"] == "confirmed"
