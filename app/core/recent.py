"""A bounded memory of recent values."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The most recently stored values by name. Older values are forgotten."""

    def __init__(self, most: int) -> None:
        """Keep at most `most` values."""
        self._most = most
        self._values: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def __contains__(self, name: str) -> bool:
        """Return True if there is a value under `name`."""
        return name in self._values

    def get(self, name: str) -> T | None:
        """Return the value under `name`, or None if there is none."""
        return self._values.get(name)

    def put(self, name: str, value: T) -> None:
        """Store a value under `name` as the newest one."""
        self._values[name] = value
        self._values.move_to_end(name)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def items(self) -> list[tuple[str, T]]:
        """Return all names and values, oldest first."""
        return list(self._values.items())

    def forget(self, name: str) -> None:
        """Remove the value under `name`, if there is one."""
        self._values.pop(name, None)
