"""Waiting for what somebody else will find out, by its name."""

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Waiters(Generic[T]):
    """Those who wait for a value under a name, such as the status of a transaction under its signature."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[T]]] = {}

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def __iter__(self) -> Iterator[str]:
        """Give the names that are waited for."""
        return iter(self._waiting)

    async def wait(self, name: str, timeout: float) -> T | None:  # noqa: ASYNC109 - None is a result
        """Return the value that is told under `name`; `None` when there is none within `timeout` seconds."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(future)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            return None
        finally:
            waiting = self._waiting.get(name, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(name, None)

    def tell(self, name: str, value: T) -> None:
        """Give a value to all who wait for it under `name`."""
        for future in self._waiting.pop(name, []):
            if not future.done():
                future.set_result(value)
