"""Processes that run next to a service on its data, such as a keeper."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.core import file_lock
from app.core.paths import ConfigurationError
from app.core.settings import Settings
from app.server.bootstrap import prepare, running
from app.submission.context import Service


@asynccontextmanager
async def running_sidecar(settings: Settings) -> AsyncIterator[Service]:
    """Run next to a service; `rebuild` waits for the end, because it holds the database meanwhile.

    Raises ConfigurationError while the read models are being rebuilt, and as ``running`` does.
    """
    lock = file_lock.take(prepare(settings).sidecars, shared=True)
    if lock is None:
        raise ConfigurationError(f"the read models in {settings.data_dir} are being rebuilt; try again later")
    with lock:
        async with running(settings, beside=True) as service:
            yield service
