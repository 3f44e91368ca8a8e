"""Measures the dashboard: the fleet page with many vaults, open pages in which nothing happens, and live events.

By hand: `python -m tests.bench.dashboard [--vaults N] [--pages N] [--seconds N]`; needs Debian's Chromium. `serve` runs
in a separate process, with the embedded chain in a temporary folder. The vaults are copies of one in its database.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import click
import httpx
from playwright.async_api import BrowserContext
from sqlalchemy import create_engine

from tests.bench.load import percentile
from tests.bench.serving import Served, serving
from tests.bench.tables import table
from tests.dashboard.many import multiply
from tests.support.admin_sign_in import sign_in
from tests.support.chromium import chromium

_REQUESTS = 150
_QUERIES = ("", "?sort=spent&dir=desc", "?q=copy+99", "?sort=balance&dir=asc&page=300", "?tag=many")
_EVENTS = 20
_TABS = 8
_FREEZES = 10
_WARM_UP = 2.0
"""Seconds after which a service that has just been asked is idle again."""


async def _signed_in(served: Served) -> httpx.AsyncClient:
    """Return an admin's browser."""
    base = served.api.replace("127.0.0.1", "localhost")
    client = httpx.AsyncClient(base_url=base, timeout=60, limits=httpx.Limits(max_connections=None))
    await sign_in(client, served.key)
    return client


async def _fleet(served: Served, client: httpx.AsyncClient) -> list[list[str]]:
    """Return a row for each query: the time to the first byte, the size, and the processor time of a page."""
    rows = []
    for query in _QUERIES:
        await client.get(f"/dashboard{query}")
        times, size, used = [], 0, served.cpu_seconds()
        for _ in range(_REQUESTS):
            began = time.perf_counter()
            async with client.stream("GET", f"/dashboard{query}") as answer:
                times.append(time.perf_counter() - began)
                size = len(await answer.aread())
        cpu = (served.cpu_seconds() - used) / _REQUESTS
        numbers = (percentile(sorted(times), 50), percentile(sorted(times), 99), size / 1000, cpu * 1000)
        rows.append([f"/dashboard{query}", *(f"{one:.0f}" for one in numbers)])
    return rows


async def _idle(served: Served, client: httpx.AsyncClient, pages: int, seconds: float) -> Sequence[float]:
    """Return the share of a core that the service uses without open pages, and with them."""
    async with AsyncExitStack() as stack:
        without = await _share(served, seconds)
        for _ in range(pages):
            answer = await stack.enter_async_context(client.stream("GET", "/dashboard/stream"))
            assert answer.status_code == 200
        return without, await _share(served, seconds)


async def _share(served: Served, seconds: float) -> float:
    await asyncio.sleep(_WARM_UP)
    began, used = time.perf_counter(), served.cpu_seconds()
    await asyncio.sleep(seconds)
    return (served.cpu_seconds() - used) / (time.perf_counter() - began)


@asynccontextmanager
async def _browser(client: httpx.AsyncClient) -> AsyncIterator[BrowserContext]:
    """Chromium with the client's session."""
    base = str(client.base_url)
    async with chromium() as browser:
        context = await browser.new_context(base_url=base)
        await context.add_cookies([{"name": name, "value": text, "url": base} for name, text in client.cookies.items()])
        yield context


async def _live(served: Served, client: httpx.AsyncClient) -> list[float]:
    """Return the seconds from a change's answer to its event in an open page, in ascending order."""
    times = []
    async with _browser(client) as browser:
        page = await browser.new_page()
        await page.goto("/dashboard/feed")
        for number in range(_EVENTS):
            await _create(served, client, f"Live {number}.")
            began = time.perf_counter()
            # Looks at every frame; a locator looks twice a second after a while.
            await page.wait_for_function("text => document.body.innerText.includes(text)", arg=f"Live {number}.")
            times.append(time.perf_counter() - began)
    return sorted(times)


async def _freezes(served: Served, client: httpx.AsyncClient) -> list[float]:
    """Return the seconds from a click in the last of eight tabs to the frozen vault's page, in ascending order."""
    times = []
    async with _browser(client) as browser:
        tabs = [await browser.new_page() for _ in range(_TABS)]
        for tab in tabs[:-1]:
            await tab.goto("/dashboard/feed")
        for number in range(_FREEZES):
            await tabs[-1].goto(f"/dashboard/vaults/{await _create(served, client, f'Runaway {number}.')}")
            began = time.perf_counter()
            await tabs[-1].get_by_role("button", name="Freeze", exact=True).click()
            # The page answers once the chain has confirmed it.
            await tabs[-1].get_by_text("Frozen. The chain refuses the vault's payments").wait_for()
            times.append(time.perf_counter() - began)
    return sorted(times)


async def _create(served: Served, client: httpx.AsyncClient, label: str) -> str:
    body = {"agentId": label, "label": label, "policyId": "pol_permissive"}
    answer = await client.post("/v1/wallets", json=body, headers={"authorization": f"Bearer {served.key}"})
    return str(answer.raise_for_status().json()["wallet_id"])


async def _run(vaults: int, pages: int, seconds: float) -> None:
    with serving() as served:
        client = await _signed_in(served)
        print()
        for what, times in (
            ("from a change's answer to its event in an open page", await _live(served, client)),
            (f"from a click in the last of {_TABS} tabs to the frozen vault", await _freezes(served, client)),
        ):
            print(f"{percentile(times, 50):.0f} ms, at most {times[-1] * 1000:.0f} ms, {what}")
        without, with_pages = await _idle(served, client, pages, seconds)
        print(f"Nothing happens: {without:.1%} of a core without a page, {with_pages:.1%} with {pages} open pages.\n")
        headers = {"authorization": f"Bearer {served.key}"}
        wallets = (await client.get("/v1/wallets", headers=headers)).json()["data"]
        engine = create_engine(f"sqlite:///{served.data}/agent-vault.db")
        with engine.begin() as connection:
            multiply(connection, wallets[-1]["wallet_id"], vaults)
        heads = (f"first byte with {vaults:,} vaults", "p50 ms", "p99 ms", "kB", "CPU ms of serve")
        print(table(heads, await _fleet(served, client)))


@click.command()
@click.option("--vaults", default=10_000, show_default=True)
@click.option("--pages", default=200, show_default=True)
@click.option("--seconds", default=20.0, show_default=True)
def main(vaults: int, pages: int, seconds: float) -> None:
    """Measure the dashboard; see the module."""
    asyncio.run(_run(vaults, pages, seconds))


if __name__ == "__main__":
    main()
