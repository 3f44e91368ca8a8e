"""Checks that the types that openapi-typescript generates make a client with which the quick start runs."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import served
from tests.support.node import compiler, generated_clients
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SOURCE = Path(__file__).parent / "openapi/quickstart.ts"
_PATIENCE = 120.0


async def _run(*command: str | Path, folder: Path, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **environment},
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), _PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_quick_start_runs_with_generated_types(world: ServiceWorld, tmp_path: Path) -> None:
    modules = generated_clients()
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(_SOURCE, tmp_path)
    payee = await world.payee()

    async with served(world) as base:
        # When the types are generated from the served document, and the client is compiled against them
        await _run(modules / ".bin/openapi-typescript", f"{base}/openapi.json", "-o", "generated.ts", folder=tmp_path)
        strict = ("--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--skipLibCheck")
        options = ("--module", "nodenext", "--target", "es2023", "--types", "node", *strict)
        await _run(compiler(), *options, "quickstart.ts", folder=tmp_path)
        environment = {"URL": base, "KEY": world.keys["admin"], "PAYEE": payee}
        said: dict[str, Any] = json.loads(await _run("node", "quickstart.js", folder=tmp_path, **environment))

    # Then its output is what happened
    assert said.pop("slot") > 0
    violation = {"rule": "max_per_tx", "limit": "5.00", "attempted": "6.00"}
    assert said == {
        "balance": "10.00",
        "status": "confirmed",
        "memo": None,
        "refused": [402, "policy_violation", violation],
        "blocked": "6.00",
    }
    assert await world.balance(payee) == 4_500_000
