"""Fixtures for tests through the HTTP interface: a whole service on a chain of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.world import World


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="run the long figures: 2,000 sequences of up to 200 payments, 50 kills of the service",
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A service that the tests of a module share; each makes wallets of its own."""
    async with World(tmp_path_factory.mktemp("service")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def own_world(tmp_path: Path) -> AsyncIterator[World]:
    """A service for one test that stops it, breaks it or moves its clock."""
    async with World(tmp_path) as opened:
        yield opened
