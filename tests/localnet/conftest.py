"""A chain in memory whose clock the test controls."""

from collections.abc import AsyncIterator

import pytest

from app.localnet import Localnet
from tests.support.localnet import Client, ManualClock, client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def rpc(clock: ManualClock) -> AsyncIterator[Client]:
    async with Localnet.open(None, {}, clock) as localnet:
        yield client(localnet)
