"""Compares the service's processor time of a payment over `/mcp` with one over HTTP.

By hand: `python -m tests.bench.mcp [--count N] [--rounds N]`. The service runs in a separate process with the embedded
chain, and one agent pays one payment after the other. Rounds of the ways alternate, so that a change in the machine's
load affects all of them alike. Processor time covers the whole service process, with the chain and the indexer.
"""

import asyncio
import statistics
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping

import click
import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.bench.clients import made_agent
from tests.bench.serving import Served, serving
from tests.bench.tables import table

_AMOUNT = "0.001"
_ACCEPT = "application/json, text/event-stream"
Pay = Callable[[], Awaitable[object]]


def _ways(http: httpx.AsyncClient, client: Client, payer: str, payee: str) -> Mapping[str, Pay]:
    """Return the ways to pay, by name."""

    def arguments() -> dict[str, str]:
        return {"to": payee, "amount": _AMOUNT, "idempotency_key": uuid.uuid4().hex}

    async def over_http() -> None:
        body = {**arguments(), "wallet_id": payer, "currency": "USDC"}
        found = (await http.post("/v1/payments", json=body)).raise_for_status().json()
        assert found["status"] == "confirmed", found

    async def by_request(**more: str) -> None:
        params = {"name": "pay", "arguments": {**arguments(), **more}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        found = (await http.post("/mcp", json=call, headers={"Accept": _ACCEPT})).raise_for_status().json()
        assert found["result"]["structuredContent"]["outcome"] == "done", found

    async def by_client() -> None:
        found = (await client.call_tool("pay", arguments())).structured_content
        assert found["outcome"] == "done", found

    return {
        "HTTP": over_http,
        "MCP, JSON-RPC request": by_request,
        "MCP, JSON-RPC request with wallet_id": lambda: by_request(wallet_id=payer),
        "MCP, official client": by_client,
    }


async def run(served: Served, count: int, rounds: int) -> None:
    """Measure and print the table."""
    admin = {"Authorization": f"Bearer {served.key}"}
    async with httpx.AsyncClient(base_url=served.api, headers=admin, timeout=60) as client:
        headers, payer, payee = await made_agent(client)
    async with (
        httpx.AsyncClient(base_url=served.api, headers=headers, timeout=60) as http,
        httpx2.AsyncClient(headers=headers, timeout=60) as transport,
        Client(streamable_http_client(f"{served.api}/mcp", http_client=transport)) as official,
    ):
        ways = _ways(http, official, payer, payee["wallet_id"])
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, pay in ways.items():
                before = served.cpu_seconds()
                for _ in range(count):
                    await pay()
                if number:  # The first round only warms up.
                    spent[name].append((served.cpu_seconds() - before) / count * 1000)
    least = statistics.median(spent["HTTP"])
    rows = [
        [name, f"{statistics.median(found):.1f}", f"{statistics.median(found) / least:.2f}", str(count * rounds)]
        for name, found in spent.items()
    ]
    sys.stdout.write(table(["", "ms per payment", "ratio", "payments"], rows))


@click.command()
@click.option("--count", default=40, show_default=True, help="Payments of each way in a round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds.")
def main(count: int, rounds: int) -> None:
    """Measure and print."""
    with serving() as served:
        asyncio.run(run(served, count, rounds))


if __name__ == "__main__":
    main()
