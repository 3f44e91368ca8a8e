"""Measures freezes while another organisation floods the service: their median and longest time, and the idle ones.

By hand: `python -m tests.bench.brake [--freezes N]`. `serve` runs in a separate process with its default limits, and
the flood in another one. 16 connections request every route in turn: the API, `/mcp`, the dashboard with live pages,
the documentation, `/metrics` and exports. They use 1 viewer key and then 200, and at last the key that freezes.
"""

import asyncio
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import click
import httpx

from tests.bench.serving import Served, serving
from tests.bench.tables import table
from tests.support.admin_sign_in import sign_in
from tests.support.processes import command

_CONNECTIONS = 16
_LIVE_PAGES = 8
_WARM_UP = 2.0
"""Seconds of the flood before the first freeze."""
_LISTS = ("wallets", "transactions", "events", "payments/a2a", "recipients", "approvals", "webhooks", "policies")
_LISTED = [f"/v1/{one}" + ("" if one == "policies" else "?limit=100") for one in _LISTS]
_SINGLE = ("/v1/organization", "/v1/alerts", "/v1/budgets", "/v1/policies/pol_moderate", "/v1/wallets/wal_none")
_PAGES = ("", "/feed", "/policies", "/alerts", "/developers", "/developers/exports", "/audit", "/vaults/new")
_OPEN = ("/docs/api", "/docs/guides/operations", "/docs/search?q=freeze", "/openapi.json", "/readyz", "/healthz")
_GET = [*_LISTED, *_SINGLE, "/metrics", *(f"/dashboard{one}" for one in _PAGES), *_OPEN]
_MCP = {"Accept": "application/json, text/event-stream"}


def _requests() -> list[tuple[str, str, Any]]:
    def mcp(method: str, **params: Any) -> tuple[str, str, Any]:
        return "POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    calls = [mcp("tools/list"), mcp("tools/call", name="list_transactions", arguments={})]
    return [*(("GET", path, None) for path in _GET), *calls, ("POST", "/v1/transactions/export", {"format": "csv"})]


async def _session(base: str, key: str) -> dict[str, str]:
    """Return the cookies of an admin key's session at the dashboard."""
    base = base.replace("127.0.0.1", "localhost")
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        await sign_in(client, key)
        return dict(client.cookies)


async def _flood(base: str, keys: Sequence[str], cookies: dict[str, str], answered: Any) -> None:
    turns, limits = itertools.cycle(keys), httpx.Limits(max_connections=_CONNECTIONS + _LIVE_PAGES)
    base = base.replace("127.0.0.1", "localhost")

    async def connection(client: httpx.AsyncClient, first: int) -> None:
        requests = _requests()
        for number in itertools.count(first):
            method, path, body = requests[number % len(requests)]
            headers = {"Authorization": f"Bearer {next(turns)}", **_MCP}
            await client.request(method, path, json=body, headers=headers)
            answered.value += 1

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=base, timeout=60, limits=limits, cookies=cookies)
        )
        for _ in range(_LIVE_PAGES):
            await stack.enter_async_context(client.stream("GET", "/dashboard/stream"))
        await asyncio.gather(*(connection(client, 3 * one) for one in range(_CONNECTIONS)))


def _run_flood(base: str, keys: Sequence[str], cookies: dict[str, str], answered: Any) -> None:
    asyncio.run(_flood(base, keys, cookies, answered))


@contextmanager
def _flooded(base: str, keys: Sequence[str], cookies: dict[str, str]) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    answered = context.Value("i", 0)
    process = context.Process(target=_run_flood, args=(base, keys, cookies, answered), daemon=True)
    process.start()
    try:
        while answered.value < _CONNECTIONS:
            assert process.is_alive(), "the flood has ended"
            time.sleep(0.05)
        time.sleep(_WARM_UP)
        yield answered
    finally:
        process.terminate()
        process.join()


def _other_organisation(served: Served) -> str:
    """Create a second organisation and return its admin key."""
    made = asyncio.run(command("orgs", "create", "other", "--data-dir", str(served.data)))
    return made.rsplit(" ", 1)[-1].strip()


def _freezes(client: httpx.Client, name: str, count: int) -> list[float]:
    """Create wallets, freeze each after a pause, and return the seconds of the freezes in ascending order."""
    times = []
    for number in range(count):
        body = {"agentId": f"{name} {number}", "label": name, "policyId": "pol_permissive"}
        made = client.post("/v1/wallets", json=body)
        while made.status_code == 429:
            time.sleep(1)
            made = client.post("/v1/wallets", json=body)
        path = f"/v1/wallets/{made.raise_for_status().json()['wallet_id']}"
        time.sleep(1)
        began = time.perf_counter()
        answer = client.patch(path, json={"status": "frozen"})
        times.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text
    return sorted(times)


@click.command()
@click.option("--freezes", default=30, show_default=True)
def main(freezes: int) -> None:
    """Measure freezes under a flood; see the module."""
    with serving(AGENT_VAULT_RATE_LIMIT="100") as served:
        admin = _other_organisation(served)
        cookies = asyncio.run(_session(served.api, admin))
        headers = {"Authorization": f"Bearer {served.key}"}
        with httpx.Client(base_url=served.api, headers=headers, timeout=60) as client:
            made = [_viewer(served.api, admin, number) for number in range(200)]
            idle = _freezes(client, "idle", freezes)
            rows = [["idle", "", *_cells(idle, idle)]]
            floods = {"1 key": made[:1], "200 keys": made, "the same key": [served.key]}
            for name, keys in floods.items():
                with _flooded(served.api, keys, cookies) as answered:
                    before, began = answered.value, time.perf_counter()
                    times = _freezes(client, name, freezes)
                    rate = (answered.value - before) / (time.perf_counter() - began)
                rows.append([name, f"{rate:.0f}", *_cells(times, idle)])
    print(table(("flood by", "answers a second", "median ms", "longest ms", "median / idle"), rows))


def _viewer(api: str, admin: str, number: int) -> str:
    while True:
        headers = {"Authorization": f"Bearer {admin}"}
        made = httpx.post(f"{api}/v1/keys", json={"role": "viewer", "name": f"viewer {number}"}, headers=headers)
        if made.status_code != 429:
            return str(made.raise_for_status().json()["key"])
        time.sleep(1)


def _cells(times: list[float], idle: list[float]) -> list[str]:
    median = statistics.median(times)
    return [f"{median * 1000:.0f}", f"{times[-1] * 1000:.0f}", f"{median / statistics.median(idle):.1f}"]


if __name__ == "__main__":
    main()
