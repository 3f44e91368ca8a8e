"""The locks of requests: how many may wait."""

import asyncio

import pytest

from app.core.errors import RequestError
from app.submission.locks import Locks, LockScope


async def test_waiting_room_is_full_also_while_the_lock_changes_hands() -> None:
    locks, started = Locks(), asyncio.Event()
    order: list[str] = []

    async def enter(name: str) -> None:
        started.set()
        async with locks.hold(LockScope.WALLET_SENDING, "wallet", most_waiting=1):
            order.append(name)

    # Given one that waits
    waiting = asyncio.create_task(enter("first"), name="first")
    held = locks.hold(LockScope.WALLET_SENDING, "wallet", most_waiting=1)
    await held.__aenter__()
    await started.wait()
    await asyncio.sleep(0)
    # When the lock is free, and the one that waits has not taken it yet
    await held.__aexit__()

    with pytest.raises(RequestError) as refused:
        await enter("second")

    assert refused.value.code == "rate_limited"
    await waiting
    await enter("third")
    assert order == ["first", "third"]
    assert set(locks.waiting().values()) == {0}
