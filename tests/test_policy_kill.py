"""Kill -9 of `serve` while it changes a policy: the change is made once, whole, and credited to who asked."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

from tests.test_cli import free_ports

_PATIENCE = 30.0
_ROOT = Path(__file__).resolve().parent.parent
#: Two transactions write them, a third puts them in force.
_RECIPIENTS = 30

#: Runs `serve` and, armed by a signal, kills it at the given transaction of a policy's change: before or after the
#: chain gets it.
_LAUNCHER = """
import os, signal, sys
from app.submission import Submitter
moment, number = sys.argv[1], int(sys.argv[2])
send, seen, armed = Submitter._send, 0, False
def arm(*_):
    global armed
    armed = True
signal.signal(signal.SIGUSR1, arm)
async def deadly(self, attempt):
    global seen
    seen += armed and attempt.type in ("write_allowlist", "update_policy", "close_policy")
    if moment == "stored" and seen == number:
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = await send(self, attempt)
    if moment == "sent" and seen == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome
Submitter._send = deadly
from app.cli import main
main(sys.argv[3:])
"""


@contextlib.asynccontextmanager
async def _serve(
    data: Path, moment: str, number: int
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    port, rpc_port = free_ports()
    options = ["serve", "--data-dir", str(data), "--port", str(port), "--localnet-port", str(rpc_port)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _LAUNCHER, moment, str(number), *options, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            while not (line := await process.stdout.readline()).startswith(b"curl "):
                assert line, "serve ended before it listened"
        headers = {"Authorization": f"Bearer {(data / 'admin-api-key').read_text().strip()}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
            yield process, client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _ask(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """Ask until there is an answer of success: what an earlier run sent may take a moment to be seen."""
    headers = {"Idempotency-Key": f"{method} {path}"}
    async with asyncio.timeout(_PATIENCE):
        while True:
            response = await client.request(method, path, json=body, headers=headers)
            if response.status_code == 200:
                return response.json()
            assert response.status_code in {409, 503}, response.text
            await asyncio.sleep(0.1)


async def test_policy_change_that_is_killed_again_and_again_is_made_once_and_whole(tmp_path: Path) -> None:
    recipients = sorted(str(Keypair().pubkey()) for _ in range(_RECIPIENTS))
    change = {"name": "After", "maxPerTx": "6", "allowedRecipients": recipients}
    path = ""
    # Given kills before a chunk of the list is sent, and right after all of it is
    for moment, number in (("stored", 2), ("sent", 3)):
        async with _serve(tmp_path, moment, number) as (process, client):
            if not path:
                body = {"name": "Before", "maxPerTx": "5"}
                path = f"/v1/policies/{(await _ask(client, 'POST', '/v1/policies', body))['policy_id']}"
            shown = (await client.get(path)).json()
            assert (shown["name"], shown["max_per_tx"], shown["allowed_recipients"]) == ("Before", "5.00", [])
            process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(httpx.HTTPError):
                await client.patch(path, json=change, headers={"Idempotency-Key": f"PATCH {path}"})
            async with asyncio.timeout(_PATIENCE):
                assert await process.wait() == -9

    # When the request is repeated once more
    async with _serve(tmp_path, "sent", 1) as (process, client):
        changed = await _ask(client, "PATCH", path, change)

        # Then its change stands, as one
        assert (changed["name"], changed["max_per_tx"], changed["version"]) == ("After", "6.00", 2)
        assert sorted(changed["allowed_recipients"]) == recipients
        [entry] = (await client.get(f"{path}/audit-log")).json()["data"]
        assert entry["changed_by"].startswith("key_")
        assert set(entry["changes"]) == {"name", "max_per_tx", "allowed_recipients"}
        # And a deletion that is killed after sending is answered all the same
        process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(httpx.HTTPError):
            await client.delete(path, headers={"Idempotency-Key": f"DELETE {path}"})
        async with asyncio.timeout(_PATIENCE):
            assert await process.wait() == -9
    async with _serve(tmp_path, "never", 0) as (_process, client):
        assert await _ask(client, "DELETE", path) == changed
        assert (await client.get(path)).status_code == 404
