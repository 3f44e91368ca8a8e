"""A reader who types the commands of a document into terminals."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx

from tests.support.processes import PATIENCE


def blocks_of(document: Path) -> list[str]:
    """Return the commands of a Markdown document, block by block."""
    return re.findall(r"^```sh\n(.*?)\n```$", document.read_text(), re.MULTILINE | re.DOTALL)


class Reader:
    """Types blocks of commands in a folder. `ports` maps the document's ports, or other texts, to replacements."""

    def __init__(self, folder: Path, blocks: list[str], ports: Mapping[str, str], **environment: str) -> None:
        self._folder = folder
        self._blocks = blocks
        self._ports = ports
        self._environment = {**os.environ, **environment}

    async def types(self, pattern: str) -> str:
        """Run the single block that matches this pattern to its end, and return its output."""
        async with self._terminal(pattern) as process, asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert process.returncode == 0, (out + err).decode()
        return out.decode()

    @contextlib.asynccontextmanager
    async def keeps_running(self, pattern: str, *ports: str) -> AsyncIterator[None]:
        """Run the block that serves on these ports. The context begins when it listens on all of them."""
        async with self._terminal(pattern) as process, httpx.AsyncClient() as client:
            async with asyncio.timeout(PATIENCE):
                for port in ports:
                    while True:
                        assert process.returncode is None, await process.communicate()
                        with contextlib.suppress(httpx.TransportError):
                            await client.get(f"http://127.0.0.1:{self._ports[port]}/")
                            break
                        await asyncio.sleep(0.05)
            yield

    @contextlib.asynccontextmanager
    async def _terminal(self, pattern: str) -> AsyncIterator[asyncio.subprocess.Process]:
        [script] = [block for block in self._blocks if re.search(pattern, block)]
        script = re.sub("|".join(map(re.escape, self._ports)), lambda found: self._ports[found[0]], script)
        process = await asyncio.create_subprocess_exec(
            *("bash", "-eu", "-c", script),
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
