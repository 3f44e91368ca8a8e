"""Fair turns on the event loop. Requests run in steps, and waiting steps take turns by organisation and key."""

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

#: Seconds that steps may use in one round of the event loop. After that, further steps wait.
_SLICE = 0.001
#: Maximum number of seconds for which a brake holds back all other requests. As many seconds must then pass before
#: another brake holds them back, so that a flood of brakes takes at most half of the time.
_HOLD = 0.5
#: After this many seconds without a step, a brake no longer holds back requests: it may be waiting for one of them.
_IDLE = 0.1
#: Seconds between two steps of requests that may turn out to be brakes, while a brake holds back all others. Their
#: callers are unknown, so a flood of such requests must not slow down the running brake.
_GAP = 0.002
#: Maximum number of organisations and keys with a remembered last turn.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Lane:
    """The owner of a request: its organisation and its key. A request with ``brake`` waits only for other brakes.

    The caller of an ``unknown`` request is not authenticated yet. This request waits only while a brake holds it back.
    If it ``may_brake``, it continues even then, but slowly.
    """

    org: str
    key: str
    brake: bool = False
    unknown: bool = False
    may_brake: bool = False


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
    """The waiting steps of one urgency, by organisation and key. This round's steps took `used` seconds."""

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
        """Let one step continue: the step of the key with the oldest turn, in the organisation with the oldest turn."""
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

    Steps run immediately until they have used one millisecond of a round of the event loop. Further steps wait. In each
    round, one of them continues, chosen round-robin by organisation, and within an organisation by key. Steps of brakes
    wait only for each other. While a brake runs, all other steps are held back for up to half a second. They continue
    earlier if the brake has not run for 0.1 seconds, because it may be waiting for one of them. Requests that may turn
    out to be brakes continue, with a total of one step every 2 milliseconds.
    """

    def __init__(self) -> None:
        self._others, self._brakes, self._arriving = Line(), Line(), Line()
        self._ticking = False
        self._later: asyncio.TimerHandle | None = None
        self._braking = 0
        self._held_until = 0.0

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, T], lane: Callable[[], Lane]) -> Generator[Any, Any, T]:
        """Run a request to its end and return its result. ``lane`` changes once the caller becomes known."""
        line, resume, value = self._others, work.send, None
        try:
            while True:
                try:
                    mine = lane()
                    if line is not self._brakes:
                        line = self._line(mine)
                        if mine.brake:
                            self._begin_brake()
                    if not self._is_free(line, mine):
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
        """End the running step of a request if the request must wait for a turn, now that its ``lane`` is known."""
        if not self._is_free(self._line(lane), lane):
            await asyncio.sleep(0)

    def _line(self, lane: Lane) -> Line:
        if lane.brake:
            return self._brakes
        return self._arriving if lane.may_brake else self._others

    def _is_free(self, line: Line, lane: Lane) -> bool:
        held = line is not self._brakes and self._held_for() > 0
        if lane.unknown and not held:
            return True
        if line.waiting or line.used >= _SLICE:
            return False
        return not held or (line is self._arriving and not self._gap())

    def _gap(self) -> float:
        """Return the seconds until the next step of a request that may turn out to be a brake."""
        return max(0.0, self._arriving.ran_at + _GAP - time.perf_counter())

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

    def _tick_later(self, seconds: float) -> None:
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(seconds, self._tick_soon)

    def _tick(self) -> None:
        """Begin a round of the event loop: for each urgency, let one waiting step continue, if it may."""
        self._ticking, held = False, self._held_for()
        self._brakes.used = self._others.used = self._arriving.used = 0.0
        self._brakes.wake()
        if not held:
            self._others.wake()
        if not held or not self._gap():
            self._arriving.wake()
        if self._brakes.waiting or (not held and (self._others.waiting or self._arriving.waiting)):
            self._tick_soon()
        elif self._arriving.waiting:
            self._tick_later(min(held, self._gap() or _GAP))
        elif self._others.waiting:
            self._tick_later(held)
