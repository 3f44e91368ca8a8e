"""Node.js packages that tests need, and their scripts as processes."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support import processes
from tests.support.needs import skip_or_fail

_CLIENTS = Path(__file__).resolve().parents[1] / "clients"
_PATIENCE = 120.0


def generated_clients() -> Path:
    """Return the packages of `tests/clients/openapi`. If they or Node.js are missing, skip the test, or fail in CI."""
    return _packages("openapi")


def compiler() -> Path:
    """Return the TypeScript compiler of `tests/clients/typescript`.

    The compiler is native, and a run takes a second.
    """
    return _packages("typescript") / ".bin/tsc"


def x402_packages() -> Path:
    """Return the packages of `tests/clients/x402`: x402, the MCP SDK and its inspector, which `examples` needs."""
    return _packages("x402")


def _packages(name: str) -> Path:
    modules = _CLIENTS / name / "node_modules"
    if shutil.which("node") is None or not modules.exists():
        reason = f"needs Node.js and `npm ci --prefix tests/clients/{name}`"
        skip_or_fail(reason)
    return modules


@contextlib.asynccontextmanager
async def started(name: str, script: str, port: int, **environment: str) -> AsyncIterator[str]:
    """Run a script of a client's folder that listens on PORT until the context ends, and yield its address."""
    _packages(name)
    process = await asyncio.create_subprocess_exec(
        "node",
        script,
        cwd=_CLIENTS / name,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment, "PORT": str(port)},
    )
    output = asyncio.create_task(_read(process))
    try:
        async with asyncio.timeout(_PATIENCE):
            await _listening(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        print(await output)


async def output(name: str, script: str, *arguments: str, **environment: str) -> str:
    """Run a script of a client's folder to its end, and return its output."""
    _packages(name)
    run = processes.output("node", script, *arguments, cwd=_CLIENTS / name, env={**os.environ, **environment})
    return await asyncio.wait_for(run, _PATIENCE)


async def _read(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.read()).decode(errors="replace")


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    while True:
        assert process.returncode is None, "it ended"
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)
