"""An agent framework with a scripted model that pays by the tool `pay`; run by `tests/mcp/frameworks.py`.

`python framework_client.py NAME [COMMAND...]`, in an environment with the framework. Without a command the framework
connects over HTTP, otherwise it starts the command and uses standard input and output. Standard input has the arguments
of one call a line, standard output the outcome of each. The scripted model makes the calls that a real one would make.
"""

import asyncio
import importlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.scripted_models import Script, langchain_model, openai_model, pydantic_model

_SETTINGS = {name: os.environ[name] for name in os.environ if name == "PATH" or name.startswith("AGENT_VAULT_")}
"""The environment of the command."""
_URL = f"{_SETTINGS.get('AGENT_VAULT_URL')}/mcp"
_HEADERS = {
    "Authorization": f"Bearer {_SETTINGS.get('AGENT_VAULT_API_KEY')}",
    "Session-Token": _SETTINGS.get("AGENT_VAULT_SESSION_TOKEN", ""),
}
_SECONDS = 120 if sys.argv[2:] else 8
"""How long one try waits for its response. A command loads the whole service before its first one."""
_RUNS = 5
"""How often an application runs its agent again when the framework gives up."""

Arguments = dict[str, str]
Call = Callable[[Arguments], Awaitable[Any]]


def _once(arguments: Arguments) -> Script:
    return lambda results: None if results else ("pay", arguments)


def _read(result: Any) -> Any:
    """Return the JSON document of a tool's result, in the form of any framework."""
    if isinstance(result, dict):
        return result
    return json.loads(result if isinstance(result, str) else result[0]["text"])


def _process(command: list[str]) -> dict[str, Any]:
    return {"command": command[0], "args": command[1:], "env": _SETTINGS}


@asynccontextmanager
async def mcp(command: list[str]) -> AsyncIterator[Call]:
    """The official client in Python, of its second major version."""
    root, stdio = importlib.import_module("mcp"), importlib.import_module("mcp.client.stdio")
    http, httpx2 = importlib.import_module("mcp.client.streamable_http"), importlib.import_module("httpx2")
    async with httpx2.AsyncClient(headers=_HEADERS, timeout=_SECONDS) as sender:
        if command:
            transport = stdio.stdio_client(root.StdioServerParameters(**_process(command)))
        else:
            transport = http.streamable_http_client(_URL, http_client=sender)
        async with root.Client(transport) as client:

            async def call(arguments: Arguments) -> Any:
                return (await client.call_tool("pay", arguments)).structured_content

            yield call


@asynccontextmanager
async def fastmcp(command: list[str]) -> AsyncIterator[Call]:
    """The client of FastMCP."""
    async with importlib.import_module("fastmcp").Client(_fastmcp_transport(command), timeout=_SECONDS) as client:

        async def call(arguments: Arguments) -> Any:
            return (await client.call_tool("pay", arguments, raise_on_error=False)).structured_content

        yield call


def _fastmcp_transport(command: list[str]) -> Any:
    transports = importlib.import_module("fastmcp.client.transports")
    if command:
        return transports.StdioTransport(**_process(command))
    return transports.StreamableHttpTransport(_URL, headers=_HEADERS)


@asynccontextmanager
async def openai_agents(command: list[str]) -> AsyncIterator[Call]:
    """The OpenAI Agents SDK with `max_retry_attempts=2`, and all tools converted to strict mode.

    In strict mode a model names every argument, and gives null for an absent one.
    """
    agents, mcp = importlib.import_module("agents"), importlib.import_module("agents.mcp")
    options: dict[str, Any] = {"client_session_timeout_seconds": _SECONDS, "max_retry_attempts": 2}
    options |= {"retry_backoff_seconds_base": 0.2, "failure_error_function": None}
    server = (
        mcp.MCPServerStdio(params=_process(command), **options)
        if command
        else mcp.MCPServerStreamableHttp(params={"url": _URL, "headers": _HEADERS, "timeout": 30}, **options)
    )
    async with server:

        async def call(arguments: Arguments) -> Any:
            strict, results = {"convert_schemas_to_strict": True}, list[Any]()
            model = openai_model(_once(arguments), results)
            agent = agents.Agent("payer", model=model, mcp_servers=[server], mcp_config=strict)
            await agents.Runner.run(agent, "Pay.")
            return _read(results[-1])

        yield call


@asynccontextmanager
async def langchain(command: list[str]) -> AsyncIterator[Call]:
    """LangChain's agent with the adapters, which use the first major version of the official client."""
    client, agents = (
        importlib.import_module("langchain_mcp_adapters.client"),
        importlib.import_module("langchain.agents"),
    )
    timeout = importlib.import_module("datetime").timedelta(seconds=_SECONDS)

    connection: dict[str, Any] = (
        {"transport": "stdio", **_process(command)}
        if command
        else {"transport": "streamable_http", "url": _URL, "headers": _HEADERS}
    )
    connection["session_kwargs"] = {"read_timeout_seconds": timeout}
    async with client.MultiServerMCPClient({"vault": connection}).session("vault") as session:
        tools = await importlib.import_module("langchain_mcp_adapters.tools").load_mcp_tools(session)

        async def call(arguments: Arguments) -> Any:
            results = list[Any]()
            agent = agents.create_agent(langchain_model(_once(arguments), results), tools)
            await agent.ainvoke({"messages": [("user", "Pay.")]})
            [result] = results
            return _read(result)

        yield call


@asynccontextmanager
async def pydantic_ai(command: list[str]) -> AsyncIterator[Call]:
    """Pydantic AI: what fails goes back to the model, which makes the same call again."""
    root, toolsets = importlib.import_module("pydantic_ai"), importlib.import_module("pydantic_ai.mcp")
    async with toolsets.MCPToolset(
        _fastmcp_transport(command), init_timeout=30, read_timeout=_SECONDS, max_retries=3
    ) as tools:

        async def call(arguments: Arguments) -> Any:
            results = list[Any]()
            await root.Agent(pydantic_model(_once(arguments), results), toolsets=[tools]).run("Pay.")
            return _read(results[-1])

        yield call


FRAMEWORKS = {
    "mcp": mcp,
    "fastmcp": fastmcp,
    "openai-agents": openai_agents,
    "langchain": langchain,
    "pydantic-ai": pydantic_ai,
}


async def _connected(name: str, arguments: Arguments) -> Any:
    """Call in a task of its own: some transports cancel the caller when a connection is reset."""
    async with FRAMEWORKS[name]([]) as call:
        return await call(arguments)


def _told(found: Any, runs: int) -> dict[str, Any]:
    kept = ("outcome", "message", "refusal", "repeated", "first_called_at", "idempotency_key")
    return {"runs": runs, "tx_id": (found["data"] or {}).get("tx_id"), **{key: found[key] for key in kept}}


async def _outcome(name: str, arguments: Arguments) -> Any:
    """Call until the framework returns an outcome: it retries itself, and the application runs it again."""
    error: BaseException | None = None
    for run in range(1, _RUNS + 1):
        task = asyncio.create_task(_connected(name, arguments))
        await asyncio.wait([task])
        try:
            found = task.result()
        except (Exception, asyncio.CancelledError) as failed:  # noqa: BLE001 - whatever the framework raises
            error = failed
        else:
            return _told(found, run)
    return {"runs": _RUNS, "outcome": None, "message": repr(error), "tx_id": None}


async def main(name: str, *command: str) -> None:
    """Make the calls of standard input: over HTTP with a connection for each, otherwise with one process for all."""
    logging.disable(logging.CRITICAL)
    calls = [json.loads(line) for line in sys.stdin]
    if command:
        async with FRAMEWORKS[name](list(command)) as call:
            for arguments in calls:
                print(json.dumps(_told(await call(arguments), 1)), flush=True)
    else:
        for arguments in calls:
            print(json.dumps(await _outcome(name, arguments)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
