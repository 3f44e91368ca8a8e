"""The official client of the Model Context Protocol, on a served world."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextResourceContents

from app.mcp.tools import TOOLS
from tests.support.http import served
from tests.support.service_world import Json, ServiceWorld

CHANGING = {tool.name for tool in TOOLS if tool.changes}
"""Tools that require an idempotency key."""


def new_key() -> str:
    """A key as an agent is to choose it for each payment that it intends."""
    return str(uuid.uuid4())


@dataclass(frozen=True)
class Agent:
    """An agent with its wallet, its credentials and its tools."""

    wallet: Json
    headers: dict[str, str]
    client: Client

    async def call(self, tool: str, **arguments: Any) -> Json:
        """The structured content of a result; the client has checked it against the tool's schema.

        A tool that requires an idempotency key gets a new one unless it is given.
        """
        if tool in CHANGING:
            arguments.setdefault("idempotency_key", new_key())
        result = await self.client.call_tool(tool, arguments)
        content: Json = result.structured_content
        assert result.is_error == (content["outcome"] not in {"done", "pending"}), content
        return content

    async def read(self, uri: str) -> str:
        return await read(self.client, uri)


async def read(client: Client, uri: str) -> str:
    """The text of a resource."""
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


async def headers_of(world: ServiceWorld, wallet: Json) -> dict[str, str]:
    """The credentials of an agent: its API key and its session token."""
    key = world.key("agent", wallet["wallet_id"])
    return {"Authorization": f"Bearer {key}", "Session-Token": await world.session(wallet)}


@contextlib.asynccontextmanager
async def connected(url: str, headers: dict[str, str]) -> AsyncIterator[Client]:
    """A client over HTTP."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def agent(world: ServiceWorld, **policy: Any) -> AsyncIterator[Agent]:
    """An agent with 100 USDC under a policy of its own, connected over HTTP."""
    attached = await world.policy(**policy)
    wallet = await world.wallet(attached["policy_id"])
    headers = await headers_of(world, wallet)
    async with served(world) as url, connected(url, headers) as client:
        yield Agent(wallet, headers, client)
