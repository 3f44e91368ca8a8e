"""An agent framework that pays by the tool `pay` and retries by its own means; run by `tests/mcp/frameworks.py`.

`python framework_client.py NAME URL`, in an environment with the framework. Standard input has the arguments of one
call a line, standard output the outcome of each. No model is asked: the framework makes the calls that one would make.
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

_HEADERS = {
    "Authorization": f"Bearer {os.environ.get('AGENT_KEY')}",
    "Session-Token": os.environ.get("AGENT_TOKEN", ""),
}
_SECONDS = 8
"""How long one try waits for its answer."""
_RUNS = 5
"""How often an application runs its agent again when the framework gives up."""

Arguments = dict[str, str]
Call = Callable[[Arguments], Awaitable[Any]]


@asynccontextmanager
async def openai_agents(url: str) -> AsyncIterator[Call]:
    """The OpenAI Agents SDK with `max_retry_attempts=2`."""
    mcp = importlib.import_module("agents.mcp")
    async with mcp.MCPServerStreamableHttp(
        params={"url": url, "headers": _HEADERS, "timeout": 30},
        client_session_timeout_seconds=_SECONDS,
        max_retry_attempts=2,
        retry_backoff_seconds_base=0.2,
    ) as server:

        async def call(arguments: Arguments) -> Any:
            return json.loads((await server.call_tool("pay", arguments)).content[0].text)

        yield call


@asynccontextmanager
async def langchain(url: str) -> AsyncIterator[Call]:
    """LangChain's adapters, with the retry of its runnables."""
    client = importlib.import_module("langchain_mcp_adapters.client")
    timeout = importlib.import_module("datetime").timedelta(seconds=_SECONDS)
    connection = {"transport": "streamable_http", "url": url, "headers": _HEADERS}
    connection["session_kwargs"] = {"read_timeout_seconds": timeout}
    tools = await client.MultiServerMCPClient({"vault": connection}, handle_tool_errors=False).get_tools()
    pay = next(tool for tool in tools if tool.name == "pay").with_retry(stop_after_attempt=4)

    async def call(arguments: Arguments) -> Any:
        return json.loads((await pay.ainvoke(arguments))[0]["text"])

    yield call


@asynccontextmanager
async def pydantic_ai(url: str) -> AsyncIterator[Call]:
    """Pydantic AI: what fails goes back to the model, which makes the same call again."""
    root, messages = importlib.import_module("pydantic_ai"), importlib.import_module("pydantic_ai.messages")
    function, mcp = importlib.import_module("pydantic_ai.models.function"), importlib.import_module("pydantic_ai.mcp")

    async def call(arguments: Arguments) -> Any:
        outcomes: list[Any] = []

        def model(history: list[Any], _info: Any) -> Any:
            for part in history[-1].parts:
                if part.part_kind == "tool-return":
                    outcomes.append(part.content if isinstance(part.content, dict) else json.loads(part.content))
                    return messages.ModelResponse(parts=[messages.TextPart("done")])
            return messages.ModelResponse(parts=[messages.ToolCallPart("pay", arguments)])

        tools = mcp.MCPToolset(url, headers=_HEADERS, read_timeout=_SECONDS, max_retries=3)
        await root.Agent(function.FunctionModel(model), toolsets=[tools]).run("Pay.")
        return outcomes[-1]

    yield call


FRAMEWORKS = {"openai-agents": openai_agents, "langchain": langchain, "pydantic-ai": pydantic_ai}


async def _once(name: str, url: str, arguments: Arguments) -> Any:
    """Call in a task of its own: some transports cancel the caller when a connection is reset."""
    async with FRAMEWORKS[name](url) as call:
        return await call(arguments)


async def _outcome(name: str, url: str, arguments: Arguments) -> Any:
    """Call until the framework returns an outcome: it retries itself, and the application runs it again."""
    error: BaseException | None = None
    for run in range(1, _RUNS + 1):
        task = asyncio.create_task(_once(name, url, arguments))
        await asyncio.wait([task])
        try:
            found = task.result()
        except (Exception, asyncio.CancelledError) as failed:  # noqa: BLE001 - whatever the framework raises
            error = failed
        else:
            kept = ("outcome", "message", "repeated", "first_called_at", "idempotency_key")
            return {"runs": run, "tx_id": (found["data"] or {}).get("tx_id"), **{key: found[key] for key in kept}}
    return {"runs": _RUNS, "outcome": None, "message": repr(error), "tx_id": None}


async def main(name: str, url: str) -> None:
    """Make the calls of standard input."""
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        print(json.dumps(await _outcome(name, url, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
