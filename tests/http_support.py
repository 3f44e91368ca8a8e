"""A world's service behind a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import uvicorn

from app.main import create_app
from app.serve import protocol
from tests.world import World

PATIENCE = 10.0
"""Seconds in which something that happens at once must have happened."""


@contextlib.asynccontextmanager
async def listening(world: World, seconds: float) -> AsyncIterator[int]:
    """The port at which the world's service listens meanwhile; requests must arrive within `seconds`."""
    settings = world.settings.model_copy(update={"request_timeout": seconds})
    application = create_app(settings, world._lifespan)
    config = uvicorn.Config(
        application, port=0, http=protocol(seconds), log_config=None, timeout_graceful_shutdown=1, timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    earlier, world.service.settings = world.service.settings, settings
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(PATIENCE):
            while not server.started:  # noqa: ASYNC110 - uvicorn says so in no other way
                await asyncio.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task
        world.service.settings = earlier
