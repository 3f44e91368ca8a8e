"""Slots that members share for a short time."""

import asyncio

import pytest

from app.core.slots import Slots


async def _hold(slots: Slots, member: str, held: list[str], release: asyncio.Event) -> None:
    async with slots.awaited(member):
        held.append(member)
        await release.wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_last_quarter_is_for_members_without_a_slot() -> None:
    slots, held, release = Slots(8), list[str](), asyncio.Event()
    tasks = [asyncio.create_task(_hold(slots, "crowd", held, release)) for _ in range(20)]
    await _settle()
    assert held == ["crowd"] * 6
    assert not slots.is_free("crowd")

    tasks += [asyncio.create_task(_hold(slots, one, held, release)) for one in ("a", "b", "c", "a")]
    await _settle()
    assert held == ["crowd"] * 6 + ["a", "b"]

    release.set()
    await asyncio.gather(*tasks)
    assert (len(held), bool(slots)) == (24, False)


async def test_member_holds_at_most_its_share() -> None:
    slots = Slots(8, share=2)
    with slots.held("a"), slots.held("a"):
        assert (slots.is_free("a"), slots.is_free("b")) == (False, True)
    assert slots.is_free("a")


async def test_slot_freed_goes_to_a_member_without_one_before_the_crowd() -> None:
    slots, held = Slots(4), list[str]()
    first, others = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(_hold(slots, one, held, others)) for one in ("crowd", "crowd", "a")]
    tasks.append(asyncio.create_task(_hold(slots, "b", held, first)))
    await _settle()
    tasks += [asyncio.create_task(_hold(slots, one, held, others)) for one in ("crowd", "c")]
    await _settle()
    assert held == ["crowd", "crowd", "a", "b"]

    first.set()
    await _settle()

    assert held[4:] == ["c"]
    others.set()
    await asyncio.gather(*tasks)
    assert not slots


async def test_cancelled_waiters_take_no_slot() -> None:
    slots, held, release = Slots(1), list[str](), asyncio.Event()
    holder = asyncio.create_task(_hold(slots, "a", held, release))
    waiting = [asyncio.create_task(_hold(slots, one, held, release)) for one in "bcd"]
    await _settle()
    waiting[0].cancel()
    release.set()
    await holder
    # The slot was just given to the next one, which is cancelled before it continues.
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)

    assert not slots
    assert held[-1] == "d"
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]


async def test_single_slot_and_small_limits_work() -> None:
    for limit in (1, 2, 3):
        slots, held, release = Slots(limit), list[str](), asyncio.Event()
        tasks = [asyncio.create_task(_hold(slots, "a", held, release)) for _ in range(5)]
        await _settle()
        assert len(held) == limit
        release.set()
        await asyncio.gather(*tasks)
        assert len(held) == 5
