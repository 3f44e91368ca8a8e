"""Clients and agent frameworks in processes of their own, with a scripted model that pays.

Run by hand, frameworks retry behind a proxy that drops the first answers, of a service that is killed:
`python -m tests.mcp.frameworks [COUNT [NAME...]]`.
"""

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.mcp.clients import new_key
from tests.mcp.lossy import shop
from tests.support.environments import environment
from tests.support.node import x402_packages
from tests.support.processes import output
from tests.support.warm import programs

_KILLS = 10
_ROOT = Path(__file__).resolve().parents[2]
_CLIENT = Path(__file__).with_name("framework_client.py")
_REQUIREMENTS = Path(__file__).with_name("requirements")
#: The packages of frameworks, which conflict with each other's and the project's: some need the earlier major version
#: of `mcp`.
_PACKAGES = {"fastmcp": "mcp2", "openai-agents": "mcp2", "pydantic-ai": "mcp2", "langchain": "mcp1"}
_RETRYING = ("openai-agents", "langchain", "pydantic-ai")
CLIENTS = ("mcp", *_PACKAGES, "sdk", "client", "inspector")
_PATH = {"PATH": os.environ["PATH"]}


def _program(name: str) -> tuple[str | Path, ...]:
    """Return the command that runs a client. Installs its packages if they are missing."""
    if name in {"sdk", "client"}:
        return ("node", x402_packages().with_name("mcp.mjs"), name)
    return (python_of(name) if name in _PACKAGES else sys.executable, _CLIENT, name)


def python_of(framework: str) -> Path:
    """Return the Python of an environment with a framework. Installs its packages if they are missing."""
    lock = _REQUIREMENTS / f"{_PACKAGES[framework]}.lock"
    content = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    return environment(f"{lock.stem}-{content}", "--require-hashes", "--no-deps", "-r", lock)


async def inspect(url: str, headers: dict[str, str], *method: str, stdio: bool = False) -> Any:
    """Return what the inspector's command line prints about the server."""
    settings = _settings(url, headers)
    if stdio:
        given = [part for name, value in settings.items() for part in ("-e", f"{name}={value}")]
        server = (*given, "--cli", *_server())
    else:
        given = [part for name, value in headers.items() for part in ("--header", f"{name}: {value}")]
        server = ("--cli", f"{url}/mcp", "--transport", "http")
        method = (*method, *given)
    return json.loads(await output(x402_packages() / ".bin/mcp-inspector", *server, *method, env=_PATH))


def _server() -> tuple[str, str]:
    return (str(programs() / "agent-vault"), "mcp")


def _settings(url: str, headers: dict[str, str]) -> dict[str, str]:
    """Return the environment variables of `agent-vault mcp`."""
    return {
        "AGENT_VAULT_URL": url,
        "AGENT_VAULT_API_KEY": headers["Authorization"].removeprefix("Bearer "),
        "AGENT_VAULT_SESSION_TOKEN": headers["Session-Token"],
    }


async def outcomes(
    name: str, url: str, headers: dict[str, str], calls: list[dict[str, str]], *, stdio: bool = False
) -> list[dict[str, Any]]:
    """Let a client make these calls of the tool `pay`, and return the outcome of each."""
    if name == "inspector":
        found = []
        for call in calls:
            arguments = [part for key, value in call.items() for part in ("--tool-arg", f"{key}={json.dumps(value)}")]
            pay = ("--method", "tools/call", "--tool-name", "pay", *arguments)
            found.append((await inspect(url, headers, *pay, stdio=stdio))["structuredContent"])
        return found
    said = "".join(f"{json.dumps(call)}\n" for call in calls)
    settings = {**_PATH, "PYTHONPATH": str(_ROOT), **_settings(url, headers)}
    lines = await output(*_program(name), *(_server() if stdio else ()), said=said, env=settings)
    return [json.loads(line) for line in lines.splitlines()]


async def _run(count: int, *names: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with shop(Path(folder)) as one:
            for at, name in enumerate(names or _RETRYING):
                share, kills = count // 3, _KILLS // 3 + (at < _KILLS % 3)
                before, keys = await one.received(), [new_key() for _ in range(share)]
                one.deadly |= {*keys[: min(kills, share)]}
                killed = one.deployment.kills
                found = await outcomes(name, one.url, one.headers, [one.order(key) for key in keys])
                done = [each for each in found if each["outcome"] == "done"]
                transactions = len({each["tx_id"] for each in done})
                print(
                    f"{name}: {share} intended, {len(done)} done in {transactions} transactions, "
                    f"{sum(each['repeated'] for each in done)} repeated, "
                    f"{sum(one.arrivals[key] for key in keys)} calls, {one.deployment.kills - killed} kills, "
                    f"{max(each['runs'] for each in found)} runs at most; {await one.received() - before} payments",
                    flush=True,
                )
                print("\n".join(str(each) for each in found if each["outcome"] != "done"), flush=True)
                before = await one.received()
                pairs = await outcomes(name, one.url, one.headers, [one.order(new_key()) for _ in range(2 * share)])
                paid = len({each["tx_id"] for each in pairs})
                print(
                    f"{name}: {share} pairs, {paid} transactions; {await one.received() - before} payments", flush=True
                )
                before, order = await one.received(), one.order("")
                wrong = [{**order, "idempotency_key": "order-1"}, {"to": order["to"], "amount": order["amount"]}]
                refused = [(await outcomes(name, one.url, one.headers, [each]))[0] for each in wrong]
                print(f"{name}: without a key {await one.received() - before} payments: {refused[1]['message'][:200]}")


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]) if len(sys.argv) > 1 else 60, *sys.argv[2:]))
