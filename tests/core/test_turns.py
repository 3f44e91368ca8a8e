"""Fair turns on the event loop, with coroutines that keep it busy as requests do."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from app.core.turns import Lane, Line, Turns

_BUSY = 0.002


def _work(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def _all(turns: Turns, lanes: list[Lane], steps: int) -> list[Lane]:
    """Run requests of these lanes at once, each with a number of busy steps. Return the lane of each step in order."""
    order: list[Lane] = []

    async def request(lane: Lane) -> None:
        for _ in range(steps):
            _work(_BUSY)
            order.append(lane)
            await asyncio.sleep(0)

    await asyncio.gather(*(turns.run(request(lane), partial(Lane, lane.org, lane.key, lane.brake)) for lane in lanes))
    return order


async def test_organisations_take_turns_and_within_each_the_keys() -> None:
    crowd = [Lane("crowd", key) for key in ("a", "a", "a", "a", "b", "c") for _ in range(3)]
    lone = Lane("lone", "x")

    order = await _all(Turns(), [*crowd, lone], steps=6)

    # The crowd has 18 requests, but every other step is the lone one's until it ends.
    places = [place for place, lane in enumerate(order) if lane == lone]
    assert len(places) == 6
    assert max(places) <= 14
    # Its keys have equal shares while all of them wait, although the first has four times as many requests.
    keys = [lane.key for lane in order[1:37] if lane.org == "crowd"]
    assert max(keys.count(key) for key in "abc") - min(keys.count(key) for key in "abc") <= 2


async def test_brake_overtakes_all_others_and_holds_them_back_for_a_moment() -> None:
    turns, order = Turns(), list[str]()

    async def request(name: str, steps: int) -> None:
        for _ in range(steps):
            _work(_BUSY)
            order.append(name)
            await asyncio.sleep(0)

    async def freeze() -> None:
        await asyncio.sleep(5 * _BUSY)
        brake = Lane("other", "b", brake=True)
        await turns.run(request("brake", 10), lambda: brake)

    crowd = [turns.run(request("crowd", 20), lambda: Lane("crowd", "a")) for _ in range(16)]
    await asyncio.gather(freeze(), *crowd)

    first = order.index("brake")
    # A step that had its turn already may still run.
    assert order[first : first + 11].count("brake") >= 10
    assert order.count("crowd") == 320


async def test_running_brake_holds_unknown_callers_back() -> None:
    turns, order = Turns(), list[str]()

    async def request(name: str, lane: Lane, steps: int) -> None:
        async def work() -> None:
            for _ in range(steps):
                _work(_BUSY / 10)
                order.append(name)
                await asyncio.sleep(0)

        await turns.run(work(), lambda: lane)

    async def freeze() -> None:
        await asyncio.sleep(_BUSY)
        await request("brake", Lane("org", "b", brake=True), 100)

    unknown, possible = (Lane("", "192.0.2.1", unknown=True, may_brake=one) for one in (False, True))
    floods = [request("unknown", unknown, 20) for _ in range(16)] + [
        request("possible", possible, 20) for _ in range(16)
    ]
    await asyncio.gather(freeze(), *floods)

    first = order.index("brake")
    last = len(order) - order[::-1].index("brake")
    # Steps that had their turn already may still run.
    assert order[first:last].count("unknown") <= 16
    assert 1 <= order[first:last].count("possible") <= 30
    assert (order.count("unknown"), order.count("possible")) == (320, 320)


async def test_brakes_hold_others_back_for_half_of_the_time_at_most() -> None:
    turns, ended, done = Turns(), asyncio.Event(), list[float]()
    began = time.perf_counter()

    async def brakes() -> None:
        async def one() -> None:
            _work(_BUSY)
            await asyncio.sleep(0)

        while not ended.is_set():
            await asyncio.gather(*(turns.run(one(), lambda: Lane("other", "b", brake=True)) for _ in range(3)))

    async def other() -> None:
        while time.perf_counter() < began + 3:
            await asyncio.sleep(0)
            done.append(time.perf_counter() - began)
        ended.set()

    await asyncio.gather(brakes(), turns.run(other(), lambda: Lane("org", "a")))

    gaps = [later - earlier for earlier, later in zip([0.0, *done], done, strict=False)]
    assert max(gaps) < 0.8
    assert sum(gap for gap in gaps if gap > 0.2) < 0.7 * done[-1]


async def test_brake_does_not_hold_back_a_request_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.core.turns._HOLD", 3_600.0)
    turns, lock, taken = Turns(), asyncio.Lock(), asyncio.Event()

    async def other() -> None:
        async with lock:
            taken.set()
            await asyncio.sleep(_BUSY)

    async def brake() -> None:
        async with lock:
            pass

    holder = asyncio.create_task(turns.run(other(), lambda: Lane("org", "a")))
    await taken.wait()

    async with asyncio.timeout(30):
        await turns.run(brake(), lambda: Lane("org", "b", brake=True))
        await holder


def _looks(keys: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of last turns that 100 turns look up while requests of a number of keys wait."""
    line, looks = Line(), 0
    waiting = [line.wait(Lane("org", str(key))) for key in range(keys) for _ in range(2)]
    for one in waiting:
        next(one)
    get = line._last.get

    def counted(name: str) -> int | None:
        nonlocal looks
        looks += 1
        return get(name)

    monkeypatch.setattr(line._last, "get", counted)
    for _ in range(100):
        line.wake()
    return looks


async def test_turn_looks_at_as_few_keys_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _looks(5_000, monkeypatch) <= 200


async def _cancelled(inner: asyncio.Event, wait: Callable[[], Awaitable[object]]) -> None:
    try:
        await wait()
    except asyncio.CancelledError:
        inner.set()
        raise


async def test_cancelled_request_ends_wherever_it_waits() -> None:
    turns, lane = Turns(), Lane("org", "a")
    for brake in (False, True):
        inner = asyncio.Event()
        waiting = asyncio.create_task(turns.run(_cancelled(inner, asyncio.Event().wait), lambda: lane))
        blocked = asyncio.create_task(_all(turns, [Lane("org", "a", brake=brake)] * 8, steps=1_000))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert inner.is_set()
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocked
    # Whatever was cancelled, others go on.
    assert len(await _all(turns, [lane] * 3, steps=3)) == 9


async def test_errors_and_results_pass_through() -> None:
    turns, lane = Turns(), Lane("org", "a")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("as it was")

    async def answers() -> int:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(10)
        return 1

    assert await turns.run(asyncio.sleep(0, "done"), lambda: lane) == "done"
    with pytest.raises(ValueError, match="as it was"):
        await turns.run(fails(), lambda: lane)
    with pytest.raises(TimeoutError):
        await turns.run(answers(), lambda: lane)
