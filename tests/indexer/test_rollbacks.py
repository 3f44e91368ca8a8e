"""What the indexer takes back: what a real fork dropped, and nothing on the word of a node that forgets or lies."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.chain.client import ChainClient
from indexer import Indexer
from tests.support.chain import USDC, Stage
from tests.support.forks import Fork
from tests.support.service_world import Clock

SLOT_SECONDS = 0.4
SKIPPED = {"code": -32007, "message": "Slot 1 was skipped, or missing due to ledger jump to recent snapshot"}
CLEANED_UP = {"code": -32001, "message": "Block 1 cleaned up, does not exist on node. First available block: 2"}


class _Lies:
    """A node that does not know the transactions `unknown`, and whose blocks lack those `without`.

    `errors` are its answers for blocks, and `parents` the parents that it gives them, by slot.
    """

    def __init__(self, stage: Stage) -> None:
        self._through = stage.transport
        self.errors: dict[int, Any] = {}
        self.unknown: set[str] = set()
        self.without: set[str] = set()
        self.parents: dict[int, int] = {}
        self.asked: list[tuple[str, Any]] = []

    async def __call__(self, body: bytes) -> bytes:
        request = json.loads(body)
        answer = json.loads(await self._through(body))
        if isinstance(request, dict):
            method, first = request["method"], (request["params"] or [None])[0]
            self.asked.append((method, first))
            if method == "getBlock" and first in self.errors:
                answer = {"jsonrpc": "2.0", "id": request["id"], "error": self.errors[first]}
            elif "result" in answer:
                answer["result"] = self._changed(method, first, answer["result"])
        return json.dumps(answer).encode()

    def _changed(self, method: str, first: Any, result: Any) -> Any:
        if method == "getSignatureStatuses":
            known = zip(first, result["value"], strict=True)
            return {**result, "value": [None if one in self.unknown else status for one, status in known]}
        if method == "getBlock":
            signatures = [one for one in result["signatures"] if one not in self.without]
            return {**result, "signatures": signatures, "parentSlot": self.parents.get(first, result["parentSlot"])}
        return result


class _Scene:
    """A stage whose clock the test moves, a payment that the indexer has stored, and what was before it."""

    def __init__(self, stage: Stage, clock: Clock, path: Path) -> None:
        self.stage, self.clock = stage, clock
        self.node = _Lies(stage)
        self.indexer = Indexer(transport=self.node, codec=stage.codec, db_path=path / "chain.db")

    async def begin(self) -> None:
        self.vault = await self.stage.wallet("agent-1", funds=20 * USDC)
        self.fork = await Fork.here(self.stage.localnet)
        # So that the payment's slot has one before it.
        self.clock.ahead += 50 * SLOT_SECONDS
        self.paid = await self.stage.pay(self.vault, USDC)
        await self.indexer.catch_up()
        slot = self.indexer.store.slot_of(self.paid)
        assert slot is not None
        self.slot = slot

    async def looks(self, count: int) -> list[int]:
        """Look this often, with more than the finality's and a look's slots between; return what was removed."""
        removed = []
        for _ in range(count):
            self.clock.ahead += 50 * SLOT_SECONDS
            removed.append(await self.indexer._reconciler.finalize())
            # The check after a round that decided nothing goes on after it.
            removed[-1] += await self.indexer._reconciler.finalize()
        return removed

    def names(self) -> list[str]:
        return [row.name for row in self.indexer.store.changes(0, 10_000)]


@pytest_asyncio.fixture(name="scene")
async def _scene(tmp_path: Path) -> AsyncIterator[_Scene]:
    clock = Clock()
    async with Stage(clock=clock) as stage:
        scene = _Scene(stage, clock, tmp_path)
        await scene.begin()
        yield scene
        await scene.indexer.stop()


async def test_dropped_transaction_is_taken_back_after_three_looks(scene: _Scene) -> None:
    await scene.fork.drop()

    assert await scene.looks(2) == [0, 0]
    assert "PaymentExecuted" in scene.names()
    assert await scene.looks(1) == [1]

    assert "PaymentExecuted" not in scene.names()
    [reverted] = [row for row in scene.indexer.store.changes(0, 10_000) if row.name == "TransactionReverted"]
    subject = {"name": "PaymentExecuted", "org": str(scene.stage.org), "vault": str(scene.vault)}
    assert (reverted.signature, reverted.data) == (scene.paid, {"events": [subject]})
    assert [*scene.indexer.store.unfinalized(2**40, 256)] == []


async def test_looks_in_quick_succession_are_one_look(scene: _Scene) -> None:
    await scene.fork.drop()
    scene.clock.ahead += 50 * SLOT_SECONDS

    assert [await scene.indexer._reconciler.finalize() for _ in range(6)] == [0] * 6

    assert ("getBlock", scene.slot) not in scene.node.asked


async def test_one_look_that_finds_it_starts_the_count_anew(scene: _Scene) -> None:
    scene.node.unknown.add(scene.paid)
    await scene.looks(2)
    assert scene.indexer._reconciler._missing
    scene.node.unknown.clear()
    await scene.looks(1)

    assert [*scene.indexer.store.unfinalized(2**40, 256)] == []
    assert not scene.indexer._reconciler._missing


@pytest.mark.parametrize("lie", ["status", "status and block", "status and skipped slot", "status and pruned block"])
async def test_nothing_is_taken_back_on_the_word_of_a_node_that_forgets(scene: _Scene, lie: str) -> None:
    scene.node.unknown.add(scene.paid)
    if lie == "status and block":
        scene.node.without.add(scene.paid)
    elif lie == "status and skipped slot":
        scene.node.errors[scene.slot] = SKIPPED
        scene.node.parents[scene.slot + 1] = scene.slot - 1
    elif lie == "status and pruned block":
        scene.node.errors[scene.slot] = CLEANED_UP

    assert await scene.looks(8) == [0] * 8

    assert "PaymentExecuted" in scene.names()
    assert ("getBlock", scene.slot) in scene.node.asked
    assert [*scene.indexer.store.unfinalized(2**40, 256)] == [scene.paid]
    scene.node.unknown.clear()
    await scene.looks(1)
    assert [*scene.indexer.store.unfinalized(2**40, 256)] == []


@pytest.mark.parametrize(("parent", "removed"), [(-1, 1), (0, 0), (1, 0)])
async def test_skipped_slot_counts_only_if_the_chain_goes_on_without_it(
    scene: _Scene, parent: int, removed: int
) -> None:
    await scene.fork.drop()
    scene.node.errors |= {scene.slot: SKIPPED, scene.slot + 1: {**SKIPPED, "code": -32009}}
    scene.node.parents[scene.slot + 2] = scene.slot + parent

    assert sum(await scene.looks(4)) == removed


async def test_block_that_the_node_cannot_show_leaves_it_open_until_it_can(scene: _Scene) -> None:
    await scene.fork.drop()
    scene.node.errors[scene.slot] = CLEANED_UP
    assert await scene.looks(5) == [0] * 5

    scene.node.errors.clear()

    assert await scene.looks(1) == [1]


async def test_transaction_that_landed_in_another_slot_is_read_again(scene: _Scene) -> None:
    # Given a payment that was dropped, and landed again later with another number
    [raw] = await scene.stage.chain.transactions([scene.paid])
    assert isinstance(raw, dict)
    await scene.fork.drop()
    scene.clock.ahead += 5 * SLOT_SECONDS
    await scene.stage.chain.blockhash(fresh=True)
    other = await scene.stage.pay(scene.vault, 2 * USDC)
    await scene.stage.chain.confirm(await scene.stage.chain.send(base64.b64decode(raw["transaction"][0])), timeout=5)

    assert sum(await scene.looks(4)) == 1
    await scene.indexer.catch_up()

    stored = {row.signature: row for row in scene.indexer.store.changes(0, 10_000) if row.name == "PaymentExecuted"}
    first, second = stored[other], stored[scene.paid]
    assert second.slot >= first.slot > scene.slot
    assert (first.data["balance"], second.data["balance"]) == (18 * USDC, 17 * USDC)
    assert second.data["sequence"] == first.data["sequence"] + 1
    assert scene.indexer.store.streams_with_gaps() == []


async def test_client_reads_blocks_and_skipped_slots(scene: _Scene) -> None:
    scene.clock.ahead += 50 * SLOT_SECONDS
    chain = ChainClient(scene.node, program_id=scene.stage.codec.program_id)
    block = await chain.finalized_block(scene.slot)
    assert block is not None
    assert block.parent == scene.slot - 1
    assert scene.paid in block.signatures
    scene.node.errors[scene.slot] = SKIPPED
    assert await chain.finalized_block(scene.slot) is None
