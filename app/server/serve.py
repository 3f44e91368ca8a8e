"""`agent-vault serve`: the embedded chain, the indexer, the projector and the API in one process."""

import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import uvicorn

from app.api.http_protocol import protocol
from app.core.paths import Paths
from app.core.settings import Settings
from app.server.application import create_app
from app.server.bootstrap import open_localnet, prepare, running
from app.server.quickstart import Quickstart, quickstart

#: The embedded chain has a faucet and no passwords, so it never listens for other machines.
LOCALHOST = "127.0.0.1"


class _ApiServer(uvicorn.Server):
    """A server that reports when it listens, and does not raise the signal again after it, so that cleanup can run."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        earlier = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._listening()


async def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then finish the running requests and close what was opened.

    Raises ConfigurationError, KeyFileError, DataDirInUseError and OSError (a port is taken).
    """
    paths = prepare(settings)
    async with AsyncExitStack() as stack:
        localnet = None
        if settings.rpc_url is None:
            localnet = await stack.enter_async_context(open_localnet(settings))
            await stack.enter_async_context(localnet.serving(LOCALHOST, settings.localnet_port))
        service = await stack.enter_async_context(running(settings, localnet))
        tour = await quickstart(service, localnet, paths)
        config = uvicorn.Config(
            create_app(settings, service),
            host=settings.host,
            port=settings.port,
            http=protocol(settings.request_timeout),
            ws="none",
            log_config=None,
            access_log=False,
            # Longer than clients keep idle connections, so that none sends into one that is closing.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=settings.shutdown_timeout,
            server_header=False,
            # The application does that itself, for the proxies in the settings only.
            proxy_headers=False,
        )
        # All objects made so far live as long as the process. Without freezing them, every full garbage collection
        # would delay answers by a tenth of a second.
        gc.collect()
        gc.freeze()
        server = _ApiServer(config, lambda: say(_banner(settings, paths, tour)))
        await server.serve()
        if not server.started:
            raise OSError(f"cannot listen on {settings.host}:{settings.port}")


def _banner(settings: Settings, paths: Paths, tour: Quickstart | None) -> str:
    base = settings.base_url()
    lines = [f"Agent Vault serves on {base}  (documentation: {base}/docs)"]
    if settings.rpc_url is None:
        port = settings.localnet_port
        lines.append(f"Embedded chain on http://{LOCALHOST}:{port} and ws://{LOCALHOST}:{port + 1}")
    else:
        lines.append(f"Chain: {urlsplit(settings.rpc_url).hostname}")
    if tour is not None:
        if tour.new_key is not None:
            lines.append(f"Admin API key, shown only once and stored in {paths.admin_key}: {tour.new_key}")
        lines += ["Make a payment:", tour.curl(base, paths)]
    return "\n".join(lines)
