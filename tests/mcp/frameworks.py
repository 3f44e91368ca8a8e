"""Agent frameworks that retry tool calls, behind a proxy that drops the first answers and a service that is killed.

Run by hand: `python -m tests.mcp.frameworks PYTHON [COUNT [NAME...]]`. PYTHON is the interpreter of an environment with
`openai-agents langchain-mcp-adapters 'pydantic-ai-slim[mcp]'`; they are not in the project's extras because they need
the earlier major version of `mcp`.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.mcp.clients import new_key
from tests.mcp.framework_client import FRAMEWORKS
from tests.mcp.lossy import Shop, shop

_KILLS = 10
_CLIENT = Path(__file__).with_name("framework_client.py")


async def _calls(python: str, name: str, one: Shop, calls: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Let a framework make the calls, and return the outcome of each."""
    process = await asyncio.create_subprocess_exec(
        *(python, str(_CLIENT), name, f"{one.url}/mcp"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            "PATH": os.environ["PATH"],
            "AGENT_KEY": one.headers["Authorization"].removeprefix("Bearer "),
            "AGENT_TOKEN": one.headers["Session-Token"],
        },
    )
    said, _ = await process.communicate("".join(f"{json.dumps(call)}\n" for call in calls).encode())
    return [json.loads(line) for line in said.decode().splitlines()]


async def _run(python: str, count: int, *names: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with shop(Path(folder)) as one:
            for at, name in enumerate(names or FRAMEWORKS):
                share, kills = count // 3, _KILLS // 3 + (at < _KILLS % 3)
                before, keys = await one.received(), [new_key() for _ in range(share)]
                one.deadly |= {*keys[: min(kills, share)]}
                killed = one.deployment.kills
                found = await _calls(python, name, one, [one.order(key) for key in keys])
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
                pairs = await _calls(python, name, one, [one.order(new_key()) for _ in range(2 * share)])
                paid = len({each["tx_id"] for each in pairs})
                print(
                    f"{name}: {share} pairs, {paid} transactions; {await one.received() - before} payments", flush=True
                )
                before, order = await one.received(), one.order("")
                wrong = [{**order, "idempotency_key": "order-1"}, {"to": order["to"], "amount": order["amount"]}]
                refused = [(await _calls(python, name, one, [each]))[0] for each in wrong]
                print(f"{name}: without a key {await one.received() - before} payments: {refused[1]['message'][:200]}")


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60, *sys.argv[3:]))
