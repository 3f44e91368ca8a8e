"""Runs the example client in Python, based on anchorpy, as its users do."""

import sys
from pathlib import Path

import pytest

from tests.support.clients import check, check_on_serve, run, run_on_serve, vault_with_session
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CLIENT = Path(__file__).parent / "python/client.py"


@pytest.mark.parametrize("restricted", [False, True], ids=["anybody", "allowlist"])
async def test_python_client_reads_pays_and_is_refused_with_only_the_idl(
    world: ServiceWorld, tmp_path: Path, restricted: bool
) -> None:
    vault = await vault_with_session(world, tmp_path, restricted=restricted)

    said = await run(world, [sys.executable, str(_CLIENT)], vault)

    await check(world, vault, said)


async def test_python_client_waits_for_its_payment_on_a_running_service(tmp_path: Path) -> None:
    check_on_serve(await run_on_serve([sys.executable, str(_CLIENT)], tmp_path))
