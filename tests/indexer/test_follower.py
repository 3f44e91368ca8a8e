"""The indexer against the embedded chain, and against nodes that misbehave."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.transport import HttpTransport
from indexer import EventStore
from indexer.store import DEPOSIT
from tests.support.chain import USDC, Stage, altered
from tests.support.indexer import Altered, indexer_of


@pytest_asyncio.fixture(name="stage")
async def _stage() -> AsyncIterator[Stage]:
    async with Stage() as stage:
        yield stage


def names(store: EventStore) -> list[str]:
    """Return the names of all stored rows."""
    return [row.name for row in store.changes(0, 10_000)]


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def test_history_is_stored_oldest_first_and_once(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    await stage.pay(vault, USDC)
    indexer = indexer_of(stage, tmp_path)
    stored = await indexer.catch_up()
    found = [name for name in names(indexer.store) if name != DEPOSIT]
    assert found == [
        "OrgInitialized",
        *["PolicyCreated"] * 4,
        "WalletCreated",
        "WalletFunded",
        "PaymentExecuted",
    ]
    assert stored == len(found)
    assert await indexer.catch_up() == 0
    await stage.pay(vault, USDC)
    assert await indexer.catch_up() == 1
    assert indexer.store.streams_with_gaps() == []
    await indexer.stop()


async def test_indexer_that_follows_no_more_does_not_count_as_failing(stage: Stage, tmp_path: Path) -> None:
    async def refuse(_body: bytes) -> bytes:
        raise ChainUnavailable("not there")

    indexer = indexer_of(stage, tmp_path, refuse, poll_interval=0.05)
    await indexer.start()
    await until(lambda: indexer.failing_for > 0)
    await indexer.stop()
    assert indexer.failing_for == 0


async def test_failed_transactions_leave_no_row(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    signature = await stage.submit(stage.payment(vault, 900 * USDC), signers=[stage.operator])
    status = await stage.chain.confirm(signature, timeout=5)
    assert status is not None
    assert status.custom_error is not None
    indexer = indexer_of(stage, tmp_path)
    await indexer.catch_up()
    assert "PaymentExecuted" not in names(indexer.store)
    indexer.wake(signature)
    await indexer.stop()


async def test_hinted_payment_is_stored_at_once_and_subscribers_hear_of_it(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    indexer = indexer_of(stage, tmp_path, poll_interval=3600)
    await indexer.catch_up()
    heard = asyncio.Event()
    indexer.subscribe(lambda _newest: heard.set())
    await indexer.start()
    await until(lambda: not indexer._woken.is_set())
    heard.clear()
    signature = await stage.pay(vault, USDC)
    indexer.wake(signature)
    await asyncio.wait_for(heard.wait(), 2)
    assert [row.name for row in indexer.store.changes(0, 100) if row.signature == signature] == ["PaymentExecuted"]
    await indexer.stop()


async def test_subscribers_hear_of_what_another_process_stores(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(body: bytes) -> bytes:
        asked.set()
        await answer.wait()
        return await stage.transport(body)

    other = indexer_of(stage, tmp_path)
    await other.catch_up()
    indexer = indexer_of(stage, tmp_path, slow, poll_interval=3600)
    answer.set()
    await indexer.catch_up()
    asked.clear()
    answer.clear()
    heard = asyncio.Event()
    indexer.subscribe(lambda _newest: heard.set())

    await stage.pay(vault, USDC)
    await indexer.start()
    await asyncio.wait_for(asked.wait(), 2)
    assert await other.catch_up() == 1
    answer.set()

    await asyncio.wait_for(heard.wait(), 2)
    await indexer.stop()
    await other.stop()


async def test_subscribers_hear_of_a_corrected_balance(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    indexer = indexer_of(stage, tmp_path)
    await indexer.catch_up()
    await indexer.check()
    tokens = str(stage.addresses.token_account(vault))
    heard: list[str] = []
    indexer.subscribe(lambda _newest: heard.append(names(indexer.store)[-1]))

    indexer.store.mark_suspect(tokens)
    await indexer.check()
    await indexer.check()

    assert heard == ["BalanceObserved"]
    assert indexer.store.changes(0, 100)[-1].data["balance"] == 20 * USDC
    await indexer.stop()


async def test_hint_that_the_node_cannot_serve_yet_is_tried_again(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    node = Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node, poll_interval=3600)
    await indexer.catch_up()
    refusals = iter([None, None, None])
    node.change = lambda method, result: next(refusals, result) if method == "getTransaction" else result
    await indexer.start()
    indexer.wake(await stage.pay(vault, USDC))
    await until(lambda: "PaymentExecuted" in names(indexer.store))
    await indexer.stop()


async def test_cursor_does_not_pass_what_the_node_cannot_serve(stage: Stage, tmp_path: Path) -> None:
    await stage.wallet("agent-1")
    node = Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    node.change = lambda method, result: None if method == "getTransaction" else result
    assert await indexer.catch_up() == 0
    node.change = lambda method, result: result  # noqa: ARG005
    assert await indexer.catch_up() > 0
    assert "WalletCreated" in names(indexer.store)
    await indexer.stop()


async def test_node_that_goes_away_is_waited_for(stage: Stage, tmp_path: Path) -> None:
    away = True

    async def flaky(body: bytes) -> bytes:
        if away:
            raise OSError("refused")
        return await stage.transport(body)

    indexer = indexer_of(stage, tmp_path, flaky, poll_interval=0.01)
    await indexer.start()
    await stage.wallet("agent-1")
    away = False
    await until(lambda: "WalletCreated" in names(indexer.store))
    await indexer.stop()


async def test_direct_deposits_are_found_and_the_chains_balance_wins(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    indexer = indexer_of(stage, tmp_path)
    await indexer.catch_up()
    signature = await stage.deposit(stage.addresses.token_account(vault), 5 * USDC)
    await indexer.check()
    deposits = {row.signature: row.data for row in indexer.store.changes(0, 100) if row.name == DEPOSIT}
    assert deposits[signature]["vault"] == str(vault)
    assert (deposits[signature]["amount"], deposits[signature]["balance"]) == (5 * USDC, 25 * USDC)
    assert sorted(one["amount"] for one in deposits.values()) == [5 * USDC, 1000 * USDC]
    await indexer.check()
    assert len([row for row in indexer.store.changes(0, 100) if row.name == DEPOSIT]) == 2
    assert indexer.store.accounts.suspects() == []
    await indexer.stop()


async def test_lost_event_is_fetched_by_its_gap(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    lost = await stage.pay(vault, USDC)
    await stage.pay(vault, 2 * USDC)
    node = Altered(stage.transport)
    hidden = True

    def hide(method: str, result: Any) -> Any:
        if hidden and method == "getSignaturesForAddress":
            return [one for one in result if one["signature"] != lost]
        return result

    node.change = hide
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    await indexer._reconciler.fill_gaps()
    assert indexer.store.streams_with_gaps() == [str(vault)]
    hidden = False
    await indexer._reconciler.fill_gaps()
    assert indexer.store.streams_with_gaps() == []
    await indexer.stop()


@pytest.mark.parametrize("known_before", [False, True])
async def test_nothing_is_reverted_on_the_word_of_a_node_without_history(
    stage: Stage, tmp_path: Path, *, known_before: bool
) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    node = Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    if known_before:
        indexer.store.finalize([*indexer.store.unfinalized(2**40, 256)])
    await stage.pay(vault, USDC)
    await indexer.catch_up()
    before = names(indexer.store)

    def forget(method: str, result: Any) -> Any:
        if method == "getSlot":
            return 2**40
        if method == "getSignatureStatuses":
            return {"context": {"slot": 2**40}, "value": [None for _ in result["value"]]}
        return result

    node.change = forget
    assert await indexer._reconciler.finalize() == 0
    assert names(indexer.store) == before
    await indexer.stop()


async def test_deposit_waits_for_a_node_that_serves_it(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    tokens = stage.addresses.token_account(vault)
    node = Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    await indexer.check()
    await stage.deposit(tokens, 5 * USDC)
    node.change = lambda method, result: None if method == "getTransaction" else result

    await indexer.check()
    assert indexer.store.accounts.suspects() == [str(tokens)]

    node.change = lambda method, result: result  # noqa: ARG005
    await indexer.check()
    assert indexer.store.accounts.suspects() == []
    deposits = [row.data for row in indexer.store.changes(0, 100) if row.name == DEPOSIT]
    assert (deposits[-1]["amount"], deposits[-1]["balance"]) == (5 * USDC, 25 * USDC)
    await indexer.stop()


async def test_all_is_held_once_the_account_counts_no_more_events(stage: Stage, tmp_path: Path) -> None:
    org, vault = str(stage.org), str(await stage.wallet("agent-1", funds=20 * USDC))
    slot = await stage.chain.call("getSlot", [{"commitment": "confirmed"}])
    node = Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    assert await indexer.holds_all(vault, slot)

    paid = await stage.pay(stage.addresses.vault(stage.org, "agent-1"), USDC)
    node.change = lambda method, result: (
        [one for one in result if one["signature"] != paid] if method == "getSignaturesForAddress" else result
    )
    assert not await indexer.holds_all(vault, slot)
    assert await indexer.holds_all(org, slot)

    node.change = lambda method, result: None if method == "getTransaction" else result
    assert not await indexer.holds_all(vault, slot)
    with pytest.raises(RpcError, match="does not serve"):
        await indexer.catch_up(seen=slot)
    assert await indexer.catch_up() == 0

    node.change = lambda method, result: result  # noqa: ARG005
    assert await indexer.holds_all(vault, slot)
    assert not await indexer.holds_all(vault, slot + 10_000)
    await indexer.stop()


async def test_account_that_was_not_made_holds_nothing_also_with_lamports(stage: Stage, tmp_path: Path) -> None:
    address = stage.addresses.vault(stage.org, "never made")
    indexer = indexer_of(stage, tmp_path)
    assert await indexer.holds_all(str(address), 0)

    airdrop = await stage.chain.airdrop(address, 10**9)
    assert await stage.chain.confirm(airdrop, timeout=5)

    assert await indexer.holds_all(str(address), 0)
    await indexer.stop()


async def test_unknown_transactions_do_not_keep_others_from_becoming_final(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.reconcile.STATUS_BATCH", 3)
    await stage.wallet("agent-1", funds=20 * USDC)
    node = Altered(stage.transport)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    old = [*indexer.store.unfinalized(2**40, 4)]

    def forget(method: str, result: Any) -> Any:
        if method == "getSlot":
            return 2**40
        if method == "getSignatureStatuses":
            asked = node.params[-1][0]
            final = {"err": None, "confirmationStatus": "finalized"}
            known = [None if one in old else {**final, "slot": indexer.store.slot_of(one)} for one in asked]
            return {"context": {"slot": 2**40}, "value": known}
        return result

    node.change = forget
    for _ in range(4):
        assert await indexer._reconciler.finalize() == 0
    assert [*indexer.store.unfinalized(2**40, 256)] == old

    old.clear()
    for _ in range(2):
        assert await indexer._reconciler.finalize() == 0
    assert [*indexer.store.unfinalized(2**40, 256)] == []
    await indexer.stop()


async def test_late_transaction_behind_the_cursor_is_stored(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    late = await stage.pay(vault, USDC)
    await stage.pay(vault, USDC)
    node = Altered(stage.transport)
    node.change = lambda method, result: (
        [one for one in result if one["signature"] != late] if method == "getSignaturesForAddress" else result
    )
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    node.change = lambda method, result: result  # noqa: ARG005
    assert await indexer.catch_up() == 0
    assert await indexer._reconciler.store_late_transactions() == 1
    await indexer.stop()


class _Pruned:
    """A node that has forgotten the transactions up to a slot, and refuses to list what came after one of them."""

    def __init__(self, transport: Callable[[bytes], Awaitable[bytes]], *, refuses: bool) -> None:
        self.transport = transport
        self.refuses = refuses
        self.gone: set[str] = set()

    async def __call__(self, body: bytes) -> bytes:
        request = json.loads(body)
        if isinstance(request, dict) and request["method"] == "getSignaturesForAddress":
            options = request["params"][1]
            if options.get("until") in self.gone:
                if self.refuses:
                    error = {"code": -32020, "message": "Transaction not found"}
                    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()
                options.pop("until")
            body = json.dumps(request).encode()
        methods = [one["method"] for one in (request if isinstance(request, list) else [request])]
        answer = await self.transport(body)

        def forget(method: str, result: Any) -> Any:
            if method == "getSignaturesForAddress":
                return [one for one in result if one["signature"] not in self.gone]
            if method == "getSignatureStatuses":
                asked = request["params"][0]
                known = zip(asked, result["value"], strict=True)
                return {**result, "value": [None if one in self.gone else status for one, status in known]}
            return result

        return altered(methods, answer, forget)


@pytest.mark.parametrize("refuses", [True, False])
async def test_indexer_goes_on_after_what_the_node_has_pruned(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, refuses: bool
) -> None:
    monkeypatch.setattr("indexer.follower._PRUNED_AFTER", -1)
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    node = _Pruned(stage.transport, refuses=refuses)
    indexer = indexer_of(stage, tmp_path, node)
    await indexer.catch_up()
    cursor = indexer.store.cursor("program")
    lost = await stage.pay(vault, USDC)
    kept = await stage.pay(vault, 2 * USDC)

    # Given a node that has forgotten the last stored transaction and the next one
    stored = {row.signature for row in indexer.store.changes(0, 1000)}
    node.gone = {*stored, str(cursor), lost}
    await indexer.catch_up()

    # Then what it still has is stored, and the hole has a name until a node fills it
    assert indexer.store.cursor("program") == kept
    [hole] = indexer.store.holes()
    assert hole.after == cursor
    assert hole.after_slot <= hole.before_slot
    await indexer._reconciler.fill_holes()
    assert indexer.store.holes() == [hole]
    node.gone = set()
    await indexer._reconciler.fill_holes()
    assert indexer.store.holes() == []
    assert indexer.store.slot_of(lost) is not None
    assert indexer.store.streams_with_gaps() == []
    await indexer.stop()


async def test_log_notifications_save_the_wait_for_the_next_poll(stage: Stage, tmp_path: Path) -> None:
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    async with stage.localnet.serving("127.0.0.1", 0) as (port, ws_port):
        transport = HttpTransport(f"http://127.0.0.1:{port}")
        indexer = indexer_of(stage, tmp_path, transport, poll_interval=3600, ws_urls=[f"ws://127.0.0.1:{ws_port}"])
        await indexer.start()
        await until(lambda: "WalletFunded" in names(indexer.store))
        deadline = time.monotonic() + 10
        while "PaymentExecuted" not in names(indexer.store):
            # The subscription may not be open yet; each further payment is another chance of a notification.
            assert time.monotonic() < deadline
            await stage.pay(vault, USDC)
            await asyncio.sleep(0.05)
        assert indexer.hears
    await until(lambda: not indexer.hears)
    await indexer.stop()
    await transport.aclose()


async def test_indexer_runs_alone(stage: Stage, tmp_path: Path) -> None:
    await stage.wallet("agent-1")
    async with stage.localnet.serving("127.0.0.1", 0) as (port, _):
        command = [sys.executable, "-m", "indexer", "--rpc-url", f"http://127.0.0.1:{port}"]
        command += ["--db", str(tmp_path / "alone.db"), "--once"]
        first, second = [await asyncio.to_thread(_run, command) for _ in range(2)]
    down = await asyncio.to_thread(_run, command)
    assert (first.returncode, first.stdout) == (0, "6 rows stored, 6 in all\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, "0 rows stored, 6 in all\n"), second.stderr
    assert (down.returncode, down.stdout) == (1, "")
    assert down.stderr == "Error: the node does not answer: ClientConnectorError\n"


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
