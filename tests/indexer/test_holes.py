"""Transactions that a node does not give, gives in part, or in a form that cannot be read."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.signature import Signature

from app.chain.errors import RpcError
from indexer import Indexer
from indexer.records import TransactionHole
from indexer.store import DEPOSIT, REVERTED
from tests.support.chain import USDC, Stage
from tests.support.indexer import Altered, indexer_of

Change = Callable[[Any], Any]


@pytest_asyncio.fixture(name="stage")
async def _stage() -> AsyncIterator[Stage]:
    async with Stage() as stage:
        yield stage


def alter(node: Altered, signature: str, change: Change) -> None:
    """Have a node change what it tells about one transaction."""

    def changed(method: str, result: Any) -> Any:
        return change(result) if method == "getTransaction" and node.params.pop(0)[0] == signature else result

    def note(method: str, result: Any) -> Any:
        # The parameters of a batch come in its order, in front of the later calls.
        return changed(method, result) if method == "getTransaction" else _drop(node, result)

    node.params.clear()
    node.change = note


def _drop(node: Altered, result: Any) -> Any:
    node.params.pop(0)
    return result


def without(*path: str) -> Change:
    """Return the change of a node that does not record a part."""

    def change(result: Any) -> Any:
        part = result
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = None
        return result

    return change


def honest(node: Altered) -> None:
    """Have a node tell the truth again."""
    node.change = lambda method, result: result  # noqa: ARG005


async def due_now(indexer: Indexer) -> None:
    """Try all holes again, as if the pauses were over."""
    indexer.store._file.conn.execute("UPDATE chain_transaction_holes SET retry_at = 0")
    await indexer._retry_holes()


def balance_of(indexer: Indexer, tokens: object) -> int | None:
    """Return the stored balance of a token account."""
    account = indexer.store.accounts.get(str(tokens))
    return None if account is None else account.balance


UNREADABLE: dict[str, Change] = {
    "future version": lambda result: {**result, "transaction": ["gg==", "base64"]},
    "no base64": lambda result: {**result, "transaction": ["-", "base64"]},
    "cut off": lambda result: {**result, "transaction": [result["transaction"][0][:80], "base64"]},
    "slot as text": lambda result: {**result, "slot": "5"},
    "meta as list": lambda result: {**result, "meta": []},
    "no object": lambda _result: 5,
}


@pytest.mark.parametrize("fault", UNREADABLE)
async def test_unreadable_transaction_is_a_hole_until_it_can_be_read(stage: Stage, tmp_path: Path, fault: str) -> None:
    vault, node = await stage.wallet("agent-1", funds=20 * USDC), Altered(stage.transport)
    bad, good = await stage.pay(vault, USDC), await stage.pay(vault, 2 * USDC)
    alter(node, bad, UNREADABLE[fault])
    indexer = indexer_of(stage, tmp_path, node)

    # Then what came after it is stored, and its place has a name
    await indexer.catch_up(seen=0)
    assert indexer.store.cursor("program") == good
    assert indexer.store.slot_of(good) is not None
    [hole] = await indexer.transaction_holes()
    assert (hole.signature, hole.slot) == (bad, await slot_of(stage, bad))
    assert hole.reason

    # And it is tried again, by another process, too, until it closes
    await due_now(indexer)
    await indexer.stop()
    indexer = indexer_of(stage, tmp_path, node)
    assert await indexer.transaction_holes() == [hole]
    honest(node)
    await due_now(indexer)
    assert await indexer.transaction_holes() == []
    assert indexer.store.slot_of(bad) == hole.slot
    assert indexer.store.streams_with_gaps() == []
    await indexer.check()
    assert balance_of(indexer, stage.addresses.token_account(vault)) == 17 * USDC
    await indexer.stop()


async def slot_of(stage: Stage, signature: str) -> int | None:
    """Return the slot of a transaction on the chain."""
    [status] = (await stage.chain.statuses([signature])).found
    return None if status is None else status.slot


async def test_refused_version_is_a_hole_and_delays_no_other(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    bad = await stage.pay(vault, USDC)
    good = await stage.pay(vault, USDC)
    indexer = indexer_of(stage, tmp_path)
    found = indexer._reader._chain.transactions

    async def refusing(signatures: Any) -> Any:
        refusal = RpcError(-32015, "Transaction version (2) is not supported\x00\x1b[2J by the client.\n" * 100)
        return [refusal if one == bad else raw for one, raw in zip(signatures, await found(signatures), strict=True)]

    indexer._reader._chain.transactions = refusing  # type: ignore[method-assign]
    await indexer.catch_up(seen=0)
    [hole] = await indexer.transaction_holes()
    assert hole.signature == bad
    assert hole.reason.isprintable()
    assert len(hole.reason) < 1_000
    assert indexer.store.slot_of(good) is not None
    await indexer.stop()


PARTS = [
    *(("meta", name) for name in ("innerInstructions", "preTokenBalances", "postTokenBalances")),
    *((name,) for name in ("meta", "blockTime", "slot", "transaction")),
]


@pytest.mark.parametrize("part", PARTS, ids=".".join)
async def test_transaction_without_a_part_is_not_stored(stage: Stage, tmp_path: Path, part: tuple[str, ...]) -> None:
    vault, node = await stage.wallet("agent-1", funds=20 * USDC), Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    paid = await stage.pay(vault, USDC)
    alter(node, paid, without(*part))

    with pytest.raises(RpcError, match="does not serve"):
        await indexer.catch_up(seen=0)
    assert indexer.store.slot_of(paid) is None
    assert await indexer.transaction_holes() == []

    honest(node)
    assert await indexer.catch_up(seen=0) == 1
    await indexer.stop()


def _failed(result: Any) -> Any:
    return {**result, "meta": {**result["meta"], "err": {"InstructionError": [0, {"Custom": 1}]}}}


@pytest.mark.parametrize(
    "change", [lambda _result: None, without("meta", "innerInstructions"), _failed], ids=["none", "part", "failed"]
)
async def test_transaction_that_is_never_served_becomes_a_hole(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    vault, node = await stage.wallet("agent-1", funds=20 * USDC), Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    lost, kept = await stage.pay(vault, USDC), await stage.pay(vault, USDC)
    alter(node, lost, change)
    assert await indexer.catch_up() == 1
    assert indexer.store.cursor("program") not in {lost, kept}

    # When the wait for it is over
    monkeypatch.setattr("indexer.transaction_reader._PATIENCE", 0.0)
    await indexer.catch_up(seen=0)

    # Then the rest goes on, but nothing is concluded about its vault
    assert indexer.store.cursor("program") == kept
    assert [one.signature for one in await indexer.transaction_holes()] == [lost]
    assert not await indexer.holds_all(str(vault), 0)
    assert await indexer.holds_all(str(stage.org), 0)
    honest(node)
    await due_now(indexer)
    assert await indexer.holds_all(str(vault), 0)
    await indexer.stop()


@pytest.mark.parametrize("last", [True, False])
async def test_transactions_stored_without_events_are_reread(stage: Stage, tmp_path: Path, *, last: bool) -> None:
    # Given a database in which a funding is stored without its event, as earlier versions did
    vault, node = await stage.wallet("agent-1"), Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    emptied = await stage.fund(vault, 5 * USDC)
    read = await indexer._reader.read({emptied: 1})
    indexer.store.record([replace(one, events=()) for one in read.transactions])
    if not last:
        await stage.fund(vault, 3 * USDC)
    await indexer.catch_up()
    tokens = str(stage.addresses.token_account(vault))

    def deposits() -> list[str]:
        rows = indexer.store.changes(0, 1_000)
        gone = {row.signature for row in rows if row.name == REVERTED}
        return [row.signature for row in rows if row.name == DEPOSIT and row.data["token_account"] == tokens] + [*gone]

    assert deposits() == [emptied]

    # When the chain's count shows that one is missing
    await indexer.start()
    assert not await indexer.holds_all(str(vault), 0)
    await indexer._reconciler.fill_gaps()
    await indexer._reconciler.fill_gaps()

    # Then it is read again, and what was made of the rest is taken back
    assert await indexer.holds_all(str(vault), 0)
    assert await indexer.gaps() == []
    assert deposits() == [emptied]
    assert [row.name for row in indexer.store.changes(0, 1_000) if row.signature == emptied] == [
        "TransactionReverted",
        "WalletFunded",
    ]
    await indexer.stop()


async def test_ten_thousand_holes_cost_a_bounded_round(stage: Stage, tmp_path: Path) -> None:
    vault, node = await stage.wallet("agent-1", funds=20 * USDC), Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    await indexer.check()
    now = int(time.time())
    holes = [
        TransactionHole(str(Signature(number.to_bytes(64))), 5, "no node serves it", now) for number in range(10_000)
    ]
    indexer.store.transaction_holes.put(holes, now - 10)

    for _ in range(3):
        node.calls.clear()
        await indexer.check()
        assert node.calls.count("getTransaction") == 50
    assert len(await indexer.transaction_holes()) == 1_000
    tried = "SELECT count(*) FROM chain_transaction_holes WHERE retry_at > ?"
    assert indexer.store._file.conn.execute(tried, [now - 9]).fetchone() == (150,)

    # Processing goes on next to them
    await stage.pay(vault, USDC)
    assert await indexer.catch_up(seen=0) == 1
    await indexer.stop()


async def test_hole_at_the_cursor_that_a_node_forgets_stops_nothing(stage: Stage, tmp_path: Path) -> None:
    vault, node = await stage.wallet("agent-1", funds=20 * USDC), Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    await indexer.check()
    bad = await stage.pay(vault, USDC)
    alter(node, bad, UNREADABLE["cut off"])
    await indexer.catch_up()
    assert indexer.store.cursor("program") == bad
    listed = indexer._chain.history

    async def forgetful(address: str, until: str | None, *, seen: int = 0) -> Any:
        if until == bad:
            raise RpcError(-32020, "Transaction not found")
        return await listed(address, until, seen=seen)

    indexer._chain.history = forgetful  # type: ignore[method-assign]
    good = await stage.pay(vault, USDC)
    await indexer.catch_up(seen=0)
    assert indexer.store.cursor("program") == good
    await indexer.stop()


async def test_transaction_that_a_list_left_out_is_found_after_it_is_final(stage: Stage, tmp_path: Path) -> None:
    vault, node = await stage.wallet("agent-1", funds=20 * USDC), Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    left_out, listed = await stage.pay(vault, USDC), await stage.pay(vault, USDC)
    node.change = lambda method, result: (
        [one for one in result if one["signature"] != left_out] if method == "getSignaturesForAddress" else result
    )
    await indexer.catch_up()
    indexer.store.finalize([listed])
    honest(node)

    assert await indexer._reconciler.store_late_transactions() == 1
    assert indexer.store.slot_of(left_out) is not None
    await indexer.stop()
