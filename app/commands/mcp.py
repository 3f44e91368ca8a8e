"""`agent-vault mcp`: serves the tools over standard input and output, for clients that start a server process."""

import asyncio
import os
from collections.abc import Mapping
from urllib.parse import quote

import click
import httpx
from mcp.server.stdio import stdio_server
from mcp.types import Tool

from app.core.paths import ConfigurationError
from app.mcp.operations import REQUEST_HEADERS, Api, Operation, Operations
from app.mcp.server import Context, vault_server
from app.mcp.tools import TOOLS

#: Timeout of a request, longer than the service takes to report a payment as pending.
_SECONDS = 120.0
_KEY, _TOKEN = "AGENT_VAULT_API_KEY", "AGENT_VAULT_SESSION_TOKEN"


@click.command("mcp")
@click.option(
    "--url", envvar="AGENT_VAULT_URL", default="http://127.0.0.1:8402", show_default=True, help="Address of the API."
)
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
    key, token = environment.get(_KEY, "").strip(), environment.get(_TOKEN, "").strip()
    if not key:
        raise ConfigurationError(f"set {_KEY} to the agent's API key")
    for name, value in ((_KEY, key), (_TOKEN, token)):
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
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())


class _Operations:
    """The API's operations, loaded at the first request for tools, because loading imports the whole service."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loading: asyncio.Task[Operations] | None = None

    async def loaded(self) -> Operations:
        self._loading = self._loading or asyncio.create_task(asyncio.to_thread(self._load))
        return await asyncio.shield(self._loading)

    def _load(self) -> Operations:
        from app.api.openapi import document  # noqa: PLC0415
        from app.docs.meanings import meanings  # noqa: PLC0415
        from app.server.application import operations  # noqa: PLC0415

        return Operations(document(operations, self._url, meanings()))


def _guide() -> str:
    from app.docs.render import guide_text  # noqa: PLC0415

    return guide_text("mcp")
