"""Tasks that wait for a named value, which another task finds."""

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Waiters(Generic[T]):
    """Tasks that wait for a value by name, such as a transaction's status by its signature."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[T]]] = {}

    def __bool__(self) -> bool:
        """Return True if any task waits."""
        return bool(self._waiting)

    def __contains__(self, name: str) -> bool:
        """Return True if a task waits for `name`."""
        return name in self._waiting

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that tasks wait for."""
        return iter(self._waiting)

    async def wait(self, name: str, timeout: float) -> T | None:  # noqa: ASYNC109 - None is a result
        """Return the value for `name`, or None if it does not arrive within `timeout` seconds."""
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

    def notify(self, name: str, value: T) -> None:
        """Give the value to all tasks that wait for `name`."""
        for future in self._waiting.pop(name, []):
            if not future.done():
                future.set_result(value)
