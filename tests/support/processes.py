"""The command line in separate processes, run by code that may change it first."""

import asyncio
import contextlib
import os
import random
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.warm import COMMAND_LINE, Fork, forked

PATIENCE = 180.0
"""Seconds that a process may take to start, do the awaited work, or end."""
WITH_LOG = """
import os, sys
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
from app.commands.main import main
main(sys.argv[2:])
"""
"""The command line, with its log in the file named by the first argument."""


def free_ports() -> tuple[int, int]:
    """Return a port for the API and the first of two for the chain, below the system's own range of free ports."""
    while True:
        first = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as taken:
            for port in range(first, first + 3):
                taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first, first + 1


async def printed(process: Fork | asyncio.subprocess.Process, beginning: bytes) -> None:
    """Wait until the process prints a line with this beginning."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while not (line := await process.stdout.readline()).startswith(beginning):
            assert line, f"it ended before it printed {beginning!r}"


async def exit_code(process: Fork | asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(PATIENCE):
        return await process.wait()


@contextlib.asynccontextmanager
async def running(code: str, *arguments: str, until: bytes, **environment: str) -> AsyncIterator[Fork]:
    """Run Python code, and yield the process at its first line that begins with `until`.

    The process is killed at the end.
    """
    async with forked(code, arguments, {**os.environ, **environment}) as process:
        await printed(process, until)
        yield process


async def command(*arguments: str, **environment: str) -> str:
    """Run a command and return its output."""
    async with forked(COMMAND_LINE, arguments, {**os.environ, **environment}) as process:
        said, _ = await process.communicate()
    assert process.returncode == 0, arguments
    return said.decode()


async def output(
    *command: str | Path, said: str = "", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a program with this input to its end, and return its standard output. The program must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(said.encode()), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, (out + err).decode(errors="replace")
    return out.decode()


@dataclass(frozen=True)
class Serve:
    """A running `agent-vault serve`, and a client with its admin key."""

    process: Fork
    client: httpx.AsyncClient
    url: str
    rpc: str


@contextlib.asynccontextmanager
async def serving(data: Path, code: str, *arguments: str, **environment: str) -> AsyncIterator[Serve]:
    """Run `serve` on a data folder. The `code` gets the `arguments`, followed by those of the command line."""
    port, rpc_port = free_ports()
    url, rpc = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{rpc_port}"
    options = ("serve", "--data-dir", str(data), "--port", str(port), "--localnet-port", str(rpc_port))
    async with running(code, *arguments, *options, until=b"curl ", **environment) as process:
        headers = {"Authorization": f"Bearer {(data / 'admin-api-key').read_text().strip()}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
            yield Serve(process, client, url, rpc)
