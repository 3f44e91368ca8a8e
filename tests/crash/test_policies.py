"""Kill -9 of `serve` while it changes a policy or a key: the change is made once, whole, and answered in the end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

from tests.server.test_command_line import free_ports

_PATIENCE = 30.0
_ROOT = Path(__file__).resolve().parents[2]
#: Two transactions write them, a third puts them in force.
_RECIPIENTS = 30

#: Runs `serve` and, armed by a signal, kills it at the given transaction of a policy's change: before or after the
#: chain gets it. Or it kills it when a change has been made, and its answer is to be stored.
_LAUNCHER = """
import os, signal, sys
from app.submission import idempotency
from app.submission.submitter import Submitter
moment, number = sys.argv[1], int(sys.argv[2])
send, seen, armed = Submitter.resend, 0, False
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
Submitter.resend = deadly
finish = idempotency.finish
def unanswered(*arguments):
    if moment == "made" and armed:
        os.kill(os.getpid(), signal.SIGKILL)
    finish(*arguments)
idempotency.finish = unanswered
from app.server.cli import main
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


async def _ask(
    client: httpx.AsyncClient, method: str, path: str, body: Any = None, more: Mapping[str, str] | None = None
) -> Any:
    """Ask until there is an answer of success: what an earlier run sent may take a moment to be seen."""
    headers = {"Idempotency-Key": f"{method} {path}", **(more or {})}
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


async def test_change_that_is_killed_when_it_is_made_and_not_answered_is_answered_when_repeated(tmp_path: Path) -> None:
    async def killed(  # noqa: PLR0917
        process: asyncio.subprocess.Process, client: httpx.AsyncClient, method: str, path: str, body: Any, match: str
    ) -> None:
        process.send_signal(signal.SIGUSR1)
        headers = {"Idempotency-Key": f"{method} {path}", "If-Match": match}
        with contextlib.suppress(httpx.HTTPError):
            await client.request(method, path, json=body, headers=headers)
        async with asyncio.timeout(_PATIENCE):
            assert await process.wait() == -9

    # Given a rename, by the version that it was made from, that was killed
    async with _serve(tmp_path, "made", 0) as (process, client):
        policy = f"/v1/policies/{(await _ask(client, 'POST', '/v1/policies', {'name': 'Before'}))['policy_id']}"
        old = await _ask(client, "POST", "/v1/keys", {"role": "viewer"})
        version = (await client.get(policy)).headers["etag"]
        await killed(process, client, "PATCH", policy, {"name": "After"}, version)

    # Then its repetition is no conflict; and given that a rotation is killed
    rotation, at_once = f"/v1/keys/{old['key_id']}/rotate", {"overlapSeconds": 0}
    async with _serve(tmp_path, "made", 0) as (process, client):
        assert (await _ask(client, "PATCH", policy, {"name": "After"}, {"If-Match": version}))["name"] == "After"
        await killed(process, client, "POST", rotation, at_once, "*")

    # Then its repetition gives a key, the one new one
    async with _serve(tmp_path, "never", 0) as (_process, client):
        new = await _ask(client, "POST", rotation, at_once)
        listed = (await client.get("/v1/keys")).json()["data"]
        assert [one["key_id"] for one in listed if one["role"] == "viewer"] == [new["key_id"], old["key_id"]]
        codes = {}
        for name, key in (("old", old), ("new", new)):
            answer = await client.get("/v1/policies", headers={"Authorization": f"Bearer {key['key']}"})
            codes[name] = answer.status_code
        assert codes == {"old": 401, "new": 200}
