"""The indexer learns of new events from the validator's WebSocket, without polling."""

import asyncio
from pathlib import Path

import pytest

from app.chain.transport import HttpTransport
from indexer import Indexer
from tests.support.vm import CODEC
from tests.support.vm_world import VmWorld
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node

pytestmark = pytest.mark.validator

_NEVER = 3_600.0
_PATIENCE = 30.0


async def test_payment_is_stored_as_soon_as_the_node_announces_it(validator: Node, tmp_path: Path) -> None:
    # Given an indexer that never polls after it has caught up
    world = VmWorld(ValidatorVm(validator))
    vault, payee = world.wallet(), world.payee()
    transport = HttpTransport(validator.url)
    indexer = Indexer(
        transport=transport,
        codec=CODEC,
        db_path=tmp_path / "chain.db",
        poll_interval=_NEVER,
        check_interval=_NEVER,
        ws_urls=[validator.ws_url],
        orgs=[str(world.org)],
    )
    await indexer.catch_up()
    heard = asyncio.Event()
    indexer.subscribe(lambda _newest: heard.set())
    stored = indexer.store.count_events()
    await indexer.start()
    try:
        # When payments land until it is notified of one
        async with asyncio.timeout(_PATIENCE):
            while not heard.is_set():
                await asyncio.to_thread(world.vm.succeed, world.payment(vault, payee))
                await asyncio.sleep(0.1)
        # Then it has stored one
        assert indexer.store.count_events() > stored
    finally:
        await indexer.stop()
        await transport.aclose()
