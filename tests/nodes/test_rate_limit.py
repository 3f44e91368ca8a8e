"""Three nodes share the bucket of a key."""

import asyncio
from typing import Any

import httpx
import pytest

from app.access.rate_limit import Peers
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_BURST, _PATIENCE = 30, 60.0


async def test_key_has_one_bucket_on_three_nodes(first: ServiceWorld) -> None:
    key = first.key("viewer")
    limit = {"rate_limit": 1, "rate_limit_burst": _BURST}
    async with first.node(**limit) as second, first.node(**limit) as third, first.node(**limit) as fourth:
        nodes = (second, third, fourth)
        async with asyncio.timeout(_PATIENCE):
            while any(node.service.part(Peers).count != len(nodes) + 1 for node in nodes):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for node in nodes:
            _stop_clock(node)

        answers = [await node.call("GET", "/v1/wallets/wal_none", key=key) for node in nodes for _ in range(_BURST)]

    passed = [one for one in answers if one.status_code == 404]
    # The first node has a share too.
    assert len(passed) == len(nodes) * (_BURST // (len(nodes) + 1))
    for one in answers:
        if one not in passed:
            error_of(one, 429, "rate_limited")


def _stop_clock(node: ServiceWorld) -> None:
    """Let the buckets of a node not refill."""
    transport: Any = node.client._transport
    assert isinstance(transport, httpx.ASGITransport)
    app: Any = transport.app
    while not hasattr(app, "state"):
        app = app.app
    app.state.rate_limits._requests._clock = lambda: 0.0
