"""Work that the service does next to requests."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import ClassVar

import structlog

_log = structlog.get_logger(__name__)


class Background(ABC):
    """Work in a task of its own, from `start` until `stop`."""

    name: ClassVar[str]
    """The task's."""

    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin, with what an earlier process left undone."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @abstractmethod
    async def _run(self) -> None:
        """Work until cancelled."""


class Periodic(Background):
    """Work that looks every `interval` seconds for what is due, and whenever it is woken."""

    waits_for: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors by which the chain, or the way to it, says that it cannot be asked now."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look now; call it from the event loop."""
        self._woken.set()

    @abstractmethod
    async def tick(self) -> object:
        """Look once and do what is due."""

    async def _run(self) -> None:
        waiting = False
        while True:
            self._woken.clear()
            try:
                await self.tick()
                waiting = False
            except self.waits_for as error:
                if not waiting:
                    _log.warning(f"{self.name}_waits_for_the_chain", error=str(error))
                waiting = True
            except Exception:  # noqa: BLE001 - whatever it is, the next look may succeed
                _log.exception(f"{self.name}_failed")
            # Not `wait_for`, which in Python 3.11 can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._woken.wait()


async def at_work(stack: AsyncExitStack, *works: Background) -> None:
    """Start these in their order; the stack stops them, the last one first."""
    for work in works:
        await work.start()
        stack.push_async_callback(work.stop)
