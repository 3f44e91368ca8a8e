"""A world's service behind a real socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp

from app.api.http_protocol import protocol
from app.server.application import create_app
from app.server.serve import LOCALHOST
from tests.support.service_world import ServiceWorld

PATIENCE = 10.0
"""Seconds in which something that happens at once must have happened."""


@contextlib.asynccontextmanager
async def listening(world: ServiceWorld, seconds: float) -> AsyncIterator[int]:
    """The port at which the world's service listens meanwhile; requests must arrive within `seconds`."""
    settings = world.settings.model_copy(update={"request_timeout": seconds})
    earlier, world.service.settings = world.service.settings, settings
    try:
        with socket.create_server((LOCALHOST, 0)) as bound:
            async with _serving(create_app(settings, world._lifespan), bound, seconds):
                yield bound.getsockname()[1]
    finally:
        world.service.settings = earlier


@contextlib.asynccontextmanager
async def served(world: ServiceWorld) -> AsyncIterator[str]:
    """The address at which the world's service listens meanwhile, and which it names as its own."""
    with socket.create_server((LOCALHOST, 0)) as bound:
        base = f"http://{LOCALHOST}:{bound.getsockname()[1]}"
        settings = world.settings.model_copy(update={"public_url": base})
        async with _serving(create_app(settings, world._lifespan), bound, settings.request_timeout):
            yield base


@contextlib.asynccontextmanager
async def _serving(application: ASGIApp, bound: socket.socket, seconds: float) -> AsyncIterator[None]:
    config = uvicorn.Config(
        application,
        http=protocol(seconds),
        ws="none",
        log_config=None,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        async with asyncio.timeout(PATIENCE):
            while not server.started:  # noqa: ASYNC110 - uvicorn says so in no other way
                await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task
