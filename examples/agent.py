"""An agent that buys a URL through the vault's tools: `python agent.py URL [MOST]`."""

import asyncio
import json
import os
import sys
import uuid
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

TOOLS = os.environ.get("AGENT_VAULT_URL", "http://127.0.0.1:8402") + "/mcp"
CREDENTIALS = {
    "Authorization": f"Bearer {os.environ['AGENT_VAULT_API_KEY']}",
    "Session-Token": os.environ["AGENT_VAULT_SESSION_TOKEN"],
}


async def buy(vault: Client, url: str, most: str) -> dict[str, Any]:
    """Buy the URL for at most `most` USDC. Retries use the same key, so they never pay twice."""
    order = {"url": url, "max_amount": most, "idempotency_key": f"agent-{uuid.uuid4()}"}
    while True:
        result = (await vault.call_tool("fetch_paid_url", order)).structured_content or {}
        if result["outcome"] not in {"pending", "unknown", "unavailable"}:
            return result
        await asyncio.sleep(1)


async def main(url: str, most: str = "0.05") -> int:
    """Ask for the price, buy, and print the result."""
    async with (
        httpx2.AsyncClient(headers=CREDENTIALS, timeout=60) as http,
        Client(streamable_http_client(TOOLS, http_client=http)) as vault,
    ):
        quote = (await vault.call_tool("quote_paid_url", {"url": url})).structured_content or {}
        print(f"price: {(quote['data'] or {}).get('price')} USDC", file=sys.stderr)
        bought = await buy(vault, url, most)
    print(json.dumps(bought["data"] or {"refused": bought["message"], "rule": bought["refusal"]}))
    return 0 if bought["outcome"] == "done" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
