"""A disk that fills while a service pays: it is no longer ready before its first request fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.api.metrics import Metrics
from app.server.gauges import Gauges
from app.server.health import Health
from tests.nodes.volume import Volume, small_disk, small_volume
from tests.support.postgres import Cluster
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_STEP = 500_000
"""Bytes that are taken between two checks."""
_RESERVE = 8_000_000


@contextlib.asynccontextmanager
async def _on_a_tablespace(cluster: Cluster, template: str, folder: Path) -> AsyncIterator[tuple[Volume, ServiceWorld]]:
    with small_volume(cluster, template) as volume:
        async with ServiceWorld(folder, database_url=cluster.url(volume.database)) as world:
            yield volume, world
            volume.make_room()


@contextlib.asynccontextmanager
async def _on_a_disk(folder: Path) -> AsyncIterator[tuple[Volume, ServiceWorld]]:
    with small_disk(folder / "disk") as disk:
        async with ServiceWorld(disk.folder / "data", disk_reserve=_RESERVE) as world:
            yield disk, world
            disk.make_room()


@pytest.mark.proves("GET /readyz")
@pytest.mark.parametrize("on", ["a disk", "a tablespace"])
async def test_node_on_a_filling_disk_is_not_ready_before_a_request_fails(
    cluster: Cluster, template: str, tmp_path: Path, on: str
) -> None:
    opened = _on_a_disk(tmp_path) if on == "a disk" else _on_a_tablespace(cluster, template, tmp_path)
    async with opened as (volume, world):
        wallet, to = await world.wallet(), await world.payee()
        health, happened = Health(world.service, remember=0.0), list[str]()

        async def pay() -> None:
            while "503" not in happened:
                answer = await world.pay(wallet, to, "0.01", body={"memo": "x" * 200})
                if answer.status_code != 200:
                    error_of(answer, 503, "storage_unavailable")
                    happened.append("503")

        async def fill() -> None:
            while "503" not in happened:
                happened.extend((await health.report()).failing)
                volume.take(_STEP)
                await asyncio.sleep(0)

        # When the disk fills under load
        assert (await health.report()).failing == ()
        async with asyncio.timeout(120):
            await asyncio.gather(pay(), pay(), pay(), fill())

        # Then the first 503 comes after the node was not ready
        assert happened[0] == ("disk" if on == "a disk" else "database")
        with contextlib.suppress(Exception):
            await Gauges(world.service).tick()
        assert b"agent_vault_ready 0.0" in world.service.part(Metrics).text(None)

        # And once there is room, it is ready
        volume.make_room()
        async with asyncio.timeout(30):
            while (await health.report()).failing:  # noqa: ASYNC110 - a disk notifies nobody
                await asyncio.sleep(0.1)
        assert (await world.pay(wallet, to, "0.01")).status_code == 200


async def test_gauge_shows_the_free_bytes_of_the_data_folder(tmp_path: Path) -> None:
    async with _on_a_disk(tmp_path) as (disk, world):
        shown = []
        for _ in range(2):
            await Gauges(world.service).tick()
            text = world.service.part(Metrics).text(None).decode()
            shown.append(float(text.split("\nagent_vault_disk_free_bytes ")[1].split("\n")[0]))
            disk.take(10_000_000)
        assert 9_000_000 < shown[0] - shown[1] < 12_000_000
