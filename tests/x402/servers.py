"""The public packages' facilitator and a paid resource, as processes of Node."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from solders.keypair import Keypair

from tests.support.needs import skip_or_fail

FOLDER = Path(__file__).resolve().parents[1] / "clients" / "x402"
_INSTALL = "npm ci --prefix tests/clients/x402"
_PATIENCE = 30.0


def node() -> str:
    """The command of Node. Without it or its packages the test is skipped, or fails if CI=true."""
    found = shutil.which("node")
    if found is None or not (FOLDER / "node_modules").is_dir():
        skip_or_fail(f"there is no Node with the packages of x402: run {_INSTALL}")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@contextlib.asynccontextmanager
async def started(script: str, **environment: str) -> AsyncIterator[str]:
    """Run a script that listens on PORT until the context ends; yields its address."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        node(),
        script,
        cwd=FOLDER,
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


@contextlib.asynccontextmanager
async def facilitator(
    folder: Path, keypair: Keypair, *, rpc: str, network: str, allowed: str | None = None, v1: str = ""
) -> AsyncIterator[str]:
    """A facilitator; it takes payments by the program `allowed`, or else only plain transfers."""
    key = folder / "facilitator.json"
    key.write_text(json.dumps(list(bytes(keypair))))
    smart = {} if allowed is None else {"SMART": "1", "ALLOWED": allowed}
    async with started("facilitator.mjs", RPC=rpc, KEY=str(key), NETWORKS=network, V1=v1, **smart) as url:
        yield url
