"""`agent-vault mcp`: serves the tools over standard input and output, for clients that start a server process."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from typing import BinaryIO, cast
from urllib.parse import quote

import click
import httpx
from anyio import AsyncFile, to_thread
from mcp.server.stdio import stdio_server
from mcp.types import INVALID_REQUEST, PARSE_ERROR, Tool

from app.api._parsing import json_object
from app.commands._api import API_KEY, api_url
from app.core.errors import RequestError
from app.core.paths import ConfigurationError
from app.mcp.messages import error_response, fault_of
from app.mcp.operations import REQUEST_HEADERS, Api, Json, Operation, Operations
from app.mcp.server import Context, vault_server
from app.mcp.tools import TOOLS

#: Timeout of a request in seconds. The service reports a slow payment as pending much earlier.
_SECONDS = 120.0
_NO_OBJECT = "A line must be one JSON object."
_TOKEN = "AGENT_VAULT_SESSION_TOKEN"  # noqa: S105 - a name


@click.command("mcp")
@api_url
def mcp(url: str) -> None:
    """Serve a vault's tools over standard input and output (MCP).

    The protocol is the Model Context Protocol, for clients that start a server process. The API key is read from
    AGENT_VAULT_API_KEY and the session token from AGENT_VAULT_SESSION_TOKEN. The address of the API is read from
    AGENT_VAULT_URL, unless --url is given.
    """
    headers = _credentials(os.environ)
    if httpx.URL(url).scheme not in {"http", "https"} or not httpx.URL(url).host:
        raise ConfigurationError(f"{url} is not a valid API address; pass an http or https URL")
    asyncio.run(_serve(url, headers))


def _credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the headers for every request. Raises ConfigurationError without a key, or if one is malformed."""
    key, token = environment.get(API_KEY, "").strip(), environment.get(_TOKEN, "").strip()
    if not key:
        raise ConfigurationError(f"set {API_KEY} to the agent's API key")
    for name, value in ((API_KEY, key), (_TOKEN, token)):
        if not (value.isascii() and value.isprintable()):
            raise ConfigurationError(f"{name} contains characters that are not valid in a key or token")
    return {"Authorization": f"Bearer {key}"} | ({"Session-Token": token} if token else {})


async def _serve(url: str, headers: Mapping[str, str]) -> None:
    """Serve the tools until standard input ends."""
    service = _Operations(url)

    # Following a redirect would send the credentials to another host.
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_SECONDS, follow_redirects=False) as client:

        async def send(operation: Operation, path: dict[str, str], query: str, content: bytes) -> httpx.Response:
            url = operation.path.format_map({name: quote(value, safe="") for name, value in path.items()})
            return await client.request(operation.method, f"{url}?{query}", content=content, headers=REQUEST_HEADERS)

        async def api(_ctx: Context) -> Api:
            return Api(send, await service.loaded())

        async def tools() -> list[Tool]:
            operations = await service.loaded()
            return [tool.described(operations) for tool in TOOLS]

        server = vault_server(tools, api, guide=_guide)
        # Only protocol messages may reach standard output.
        output = sys.stdout.buffer
        with contextlib.redirect_stdout(sys.stderr):
            wire = _Wire(sys.stdin.buffer, output)
            async with stdio_server(cast("AsyncFile[str]", wire), cast("AsyncFile[str]", wire)) as (received, sent):
                await server.run(received, sent, server.create_initialization_options())


class _Wire:
    """Standard input and output for the SDK, which reads and writes lines.

    It answers invalid messages itself, because the SDK ignores them. It delays the end of the input until all requests
    are answered, because the SDK sends no response after the end.
    """

    def __init__(self, received: BinaryIO, sent: BinaryIO) -> None:
        self._received = received
        self._sent = sent
        #: The ids of requests without a response.
        self._open: set[str | int] = set()
        self._answered = asyncio.Event()
        self._writing = asyncio.Lock()

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await to_thread.run_sync(self._received.readline, abandon_on_cancel=True):
            if not line.strip():
                continue
            if (message := await self._valid(line)) is not None:
                yield json.dumps(message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                while self._open:
                    self._answered.clear()
                    await self._answered.wait()

    async def write(self, line: str) -> None:
        """Send a message to the client."""
        message = json.loads(line)
        if "method" not in message:
            self._closed(message.get("id"))
        async with self._writing:
            await to_thread.run_sync(self._send, line.encode())

    async def flush(self) -> None:
        """Do nothing, because `write` sends at once."""

    def _send(self, line: bytes) -> None:
        self._sent.write(line)
        self._sent.flush()

    async def _valid(self, line: bytes) -> Json | None:
        """Return the message in a line. For an invalid line, send an error response and return None."""
        found: Json | None = None
        try:
            found = json_object(line.decode())
            fault = error_response(INVALID_REQUEST, _NO_OBJECT) if found is None else fault_of(found)
        except (ValueError, RecursionError):
            fault = error_response(PARSE_ERROR, "The line is not valid JSON in UTF-8.")
        except RequestError:
            fault = error_response(INVALID_REQUEST, "The line contains a name twice. Send each name once.")
        if found is None or fault is not None:
            await self.write(f"{json.dumps(fault)}\n")
            return None
        if "method" in found and "id" in found:
            self._open.add(found["id"])
        elif found.get("method") == "notifications/cancelled":
            self._closed((found.get("params") or {}).get("requestId"))
        return found

    def _closed(self, request: object) -> None:
        self._open = {one for one in self._open if one != request}
        self._answered.set()


class _Operations:
    """The API's operations. They are loaded at the first request, because loading imports the whole service."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loading: asyncio.Task[Operations] | None = None

    async def loaded(self) -> Operations:
        self._loading = self._loading or asyncio.create_task(asyncio.to_thread(self._load))
        return await asyncio.shield(self._loading)

    def _load(self) -> Operations:
        from app.server.application import openapi  # noqa: PLC0415

        return Operations(openapi(self._url))


def _guide() -> str:
    from app.docs.render import guide_text  # noqa: PLC0415

    return guide_text("mcp")
