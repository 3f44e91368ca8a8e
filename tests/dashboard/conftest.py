"""A browser and the dashboard. All tests here share an event loop: starting a browser costs more than most of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.dashboard.browsing import Served
from tests.support.chromium import chromium
from tests.support.http import PATIENCE, served
from tests.support.service_world import ServiceWorld


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A Chromium for all tests of a process; each visit has a profile of its own."""
    expect.set_options(timeout=1_000 * PATIENCE)
    async with chromium() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    """A service shared by the tests of a module, in the browser's event loop."""
    async with ServiceWorld(tmp_path_factory.mktemp("service")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def own_world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    """A service for one test, which may stop it, break it or move its clock, in the browser's event loop."""
    async with ServiceWorld(tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(world: ServiceWorld, browser: Browser) -> AsyncIterator[Served]:
    """The world's dashboard on a real socket, and a browser."""
    async with served(world) as base:
        yield Served(world, browser, base.replace("127.0.0.1", "localhost") + "/dashboard")


@pytest_asyncio.fixture(loop_scope="session")
async def own_site(own_world: ServiceWorld, browser: Browser) -> AsyncIterator[Served]:
    """The same of a test's own world."""
    async with served(own_world) as base:
        yield Served(own_world, browser, base.replace("127.0.0.1", "localhost") + "/dashboard")
