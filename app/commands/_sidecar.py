"""Processes that run next to a service and use its data, such as a keeper."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from app.core import file_lock
from app.core.paths import ConfigurationError, Paths
from app.core.settings import Settings
from app.exports.exporter import LOCK
from app.server.bootstrap import prepare, running
from app.submission.context import Service


@asynccontextmanager
async def running_sidecar(settings: Settings) -> AsyncIterator[Service]:
    """Run next to a service. `rebuild` refuses to start until this ends, because it needs the data for itself.

    Raises ConfigurationError while the read models are being rebuilt, and the errors of ``running``.
    """
    lock = file_lock.take(prepare(settings).sidecars, shared=True)
    if lock is None:
        raise ConfigurationError(f"the read models in {settings.data_dir} are being rebuilt; retry later")
    with lock:
        async with running(settings, beside=True) as service:
            yield service


@contextmanager
def alone_on(paths: Paths) -> Iterator[None]:
    """Keep services and keepers from starting on a data folder. Raises ConfigurationError if one is running."""
    paths.exports.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        for path in (paths.serving, paths.exports / LOCK, paths.sidecars):
            if (lock := file_lock.take(path)) is None:
                raise ConfigurationError(f"a service or keeper is running on {paths.root}; stop it first")
            stack.enter_context(lock)
        yield
