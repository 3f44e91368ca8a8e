"""A world's service on a real socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp

from app.api.http_protocol import protocol
from app.server._data_folder import LOCALHOST
from app.server.application import create_app
from tests.support.service_world import ServiceWorld

PATIENCE = 10.0
"""Seconds to wait for something that should happen at once."""


@contextlib.asynccontextmanager
async def listening(world: ServiceWorld, seconds: float) -> AsyncIterator[int]:
    """Serve the world on the port that this yields; requests must arrive within `seconds`."""
    settings = world.settings.model_copy(update={"request_timeout": seconds})
    earlier, world.service.settings = world.service.settings, settings
    try:
        with socket.create_server((LOCALHOST, 0)) as bound:
            async with _serving(create_app(settings, world.service), bound, seconds):
                yield bound.getsockname()[1]
    finally:
        world.service.settings = earlier


@contextlib.asynccontextmanager
async def served(world: ServiceWorld) -> AsyncIterator[str]:
    """Serve the world under the URL that this yields, which it also names as its own."""
    with socket.create_server((LOCALHOST, 0)) as bound:
        base = f"http://{LOCALHOST}:{bound.getsockname()[1]}"
        settings = world.settings.model_copy(update={"public_url": base})
        async with _serving(create_app(settings, world.service), bound, settings.request_timeout):
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
            while not server.started:  # noqa: ASYNC110 - uvicorn has no other signal
                await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task
