"""What the service does beside requests."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import ClassVar


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


async def at_work(stack: AsyncExitStack, *works: Background) -> None:
    """Start these in their order; the stack stops them, the last one first."""
    for work in works:
        await work.start()
        stack.push_async_callback(work.stop)
