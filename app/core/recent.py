"""A memory of what was seen last."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values under names, of which the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        """`most` is the number of values that are kept."""
        self._most = most
        self._values: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._values)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a value under `name`."""
        return name in self._values

    def get(self, name: str) -> T | None:
        """Return the value under `name`, None without one."""
        return self._values.get(name)

    def put(self, name: str, value: T) -> None:
        """Keep a value under `name` as the newest."""
        self._values[name] = value
        self._values.move_to_end(name)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def items(self) -> list[tuple[str, T]]:
        """Return all names and values, oldest first."""
        return list(self._values.items())

    def forget(self, name: str) -> None:
        """Keep nothing under `name`."""
        self._values.pop(name, None)
