"""Pages of records, found by the store and shown by the API."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[T]):
    """One page of a list, and the cursor of the next page."""

    data: list[T]
    has_more: bool
    next_cursor: str | None
