"""Processes that run next to a service and use its data, such as a keeper."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from app.core import file_lock
from app.core.paths import ConfigurationError, Paths
from app.core.settings import Settings
from app.exports.exporter import LOCK
from app.server.bootstrap import prepare, running
from app.submission.context import Service

Result = TypeVar("Result")


@asynccontextmanager
async def running_sidecar(settings: Settings) -> AsyncIterator[Service]:
    """Run parts of a service in this process, next to the service itself, within this context.

    Raises ConfigurationError while `rebuild` or `db copy` uses the data alone, and the errors of ``running``.
    """
    lock = file_lock.take(prepare(settings).sidecars, shared=True)
    if lock is None:
        raise ConfigurationError(f"`rebuild` or `db copy` is running on {settings.data_dir}; retry later")
    with lock:
        async with running(settings, beside=True) as service:
            yield service


def on_service(settings: Settings, work: Callable[[Service], Coroutine[Any, Any, Result]]) -> Result:
    """Run a command's work on parts of a service in this process, next to the service itself. Return the result."""

    async def run() -> Result:
        async with running_sidecar(settings) as service:
            return await work(service)

    return asyncio.run(run())


@contextmanager
def alone_on(paths: Paths) -> Iterator[None]:
    """Keep services, keepers and similar commands from starting on a data folder within this context.

    Raises ConfigurationError if one is running.
    """
    paths.exports.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        for path in (paths.serving, paths.exports / LOCK, paths.sidecars):
            if (lock := file_lock.take(path)) is None:
                raise ConfigurationError(
                    f"a service, a keeper or another command is running on {paths.root}; stop it first"
                )
            stack.enter_context(lock)
        yield
