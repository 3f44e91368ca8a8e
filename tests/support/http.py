"""Serves the service of a `ServiceWorld` on a real socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from app.api.http_protocol import protocol
from app.server.application import create_app
from app.server.data_folder import LOCALHOST
from tests.support.service_world import ServiceWorld

PATIENCE = 30.0
"""Seconds to wait for events that should happen immediately."""


@contextlib.asynccontextmanager
async def listening(world: ServiceWorld, seconds: float) -> AsyncIterator[int]:
    """Serve the world on the yielded port. Requests must arrive within `seconds`."""
    settings = world.settings.model_copy(update={"request_timeout": seconds})
    earlier, world.service.settings = world.service.settings, settings
    try:
        with socket.create_server((LOCALHOST, 0)) as bound:
            async with serving(create_app(settings, world.service), bound, seconds):
                yield bound.getsockname()[1]
    finally:
        world.service.settings = earlier


@contextlib.asynccontextmanager
async def served(world: ServiceWorld, port: int = 0) -> AsyncIterator[str]:
    """Serve the world under the yielded URL, which its setting `public_url` contains. `port` 0 means any free port."""
    with socket.create_server((LOCALHOST, port)) as bound:
        base = f"http://{LOCALHOST}:{bound.getsockname()[1]}"
        settings = world.settings.model_copy(update={"public_url": base})
        async with serving(create_app(settings, world.service), bound, settings.request_timeout):
            yield base


@contextlib.asynccontextmanager
async def serving(application: ASGIApp, bound: socket.socket, seconds: float) -> AsyncIterator[None]:
    """Serve an application on a listening socket. Requests must arrive within `seconds`."""
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


Handler = Callable[[Request], Awaitable[Response]]


@contextlib.asynccontextmanager
async def site(handler: Handler) -> AsyncIterator[str]:
    """Run a web server that answers every request with `handler`, and yield its address."""
    with socket.create_server((LOCALHOST, 0)) as bound:
        app = Starlette(routes=[Route("/{path:path}", handler, methods=["GET", "POST"])])
        async with serving(app, bound, 30):
            yield f"http://{LOCALHOST}:{bound.getsockname()[1]}"
