"""Runs the guide's receivers exactly as shown, and sends them genuine, repeated, altered and old events."""

import asyncio
import contextlib
import json
import re
import sys
import time
from pathlib import Path

import httpx
import pytest

from app.webhooks._signing import new_secret, signature_headers
from tests.clients.packages.installed import CLIENTS, Job, compiled, typescript_package
from tests.support.http import PATIENCE
from tests.support.processes import free_ports

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TEXT = (CLIENTS.parent / "app/docs/guides/receivers.md").read_text(encoding="utf-8")
_SAMPLES = {
    f"{language}-{kind}": code
    for language in ("python", "ts")
    for kind, code in zip(("client", "alone"), re.findall(rf"```{language}\n(.*?)```", _TEXT, re.DOTALL), strict=True)
}
_BODY = json.dumps({"event": "ping", "event_id": "evt_1", "timestamp": "2026-05-01T00:00:00.000Z"}).encode()


@pytest.fixture(scope="module", name="package")
def _package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typescript_package(tmp_path_factory.mktemp("typescript"))


def _job(sample: str, folder: Path, request: pytest.FixtureRequest) -> Job:
    if sample.startswith("python"):
        (folder / "receiver.py").write_text(_SAMPLES[sample])
        return Job((sys.executable, folder / "receiver.py"), folder)
    package: Path = request.getfixturevalue("package")
    return Job(("node", compiled(package, sample, _SAMPLES[sample])), folder)


async def _reached(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(httpx.TransportError):
                await client.post("/", content=b"{}")
                return
            await asyncio.sleep(0.05)


async def _answered(port: int, request: bytes) -> bytes:
    """Send the bytes of a request and return the first line of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


@pytest.mark.parametrize("sample", _SAMPLES)
async def test_receiver_takes_each_genuine_event_once(
    sample: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    secret, old = new_secret(), new_secret()
    port, _ = free_ports()

    def signed(body: bytes, *, age: int = 0) -> dict[str, str]:
        """Return the headers of a webhook while its secret is being rotated."""
        moment = int(time.time()) - age
        return dict(signature_headers(body, message_id="evt_1", timestamp=moment, keys=[old, secret]))

    environment = {"SECRET": secret, "PORT": str(port), "PYTHONPATH": str(CLIENTS / "python")}
    process = await _job(sample, tmp_path, request).start(**environment)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await _reached(client)
            sent = [
                (_BODY, signed(_BODY)),
                (_BODY, signed(_BODY)),
                (_BODY.replace(b"ping", b"pong"), signed(_BODY)),
                (_BODY, signed(_BODY, age=3600)),
                (_BODY, {}),
            ]
            statuses = [(await client.post("/", content=body, headers=headers)).status_code for body, headers in sent]
        chunked = await _answered(port, b"POST / HTTP/1.1\r\nHost: me\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    finally:
        process.kill()
        said, _ = await process.communicate()

    assert statuses == [204, 204, 401, 401, 401]
    assert chunked.split()[1] == (b"411" if sample.startswith("python") else b"401")
    assert said.decode().splitlines() == ["ping"]
