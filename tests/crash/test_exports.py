"""Kill -9 of `serve` while it makes, writes or removes an export: the next start goes on with it, once."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.test_command_line import free_ports

_PATIENCE = 60.0
_ROOT = Path(__file__).resolve().parents[2]

#: Runs the command line, which dies before the request is answered, in the middle of a file, before its name is given,
#: before that is on record, or before the file is removed.
_LAUNCHER = """
import os, signal, sys
from app.submission import idempotency
from app.exports import exporter, files
moment = sys.argv[1]
def die(*_given, **_named):
    os.kill(os.getpid(), signal.SIGKILL)
if moment == "writing":
    make = exporter.Exporter.__init__
    exporter.Exporter.__init__ = lambda self, **given: make(self, **given | {"show": die})
elif moment == "naming":
    replace = files.Path.replace
    files.Path.replace = lambda self, target: die() if self.suffix == files.PART else replace(self, target)
elif moment == "recording":
    exporter.finish = die
elif moment == "answering":
    idempotency.finish = die
elif moment == "removing":
    unlink = files.Path.unlink
    files.Path.unlink = lambda self, **given: die() if self.suffix == ".csv" else unlink(self, **given)
from app.server.cli import main
main(sys.argv[2:])
"""


@contextlib.asynccontextmanager
async def _serving(
    data: Path, moment: str, **environment: str
) -> AsyncIterator[tuple[httpx.AsyncClient, asyncio.subprocess.Process]]:
    port, rpc_port = free_ports()
    options = ["serve", "--data-dir", str(data), "--port", str(port), "--localnet-port", str(rpc_port)]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", _LAUNCHER, moment, *options],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **environment},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            while not (line := await process.stdout.readline()).startswith(b"curl "):
                assert line, "serve ended before it listened"
        key = (data / "admin-api-key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
            yield client, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("moment", ["answering", "writing", "naming", "recording"])
async def test_export_that_a_kill_interrupted_is_finished_once(tmp_path: Path, moment: str) -> None:
    body = {"format": "json", "idempotencyKey": "export"}
    async with _serving(tmp_path, moment) as (client, process):
        with contextlib.suppress(httpx.HTTPError):
            await client.post("/v1/transactions/export", json=body)
        async with asyncio.timeout(_PATIENCE):
            await process.wait()

    async with _serving(tmp_path, "never") as (client, _):
        made = (await client.post("/v1/transactions/export", json=body)).json()
        ready = await _ready(client, made["export_id"])
        events = (await client.get("/v1/events", params={"event": "export.ready"})).json()["data"]
        link = ready["download_url"].partition("/v1/")[2]
        exported = (await client.get(f"/v1/{link}")).json()
        listed = (await client.get("/v1/transactions", params={"limit": "100"})).json()["data"]

    assert [event["export_id"] for event in events] == [made["export_id"]]
    assert [row["tx_id"] for row in exported["transactions"]] == [row["tx_id"] for row in listed] != []
    assert not list((tmp_path / "exports").glob("*.part"))


async def test_file_that_a_kill_kept_from_being_removed_is_removed(tmp_path: Path) -> None:
    short = {"AGENT_VAULT_EXPORT_LIFETIME": "1"}
    async with _serving(tmp_path, "removing", **short) as (client, process):
        made = (await client.post("/v1/transactions/export", json={"format": "csv"})).json()
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    file = tmp_path / "exports" / f"{made['export_id']}.csv"
    assert file.exists()

    async with _serving(tmp_path, "never", **short) as (client, _), asyncio.timeout(_PATIENCE):
        while file.exists():  # noqa: ASYNC110 - the other process removes it
            await asyncio.sleep(0.05)
        shown = (await client.get(f"/v1/transactions/exports/{made['export_id']}")).json()

    assert shown["status"] == "expired"


async def _ready(client: httpx.AsyncClient, export_id: str) -> dict[str, Any]:
    async with asyncio.timeout(_PATIENCE):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/transactions/exports/{export_id}")).json()
            if found["status"] == "ready":
                return found
            await asyncio.sleep(0.05)
