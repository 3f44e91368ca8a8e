"""Checks the OpenAPI document with Spectral, and the clients in TypeScript that two packages generate from it."""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import served
from tests.support.node import compiler, generated_clients
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_FOLDER = Path(__file__).parent / "openapi"
_STRICT = ("--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--skipLibCheck")
_PATIENCE = 120.0


async def _run(
    *command: str | Path, folder: Path, fails: bool = False, environment: Mapping[str, str] | None = None
) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), _PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode != 0) is fails, out.decode()
    return out.decode()


async def _built_and_run(
    world: ServiceWorld, base: str, folder: Path, source: str, *generate: str, payee: str
) -> dict[str, Any]:
    """Generate code from the served document, compile a source against it, and return the JSON that it prints."""
    modules = generated_clients()
    (folder / "node_modules").symlink_to(modules)
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(_FOLDER / f"{source}.ts", folder)
    generator, *options = generate
    await _run(modules / ".bin" / generator, *options, folder=folder)
    target = ("--module", "nodenext", "--target", "es2023", "--types", "node")
    await _run(compiler(), *target, *_STRICT, f"{source}.ts", folder=folder)
    environment = {"URL": base, "KEY": world.keys["admin"], "PAYEE": payee}
    said: dict[str, Any] = json.loads(await _run("node", f"{source}.js", folder=folder, environment=environment))
    return said


async def test_spectral_finds_no_error(world: ServiceWorld, tmp_path: Path) -> None:
    lint = (generated_clients() / ".bin/spectral", "lint", "openapi.json", "--format", "json", "--quiet")
    (tmp_path / ".spectral.yaml").write_text('extends: ["spectral:oas"]')
    served_document, broken = (await world.client.get("/openapi.json")).text, '{"openapi": "3.1.0", "paths": 1}'
    found = []
    for document in (served_document, broken):
        (tmp_path / "openapi.json").write_text(document)
        said = await _run(*lint, folder=tmp_path, fails=document == broken)
        found.append([problem for problem in json.loads(said) if problem["severity"] == 0])

    assert found[0] == []
    assert found[1] != []


async def test_quick_start_runs_with_generated_types(world: ServiceWorld, tmp_path: Path) -> None:
    payee = await world.payee()

    async with served(world) as base:
        # When the types are generated from the served document, and the client is compiled against them
        generate = ("openapi-typescript", f"{base}/openapi.json", "-o", "generated.ts")
        said = await _built_and_run(world, base, tmp_path, "quickstart", *generate, payee=payee)

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


async def test_generated_schemas_accept_what_the_service_accepts(world: ServiceWorld, tmp_path: Path) -> None:
    payee = await world.payee()

    async with served(world) as base:
        generate = ("openapi-ts", "-i", f"{base}/openapi.json", "-o", "generated", "-p", "zod")
        said = await _built_and_run(world, base, tmp_path, "validated", *generate, payee=payee)

    assert said == {
        "label": "Zoë ❤ 東京 😀",
        "balance": "10.00",
        "status": "confirmed",
        "refused": ["policy_violation", "max_per_tx"],
        "listed": [["payment", "blocked"], ["payment", "confirmed"], ["funding", "confirmed"]],
        "accepted": 0,
    }
    assert await world.balance(payee) == 4_500_000
