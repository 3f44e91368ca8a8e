"""Slots for concurrent work, such as sending webhooks or previewing policies, shared by the members of a group."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from app.core.errors import RequestError


class Slots:
    """A number of slots. The last quarter of them is only for members that hold no slot, so no member can take all.

    ``share`` is the maximum number of slots that one member may hold.
    """

    def __init__(self, limit: int, share: int | None = None) -> None:
        self._limit = limit
        self._share = limit if share is None else share
        self._held: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        """Return True if a slot is held."""
        return bool(self._held)

    def is_free(self, member: str) -> bool:
        """Return True if the member may take a slot now."""
        held = self._held[member]
        return held < self._share and self._held.total() < self._limit - (self._limit // 4 if held else 0)

    @contextmanager
    def held(self, member: str) -> Iterator[None]:
        """Hold a slot, which must be free for the member."""
        self._held[member] += 1
        try:
            yield
        finally:
            self._release(member)

    @asynccontextmanager
    async def awaited(self, member: str) -> AsyncIterator[None]:
        """Wait until a slot is free for the member, and hold it."""
        if not self.is_free(member):
            given = asyncio.get_running_loop().create_future()
            self._waiting.append((member, given))
            try:
                await given
            except asyncio.CancelledError:
                if given.done() and not given.cancelled():
                    self._release(member)
                raise
            # `_release` has already counted this slot, and `held` counts it again.
            self._held[member] -= 1
        with self.held(member):
            yield

    def _release(self, member: str) -> None:
        self._held[member] -= 1
        self._held += Counter()  # forgets members without slots
        for one in list(self._waiting):
            other, given = one
            if given.done() or self.is_free(other):
                self._waiting.remove(one)
                if not given.done():
                    self._held[other] += 1
                    given.set_result(None)
                    return


class SlotsByOrg:
    """Slots of each organisation in this process, shared by its keys or wallets.

    ``refusal`` is the message of the error. ``share`` is the maximum number of slots that one key or wallet may hold.
    """

    def __init__(self, limit: int, refusal: str, share: int | None = None) -> None:
        self._limit, self._refusal, self._share = limit, refusal, share
        self.held: dict[str, Slots] = {}

    @contextmanager
    def hold(self, org: str, member: str) -> Iterator[None]:
        """Hold a slot of an organisation. Raises ``rate_limited`` if no slot is free for the member."""
        slots = self.held.setdefault(org, Slots(self._limit, self._share))
        if not slots.is_free(member):
            raise RequestError("rate_limited", self._refusal, headers={"Retry-After": "1"})
        try:
            with slots.held(member):
                yield
        finally:
            if not slots:
                self.held.pop(org, None)
