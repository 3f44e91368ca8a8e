"""The chain's clock: its own seconds, whatever the host's clock says."""

import base64
import time
from typing import Any

import pytest
from solders.clock import Clock
from solders.pubkey import Pubkey
from solders.sysvar import CLOCK

from app.chain.client import ChainClient
from app.chain.clock import ChainClock
from app.chain.errors import ChainUnavailable
from tests.chain.test_client import Node, client

_SECOND = 1_800_000_000


class _Timer:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _account(slot: int, second: int, *, data: bytes | None = None) -> dict[str, Any]:
    raw = bytes(Clock(slot, 0, 0, 1, second)) if data is None else data
    value = {
        "lamports": 1,
        "owner": "Sysvar1111111111111111111111111111111111111",
        "data": [base64.b64encode(raw).decode(), "base64"],
    }
    return {"context": {"slot": slot}, "value": [value]}


class _ClockStage:
    """A clock, its timer, and the node that it asks."""

    def __init__(self, slot: int = 10, second: int = _SECOND, stored: int | None = None) -> None:
        self.timer, self.node = _Timer(), Node(getMultipleAccounts=_account(slot, second))
        self.clock = ChainClock(client(self.node), stored=stored, timer=self.timer)

    def answer(self, slot: int, second: int) -> None:
        self.node.answers["getMultipleAccounts"] = _account(slot, second)


@pytest.mark.parametrize("hours", [-7, 0, 7])
async def test_clock_goes_on_from_the_chains_second(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    stage, real = _ClockStage(), time.time()
    monkeypatch.setattr("time.time", lambda: real + hours * 3600)

    assert await stage.clock.read() == _SECOND
    assert stage.node.calls[0][1][0] == [str(CLOCK)]
    stage.timer.now += 3600
    monkeypatch.setattr("time.time", lambda: real - hours * 3600)

    assert stage.clock.now() == _SECOND + 3600
    assert _SECOND + 3600 <= stage.clock.now_ms() / 1000 < _SECOND + 3601


async def test_clock_that_was_never_read_knows_only_what_was_stored() -> None:
    stage = _ClockStage(stored=_SECOND - 50)

    with pytest.raises(ChainUnavailable):
        stage.clock.now()
    assert stage.clock.seen_ms() == (_SECOND - 50) * 1000
    # Whoever can wait asks.
    assert await stage.clock.moment_ms() // 1000 == _SECOND
    assert stage.clock.seen_ms() // 1000 == _SECOND


async def test_clock_follows_the_chain_but_no_node_that_is_behind() -> None:
    stage = _ClockStage()
    await stage.clock.read()
    stage.answer(9, _SECOND - 60)
    assert await stage.clock.read() == _SECOND

    for slot, second in ((11, _SECOND + 5000), (12, _SECOND - 5000)):
        stage.answer(slot, second)
        await stage.clock.tick()
        assert stage.clock.now() == second


async def test_readings_of_one_second_do_not_move_the_clock() -> None:
    stage = _ClockStage()
    await stage.clock.read()
    began = stage.clock.now_ms()

    for tenths in range(1, 50):
        stage.timer.now += 0.1
        stage.answer(10 + tenths, (began + 100 * tenths) // 1000)
        await stage.clock.read()
        assert abs(stage.clock.now_ms() - (began + 100 * tenths)) <= 1


@pytest.mark.parametrize("data", [b"", b"\x00" * 39])
async def test_node_without_a_clock_is_unusable(data: bytes) -> None:
    stage = _ClockStage()
    stage.node.answers["getMultipleAccounts"] = _account(10, 0, data=data)
    with pytest.raises(ChainUnavailable):
        await stage.clock.read()

    stage.node.answers["getMultipleAccounts"] = {"context": {"slot": 10}, "value": [None]}
    with pytest.raises(ChainUnavailable):
        await ChainClient(stage.node, program_id=Pubkey.default()).clock()
    with pytest.raises(ChainUnavailable):
        stage.clock.now()
