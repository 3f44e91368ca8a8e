"""SIGTERM while a payment is in flight: it is finished and answered, then the process ends."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

from tests.support.processes import PATIENCE, Serve, exit_code, printed, serving

#: Runs `serve` and holds every payment between its storing and its sending until a file appears.
_LAUNCHER = """
import asyncio, pathlib, sys
from app.submission.submitter import Submitter
release, send = pathlib.Path(sys.argv[1]), Submitter._post
async def held(self, attempt):
    if attempt.type == "payment":
        print("held", flush=True)
        while not release.exists():
            await asyncio.sleep(0.01)
    return await send(self, attempt)
Submitter._post = held
from app.commands.main import main
main(sys.argv[2:])
"""


async def _post(serve: Serve, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await serve.client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def _hold_a_payment(serve: Serve) -> "asyncio.Task[dict[str, Any]]":
    wallet = await _post(serve, "/v1/wallets", {"agentId": "a", "label": "A", "policyId": "pol_moderate"})
    await _post(serve, f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "5"})
    body = {"to": str(Keypair().pubkey()), "amount": "1", "currency": "USDC"}
    paying = asyncio.create_task(_post(serve, f"/v1/wallets/{wallet['wallet_id']}/pay", body))
    await printed(serve.process, b"held")
    return paying


async def _refuses_connections(serve: Serve) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with httpx.AsyncClient() as other:
                    await other.get(f"{serve.url}/healthz")
            except httpx.ConnectError:
                return
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                # It was accepted just before, and closed before it was read.
                continue


async def test_payment_in_flight_is_answered_before_the_service_ends(tmp_path: Path) -> None:
    release = tmp_path / "release"
    async with serving(tmp_path, _LAUNCHER, str(release)) as serve:
        # Given a payment that is stored but not yet sent
        paying = await _hold_a_payment(serve)

        # When the service is told to stop, it accepts nothing new
        serve.process.send_signal(signal.SIGTERM)
        await _refuses_connections(serve)
        assert not paying.done()
        release.touch()

        # Then the payment is confirmed and answered, and only then the process ends
        async with asyncio.timeout(PATIENCE):
            assert (await paying)["status"] == "confirmed"
        assert await exit_code(serve.process) == 0


async def test_payment_cut_off_by_a_shutdown_is_recovered_after_the_restart(tmp_path: Path) -> None:
    release = tmp_path / "release"
    async with serving(tmp_path, _LAUNCHER, str(release), AGENT_VAULT_SHUTDOWN_TIMEOUT="0") as serve:
        paying = await _hold_a_payment(serve)
        serve.process.send_signal(signal.SIGTERM)
        assert await exit_code(serve.process) == 0
        cut_off = await asyncio.gather(paying, return_exceptions=True)
        assert isinstance(cut_off[0], httpx.HTTPError | AssertionError)
        release.touch()

    async with serving(tmp_path, _LAUNCHER, str(release)) as again, asyncio.timeout(PATIENCE):
        while True:
            [row] = (await again.client.get("/v1/transactions?type=payment")).json()["data"]
            if row["status"] != "pending":
                break
            await asyncio.sleep(0.05)
    assert row["status"] == "confirmed"
