"""Fair turns on the event loop: requests run in steps, and steps that compete take turns by organisation and key."""

import asyncio
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from app.core.recent import Recent

T = TypeVar("T")
Step = asyncio.Future[None]

#: Seconds of steps in one round of the event loop, after which further steps wait.
_SLICE = 0.001
#: Maximum number of seconds for which a brake holds back all other requests. As many seconds must then pass before
#: another brake holds them back, so that a flood of brakes takes at most half of the time.
_HOLD = 0.5
#: Seconds without a step of a brake. After that, it holds back no requests, because it may wait for one of them.
_IDLE = 0.1
#: Maximum number of organisations and keys whose last turn is remembered.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Lane:
    """The owner of a request: its organisation and its key. A request with ``brake`` waits for such requests only."""

    org: str
    key: str
    brake: bool = False


class Queue(Generic[T]):
    """Waiting values by name. The name with the oldest turn comes first."""

    def __init__(self, last: Recent[int]) -> None:
        """``last`` has the number of each name's last turn."""
        self.waiting: dict[str, T] = {}
        self._last = last
        self._order: list[tuple[int, str]] = []

    def put(self, name: str, value: T) -> T:
        """Add a name with its waiting value, and return the value."""
        heappush(self._order, (self._last.get(name) or 0, name))
        self.waiting[name] = value
        return value

    def take(self) -> tuple[str, T]:
        """Remove the first name, and return it with its value."""
        _, name = heappop(self._order)
        return name, self.waiting.pop(name)


class Line:
    """The waiting steps of one urgency, by organisation and key, and the seconds that steps used in this round."""

    def __init__(self) -> None:
        self.used = 0.0
        #: The end of the last step.
        self.ran_at = 0.0
        self._turns = 0
        self._last: Recent[int] = Recent(_REMEMBERED)
        self._orgs: Queue[Queue[deque[Step]]] = Queue(self._last)

    @property
    def waiting(self) -> bool:
        """True if a step waits."""
        return bool(self._orgs.waiting)

    def wait(self, lane: Lane) -> Generator[Any, None, None]:
        """Wait for a turn."""
        step, key = asyncio.get_running_loop().create_future(), f"{lane.org} {lane.key}"
        keys = self._orgs.waiting.get(lane.org) or self._orgs.put(lane.org, Queue(self._last))
        steps = keys.waiting.get(key) or keys.put(key, deque())
        steps.append(step)
        yield from step

    def wake(self) -> None:
        """Let one step continue: of the organisation, and in it the key, with the oldest turn."""
        while self.waiting:
            org, keys = self._orgs.take()
            key, steps = keys.take()
            step = steps.popleft()
            cancelled = step.done()
            if not cancelled:
                step.set_result(None)
                self._turns += 1
                for name in (org, key):
                    self._last.put(name, self._turns)
            if steps:
                keys.put(key, steps)
            if keys.waiting:
                self._orgs.put(org, keys)
            if not cancelled:
                return


class Turns:
    """Runs requests in steps, each up to the next wait of its coroutine.

    Steps run at once until they have used a millisecond of a round of the event loop. Further steps wait: one per round
    continues, chosen round-robin by organisation, and within each by key. Steps of brakes wait only for each other.
    While a brake runs, all other steps are held back for up to half a second. They continue earlier if the brake
    waits for more than 0.1 seconds, because it may wait for one of them.
    """

    def __init__(self) -> None:
        self._others, self._brakes = Line(), Line()
        self._ticking = False
        self._braking = 0
        self._held_until = 0.0

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, T], lane: Callable[[], Lane | None]) -> Generator[Any, Any, T]:
        """Run a request to its end and return its result. While its ``lane`` is None, it waits for no turn."""
        line, resume, value = self._others, work.send, None
        try:
            while True:
                try:
                    if (mine := lane()) is not None:
                        if mine.brake and line is self._others:
                            line = self._brakes
                            self._begin_brake()
                        if not self._is_free(line):
                            self._tick_soon()
                            yield from line.wait(mine)
                except BaseException as error:  # noqa: BLE001 - the request handles its own cancellation
                    resume, value = work.throw, error
                began = time.perf_counter()
                try:
                    waited = resume(value)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    line.ran_at = time.perf_counter()
                    line.used += line.ran_at - began
                    self._tick_soon()
                resume, value = work.send, None
                try:
                    yield waited
                except BaseException as error:  # noqa: BLE001 - as above
                    resume, value = work.throw, error
        finally:
            self._braking -= line is self._brakes

    async def pause(self, lane: Lane) -> None:
        """End the running step of a request whose ``lane`` has just become known, if it must wait for a turn."""
        if not self._is_free(self._brakes if lane.brake else self._others):
            await asyncio.sleep(0)

    def _is_free(self, line: Line) -> bool:
        return not line.waiting and line.used < _SLICE and (line is self._brakes or not self._held_for())

    def _held_for(self) -> float:
        """Return the seconds for which a running brake still holds back the other requests."""
        until = min(self._held_until, self._brakes.ran_at + _IDLE)
        return max(0.0, until - time.perf_counter()) if self._braking else 0.0

    def _begin_brake(self) -> None:
        self._braking += 1
        if (now := time.perf_counter()) > self._held_until + _HOLD:
            self._held_until = now + _HOLD

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Begin a round of the event loop: let a waiting step continue, and one of the brakes."""
        self._ticking, held = False, self._held_for()
        self._brakes.used = self._others.used = 0.0
        self._brakes.wake()
        if not held:
            self._others.wake()
        if self._brakes.waiting or (self._others.waiting and not held):
            self._tick_soon()
        elif self._others.waiting:
            asyncio.get_running_loop().call_later(held, self._tick_soon)
