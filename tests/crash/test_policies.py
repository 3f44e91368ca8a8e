"""Kill -9 of `serve` while it changes a policy or a key: the change is made once, completely, and answered."""

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

from tests.support.processes import PATIENCE, Serve, exit_code, serving

#: Two transactions write them, a third puts them in force.
_RECIPIENTS = 30

#: Runs `serve` and, armed by a signal, kills it at the given transaction of a policy's change: before or after the
#: chain gets it, or when the change is made and its answer about to be stored.
_LAUNCHER = """
import os, signal, sys
from app.submission import claim
from app.submission.submitter import Submitter
moment, number = sys.argv[1], int(sys.argv[2])
send, seen, armed = Submitter._post, 0, False
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
Submitter._post = deadly
finish = claim.finish
def unanswered(*arguments, **named):
    if moment == "made" and armed:
        os.kill(os.getpid(), signal.SIGKILL)
    return finish(*arguments, **named)
claim.finish = unanswered
from app.commands.main import main
main(sys.argv[3:])
"""


async def _ask(
    client: httpx.AsyncClient, method: str, path: str, body: Any = None, more: Mapping[str, str] | None = None
) -> Any:
    """Repeat a request until it succeeds: what an earlier run sent may take a moment to be seen."""
    headers = {"Idempotency-Key": f"{method} {path}", **(more or {})}
    async with asyncio.timeout(PATIENCE):
        while True:
            response = await client.request(method, path, json=body, headers=headers)
            if response.status_code == 200:
                return response.json()
            assert response.status_code in {409, 503}, response.text
            await asyncio.sleep(0.1)


async def _kill_at(
    serve: Serve, method: str, path: str, body: Any = None, more: Mapping[str, str] | None = None
) -> None:
    """Make a request during which the armed service kills itself."""
    serve.process.send_signal(signal.SIGUSR1)
    headers = {"Idempotency-Key": f"{method} {path}", **(more or {})}
    with contextlib.suppress(httpx.HTTPError):
        await serve.client.request(method, path, json=body, headers=headers)
    assert await exit_code(serve.process) == -9


async def test_policy_change_killed_repeatedly_is_made_once_and_whole(tmp_path: Path) -> None:
    recipients = sorted(str(Keypair().pubkey()) for _ in range(_RECIPIENTS))
    change = {"name": "After", "maxPerTx": "6", "allowedRecipients": recipients}
    path = ""
    # Given kills before the last chunk of the list is sent, and right after the next run has sent what was left
    for moment, number in (("stored", "2"), ("sent", "1")):
        async with serving(tmp_path, _LAUNCHER, moment, number) as serve:
            client = serve.client
            if not path:
                body = {"name": "Before", "maxPerTx": "5"}
                path = f"/v1/policies/{(await _ask(client, 'POST', '/v1/policies', body))['policy_id']}"
            shown = (await client.get(path)).json()
            assert (shown["name"], shown["max_per_tx"], shown["allowed_recipients"]) == ("Before", "5.00", [])
            await _kill_at(serve, "PATCH", path, change)

    # When the request is repeated once more
    async with serving(tmp_path, _LAUNCHER, "sent", "1") as serve:
        client = serve.client
        changed = await _ask(client, "PATCH", path, change)

        # Then its change is made, as one
        assert (changed["name"], changed["max_per_tx"]) == ("After", "6.00")
        assert changed["version"] > shown["version"]
        assert sorted(changed["allowed_recipients"]) == recipients
        [entry] = (await client.get(f"{path}/audit-log")).json()["data"]
        assert entry["changed_by"].startswith("key_")
        assert set(entry["changes"]) == {"name", "max_per_tx", "allowed_recipients"}
        # And a deletion that is killed after sending is still answered
        await _kill_at(serve, "DELETE", path)
    async with serving(tmp_path, _LAUNCHER, "never", "0") as serve:
        assert await _ask(serve.client, "DELETE", path) == changed
        assert (await serve.client.get(path)).status_code == 404


async def test_change_killed_before_its_answer_is_answered_when_repeated(tmp_path: Path) -> None:
    # Given a killed rename that named the version it changes
    async with serving(tmp_path, _LAUNCHER, "made", "0") as serve:
        client = serve.client
        policy = f"/v1/policies/{(await _ask(client, 'POST', '/v1/policies', {'name': 'Before'}))['policy_id']}"
        old = await _ask(client, "POST", "/v1/keys", {"role": "viewer"})
        version = {"If-Match": (await client.get(policy)).headers["etag"]}
        await _kill_at(serve, "PATCH", policy, {"name": "After"}, version)

    # Then its repetition is no conflict; and given a killed rotation
    rotation, at_once = f"/v1/keys/{old['key_id']}/rotate", {"overlapSeconds": 0}
    async with serving(tmp_path, _LAUNCHER, "made", "0") as serve:
        assert (await _ask(serve.client, "PATCH", policy, {"name": "After"}, version))["name"] == "After"
        await _kill_at(serve, "POST", rotation, at_once, {"If-Match": "*"})

    # Then its repetition gives a key, the only new one
    async with serving(tmp_path, _LAUNCHER, "never", "0") as serve:
        new = await _ask(serve.client, "POST", rotation, at_once)
        listed = (await serve.client.get("/v1/keys")).json()["data"]
        assert [one["key_id"] for one in listed if one["role"] == "viewer"] == [new["key_id"], old["key_id"]]
        codes = {}
        for name, key in (("old", old), ("new", new)):
            answer = await serve.client.get("/v1/policies", headers={"Authorization": f"Bearer {key['key']}"})
            codes[name] = answer.status_code
        assert codes == {"old": 401, "new": 200}
