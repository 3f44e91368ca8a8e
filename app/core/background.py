"""Base classes of the service's background tasks, and the function that starts them."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import ClassVar, Protocol

import structlog

from app.core.errors import UnavailableError, is_storage_error

_log = structlog.get_logger(__name__)


class Startable(Protocol):
    """A part that starts and stops with the service, perhaps several times."""

    async def start(self) -> None:
        """Start the part."""

    async def stop(self) -> None:
        """Stop the part, and wait until it has ended."""


class Background(ABC):
    """Work that runs in its own task, from `start` until `stop`."""

    name: ClassVar[str]
    """Name of the task."""

    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the task. It also continues stored work that an earlier process did not finish."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """Cancel the task and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @abstractmethod
    async def _run(self) -> None:
        """Run until cancelled."""


class Periodic(Background):
    """Repeats rounds of work: at the start, `interval` seconds after the end of each, and on `wake`."""

    outages: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of a round that count as an outage, in addition to UnavailableError.

    The first of these errors is logged as a warning. Further ones are not logged until a round has succeeded.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Start the next round now, or as soon as the running round ends. Call this from the event loop."""
        self._woken.set()

    @abstractmethod
    async def tick(self) -> object:
        """Do one round of the work."""

    async def _run(self) -> None:
        waiting = False
        outages: tuple[type[Exception], ...] = (*self.outages, UnavailableError)
        while True:
            self._woken.clear()
            try:
                await self.tick()
                waiting = False
            except outages as error:
                if not waiting:
                    what = "storage" if is_storage_error(error) else "the_chain"
                    _log.warning(f"{self.name}_waits_for_{what}", error=str(error))
                waiting = True
            except Exception:  # noqa: BLE001 - the next round may succeed after any error
                _log.exception(f"{self.name}_failed")
            # Do not use `wait_for`: in Python 3.11, it can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._woken.wait()


async def start_all(stack: AsyncExitStack, *tasks: Startable) -> None:
    """Start the tasks in this order. When the stack closes, it stops them in reverse order."""
    for task in tasks:
        await task.start()
        stack.push_async_callback(task.stop)
