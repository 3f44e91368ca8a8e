"""Exports in the form that a client gets."""

from pathlib import Path
from typing import Any

from app.exports.exporter import Exporter
from tests.support.service_world import ServiceWorld


async def export(world: ServiceWorld, path: Path, manifest: Path | None = None, **body: Any) -> Path:
    """Make an export with this request body, and return a file that contains it. Store its manifest in `manifest`."""
    made = await world.ok("POST", "/v1/transactions/export", body)
    await world.service.part(Exporter).tick()
    ready = await world.ok("GET", f"/v1/transactions/exports/{made['export_id']}")
    assert ready["status"] == "ready", ready
    if manifest is not None:
        manifest.write_bytes((await world.client.get(ready["manifest_url"])).content)  # noqa: ASYNC240 - a small file
    path.write_bytes((await world.client.get(ready["download_url"])).content)  # noqa: ASYNC240 - a small file
    return path
