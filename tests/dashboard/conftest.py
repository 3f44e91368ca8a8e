"""Debian's Chromium. Without it, its tests are skipped, or fail if CI=true."""

import os
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.dashboard.browsing import Served
from tests.support.http import PATIENCE, served
from tests.support.needs import skip_or_fail
from tests.support.service_world import ServiceWorld

CHROMIUM = "/usr/bin/chromium"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium for the tests of a module."""
    if not os.path.exists(CHROMIUM):  # noqa: ASYNC240, PTH110 - once, before anything runs
        skip_or_fail(f"there is no {CHROMIUM}: install Debian's package chromium")
    expect.set_options(timeout=1_000 * PATIENCE)
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(world: ServiceWorld, browser: Browser) -> AsyncIterator[Served]:
    """The world's dashboard on a real socket, and a browser."""
    async with served(world) as base:
        yield Served(world, browser, base.replace("127.0.0.1", "localhost") + "/dashboard")


@pytest_asyncio.fixture(loop_scope="module")
async def own_site(own_world: ServiceWorld, browser: Browser) -> AsyncIterator[Served]:
    """The same of a test's own world."""
    async with served(own_world) as base:
        yield Served(own_world, browser, base.replace("127.0.0.1", "localhost") + "/dashboard")
