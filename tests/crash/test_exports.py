"""Kill -9 of `serve` while it makes, writes or removes an export: the next start finishes that, once."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import PATIENCE, exit_code, serving

#: Runs the command line and kills it before the request is answered, in the middle of a file, before the file gets its
#: name, before that is recorded, or before the file is removed.
_LAUNCHER = """
import os, signal, sys
from app.submission import claim
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
    claim.finish = die
elif moment == "removing":
    unlink = files.Path.unlink
    files.Path.unlink = lambda self, **given: die() if self.suffix == ".csv" else unlink(self, **given)
from app.commands.main import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize("moment", ["answering", "writing", "naming", "recording"])
async def test_export_that_a_kill_interrupted_is_finished_once(tmp_path: Path, moment: str) -> None:
    body = {"format": "json", "idempotencyKey": "export"}
    async with serving(tmp_path, _LAUNCHER, moment) as killed:
        with contextlib.suppress(httpx.HTTPError):
            await killed.client.post("/v1/transactions/export", json=body)
        await exit_code(killed.process)

    async with serving(tmp_path, _LAUNCHER, "never") as started:
        client = started.client
        made = (await client.post("/v1/transactions/export", json=body)).json()
        ready = await _ready(client, made["export_id"])
        events = (await client.get("/v1/events", params={"event": "export.ready"})).json()["data"]
        link = ready["download_url"].partition("/v1/")[2]
        exported = (await client.get(f"/v1/{link}")).json()
        listed = (await client.get("/v1/transactions", params={"limit": "100"})).json()["data"]

    assert [event["export_id"] for event in events] == [made["export_id"]]
    assert [row["tx_id"] for row in exported["transactions"]] == [row["tx_id"] for row in listed] != []
    assert not list((tmp_path / "exports").glob("*.part"))


async def test_file_that_a_kill_left_behind_is_removed(tmp_path: Path) -> None:
    short = {"AGENT_VAULT_EXPORT_LIFETIME": "1"}
    async with serving(tmp_path, _LAUNCHER, "removing", **short) as killed:
        made = (await killed.client.post("/v1/transactions/export", json={"format": "csv"})).json()
        await exit_code(killed.process)
    file = tmp_path / "exports" / f"{made['export_id']}.csv"
    assert file.exists()

    async with serving(tmp_path, _LAUNCHER, "never", **short) as started, asyncio.timeout(PATIENCE):
        while file.exists():  # noqa: ASYNC110 - the other process removes it
            await asyncio.sleep(0.05)
        shown = (await started.client.get(f"/v1/transactions/exports/{made['export_id']}")).json()

    assert shown["status"] == "expired"


async def _ready(client: httpx.AsyncClient, export_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/transactions/exports/{export_id}")).json()
            if found["status"] == "ready":
                return found
            await asyncio.sleep(0.05)
