"""`agent-vault serve`: the API and the background jobs in one process and, without a cluster, the embedded chain."""

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import uvicorn

from app.api.http_protocol import protocol
from app.chain.errors import ChainUnavailable, RpcError
from app.core import file_lock
from app.core.background import start_all
from app.core.paths import ConfigurationError, Paths
from app.core.settings import Settings
from app.dashboard.site import load_templates
from app.docs.search import search_fault
from app.localnet import Localnet
from app.organisations.roles import lost_roles
from app.people.relying_party import dashboard_url, relying_party
from app.server.application import create_app
from app.server.bootstrap import open_localnet, prepare, running
from app.server.data_folder import LOCALHOST, FolderChain, remember
from app.server.databases import require_roles
from app.server.gauges import Gauges
from app.server.quickstart import Quickstart, quickstart
from app.submission.context import Service

_MAX_FILES = 65_536


class _ApiServer(uvicorn.Server):
    """A server that reports when it listens. It does not raise the stop signal again, so that cleanup can run."""

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


def _allow_connections() -> None:
    """Raise the limit of open files to 65,536 or as far as allowed. The usual limit is 1,024.

    Each connection uses one open file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then finish the running requests and close all resources.

    Raises ConfigurationError if the settings do not fit the machine, the data or the chain, or if a service already
    runs on the data folder, KeyFileError if a key is missing or unusable, and DataDirInUseError if another process runs
    the folder's embedded chain.
    """
    require_roles(settings)
    relying_party(settings)
    _allow_connections()
    paths = prepare(settings)
    # Only one process may run the embedded chain, and only one may serve from a database in the folder.
    lock = file_lock.take(paths.serving, shared=settings.rpc_url is not None and settings.database_url is not None)
    if lock is None:
        raise ConfigurationError(
            f"a service runs on {paths.root} already; stop it first, or name another folder with --data-dir"
        )
    loading = asyncio.create_task(asyncio.to_thread(load_templates))
    async with AsyncExitStack() as stack:
        stack.enter_context(lock)
        sockets = _bind(settings.host, settings.port)
        for one in sockets:
            stack.enter_context(one)
        localnet = None
        if settings.rpc_url is None:
            localnet = await stack.enter_async_context(open_localnet(settings))
            await serve_chain(stack, localnet, settings, LOCALHOST, "--localnet-port")
        service = await stack.enter_async_context(running(settings, localnet))
        # Store the node's address for commands that are run without one.
        url = settings.rpc_url or f"http://{LOCALHOST}:{settings.localnet_port}"
        await service.db.write(lambda conn: remember(conn, FolderChain(service.identity, url)))
        tour = await quickstart(service, localnet, paths)
        for line in await _lost_roles(service):
            say(line)
        if fault := search_fault():
            say(f"The search in /docs is off, because SQLite lacks FTS5 here: {fault}.")
        await start_all(stack, Gauges(service, interval=settings.metrics_interval))
        config = uvicorn.Config(
            create_app(settings, service),
            http=protocol(settings.request_timeout),
            ws="none",
            log_config=None,
            access_log=False,
            # Longer than clients keep idle connections, so that no request is sent on a closing connection.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=settings.shutdown_timeout,
            server_header=False,
            # The application itself reads the headers that proxies add, and only those of the proxies in the settings.
            proxy_headers=False,
        )
        await loading
        # All objects made so far live until the process ends. Without freezing them, every full garbage collection
        # would delay responses by a tenth of a second.
        gc.collect()
        gc.freeze()
        server = _ApiServer(config, lambda: say(_banner(settings, paths, tour)))
        try:
            await server.serve(sockets)
        except OSError as error:
            # Another process bound the port at the same time and listened first.
            raise _cannot_listen(settings.host, settings.port, error) from None


async def _lost_roles(service: Service) -> list[str]:
    """Return a warning for each role with a different key on the chain than in the service, if the chain answers."""
    with contextlib.suppress(ChainUnavailable, RpcError):
        return [
            f"Warning: on the chain the {one.role} of {one.org.org_id} is {one.holder}, but this service has the key "
            f"of {one.key}. Requests that need this role get 503 until the service is started with the right key."
            for one in await lost_roles(service)
        ]
    return []


async def serve_chain(
    stack: AsyncExitStack, localnet: Localnet, settings: Settings, host: str, port_option: str
) -> None:
    """Serve the embedded chain until the stack closes.

    The API's limits on the time and bytes of a request also apply to requests to this chain.

    Raises ConfigurationError if a port is taken.
    """
    limits, port = protocol(settings.request_timeout), settings.localnet_port
    serving = localnet.serving(host, port, hosts=settings.chain_hosts(), http=limits)
    try:
        await stack.enter_async_context(serving)
    except OSError as error:
        pair = f"the embedded chain uses two ports, {port} and {port + 1}"
        raise ConfigurationError(f"{error.strerror}; {pair}: choose others with {port_option}") from None


def _bind(host: str, port: int) -> list[socket.socket]:
    """Reserve the port on all addresses of the host before anything else is started.

    No client can connect before the server listens. Raises ConfigurationError if the port cannot be reserved.
    """
    with contextlib.ExitStack() as on_error:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            bound = []
            for family, address in {(one[0], one[4]) for one in found}:
                # asyncio disables Nagle's algorithm only on sockets that name their protocol.
                one = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(address)
                bound.append(one)
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        on_error.pop_all()
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigurationError:
    remedy = "choose another with --port" if error.errno == errno.EADDRINUSE else "change --host or --port"
    return ConfigurationError(f"cannot listen on port {port} of {host}: {error.strerror}; {remedy}")


def _banner(settings: Settings, paths: Paths, tour: Quickstart | None) -> str:
    base = settings.base_url()
    if not settings.has_role("api"):
        return f"Agent Vault runs the roles {settings.roles}  (monitoring: {base}/readyz)"
    lines = [f"Agent Vault serves on {base}  (documentation: {base}/docs)", f"Dashboard: {dashboard_url(settings)}"]
    if settings.rpc_url is None:
        port = settings.localnet_port
        lines.append(f"Embedded chain on http://{LOCALHOST}:{port} and ws://{LOCALHOST}:{port + 1}")
    else:
        lines.append(f"Chain: {', '.join(str(urlsplit(one).hostname) for one in settings.rpc_urls())}")
    if tour is not None:
        if tour.new_key is not None:
            # A log or a file that keeps the output must not keep the key.
            once, key = (", shown only once and", f": {tour.new_key}") if sys.stdout.isatty() else (",", "")
            lines.append(f"Admin API key{once} stored in {paths.admin_key}{key}")
        lines += ["Make a payment:", tour.curl(base, paths)]
    return "\n".join(lines)
