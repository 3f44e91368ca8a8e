"""On PostgreSQL, rows of the chain are applied in the transaction that stores them, or else soon after it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.database.postgres.database import PostgresDatabase
from app.projection.handlers import HANDLERS
from app.projection.projector import Projector
from app.projection.rollbacks import reset
from tests.projection.test_projector import Line, line_on, snapshot
from tests.support.chain import USDC

_PATIENCE = 10.0


@pytest_asyncio.fixture(name="line")
async def _line(postgres_db: PostgresDatabase, tmp_path: Path) -> AsyncIterator[Line]:
    """A line with a wallet, whose projector runs and has applied everything."""
    async with line_on(postgres_db, tmp_path) as line:
        line.indexer.subscribe(line.projector.notify)
        line.extra["vault"] = await line.stage.wallet("agent-1", funds=20 * USDC)
        await line.projector.start()
        await _settled(line)
        yield line


async def _settled(line: Line) -> None:
    """Store a payment, and wait until the projector has applied everything and told of it."""
    await line.indexer.catch_up()
    signature = await line.stage.pay(line.extra["vault"], USDC)
    await line.indexer.catch_up()
    assert await line.projector.wait(line.stage.messages[signature], _PATIENCE) is not None
    async with line.projector.paused():
        pass


def _balance(line: Line) -> int:
    vault: Pubkey = line.extra["vault"]
    return line.wallet(vault).balance


@contextmanager
def _transactions(line: Line) -> Iterator[list[Callable[[Connection], Any]]]:
    """Collect the work of the transactions that write meanwhile."""
    found: list[Callable[[Connection], Any]] = []
    write = line.db.write

    async def note(work: Callable[[Connection], Any], **options: bool) -> Any:
        found.append(work)
        return await write(work, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line.db, "write", note)
        yield found


async def test_rows_are_stored_and_applied_in_one_transaction(line: Line) -> None:
    told: set[str] = set()

    async def note(vaults: set[str]) -> None:
        told.update(vaults)

    line.projector.subscribe(note)
    for paid in (1, 2, 3):
        signature = await line.stage.pay(line.extra["vault"], USDC)
        waiting = asyncio.create_task(line.projector.wait(line.stage.messages[signature], _PATIENCE))
        await asyncio.sleep(0)

        with _transactions(line) as written:
            await line.indexer.catch_up()
            assert _balance(line) == (19 - paid) * USDC
            assert await waiting == await line.indexer.slot_of(signature)
            async with line.projector.paused():
                assert told == {str(line.extra["vault"])}
        assert len(written) == 1
        told.clear()


async def test_rows_that_cannot_be_applied_are_stored_alone(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _balance(line)

    def fail(_batch: object, _row: object) -> None:
        raise KeyError("amount")

    with monkeypatch.context() as patch:
        patch.setitem(HANDLERS, "PaymentExecuted", fail)
        signature = await line.stage.pay(line.extra["vault"], USDC)
        with pytest.raises(KeyError):
            await line.indexer.catch_up()
        assert await line.indexer.slot_of(signature) is None

        # The next try
        await line.indexer.catch_up()
        assert await line.indexer.slot_of(signature) is not None
        assert _balance(line) == before

    assert await line.projector.wait(line.stage.messages[signature], _PATIENCE) is not None
    assert _balance(line) == before - USDC


async def test_nothing_is_applied_while_the_read_models_are_at_rest(line: Line) -> None:
    before = _balance(line)
    async with line.projector.paused():
        signature = await line.stage.pay(line.extra["vault"], USDC)
        await line.indexer.catch_up()
        assert await line.indexer.slot_of(signature) is not None
        assert _balance(line) == before
    assert await line.projector.wait(line.stage.messages[signature], _PATIENCE) is not None
    assert _balance(line) == before - USDC


async def test_rows_are_not_applied_past_what_another_process_has_begun_again(line: Line) -> None:
    # Given read models that another process has reduced to nothing
    await line.db.write(reset)

    signature = await line.stage.pay(line.extra["vault"], USDC)
    await line.indexer.catch_up()

    # Then all rows are applied again, in their order
    assert await line.projector.wait(line.stage.messages[signature], _PATIENCE) is not None
    async with line.projector.paused():
        again = snapshot(line.db)
    await Projector(line.db, line.indexer.changes).rebuild()
    assert snapshot(line.db) == again
    assert _balance(line) == 18 * USDC
