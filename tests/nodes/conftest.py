"""Two nodes of one service in one process, on one database and one chain."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.postgres import Cluster
from tests.support.service_world import ServiceWorld


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="first")
async def _first(
    cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceWorld]:
    """The node that was there first, so that it holds the leases."""
    url = cluster.url(cluster.database(template))
    async with ServiceWorld(tmp_path_factory.mktemp("service"), database_url=url, confirm_timeout=10.0) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="second")
async def _second(first: ServiceWorld) -> AsyncIterator[ServiceWorld]:
    """Another node."""
    async with first.node() as opened:
        yield opened
