"""Several nodes of one chain: one that lags, one that lies, one that dies, one of another chain."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.hash import Hash
from solders.keypair import Keypair
from solders.signature import Signature

from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable, RateLimited, RpcError
from app.chain.identity import WrongChainError
from app.chain.nodes import Nodes
from app.chain.transport import AsgiTransport
from app.core.paths import program_file
from app.localnet import Localnet
from idl.codec import load
from tests.support.http import PATIENCE
from tests.support.service_world import GENESIS_HASHES, Clock, FlakyTransport, ServiceWorld, error_of

_PROGRAM = load().program_id
_BEHIND = 200


class Node(FlakyTransport):
    """A node that a test can let lag or die, and that counts what it was asked."""

    limited = 0

    def die(self) -> None:
        self.lose_requests = lambda _method: True

    def lag(self) -> None:
        """Answer as of long ago, when nothing of this test existed."""
        self.alter = self._as_of_long_ago

    def limit(self, limits: Callable[[str], bool]) -> None:
        """Answer 429 to the calls of methods for which `limits` returns True."""

        def refuse(method: str) -> None:
            if limits(method):
                self.limited += 1
                raise RateLimited(None)

        self.hold = refuse

    def claim(self, slot: int) -> None:
        """Claim to have seen a slot."""
        self.alter = lambda method, result: slot if method == "getSlot" else result

    @staticmethod
    def _as_of_long_ago(method: str, result: Any) -> Any:
        if method == "getSlot":
            return max(0, result - _BEHIND)
        if method in {"getTransaction", "getBlock"}:
            return None
        if isinstance(result, dict) and "context" in result:
            value = result["value"]
            nothing = [None] * len(value) if isinstance(value, list) else value
            return {"context": {"slot": max(0, result["context"]["slot"] - _BEHIND)}, "value": nothing}
        return result


def _node(localnet: Localnet) -> Node:
    return Node(AsgiTransport(localnet.rpc_app))


@asynccontextmanager
async def _client(*nodes: Node, expected: str | None = None) -> AsyncIterator[tuple[ChainClient, Nodes]]:
    several = Nodes([(f"node {number}", one) for number, one in enumerate(nodes)], expected)
    client = ChainClient(several, program_id=_PROGRAM)
    yield client, several
    await client.aclose()


async def _looked(several: Nodes) -> None:
    """Have the nodes asked how far they are."""
    several._looked = float("-inf")
    await several._look()
    if several._looking is not None:
        await several._looking


@pytest_asyncio.fixture(name="localnet")
async def _localnet() -> AsyncIterator[Localnet]:
    clock = Clock()
    async with Localnet.open(None, {_PROGRAM: program_file()}, clock) as opened:
        clock.ahead = 3_600  # long enough that a node can be far behind
        yield opened


async def test_reads_come_from_the_freshest_node(localnet: Localnet) -> None:
    slow, fresh = _node(localnet), _node(localnet)
    slow.lag()
    async with _client(slow, fresh) as (client, _):
        await client.account(_PROGRAM)
    assert "getMultipleAccounts" in fresh.methods
    assert "getMultipleAccounts" not in slow.methods


@pytest.mark.parametrize("part", ["meta", "blockTime", "innerInstructions", "preTokenBalances", "postTokenBalances"])
async def test_part_that_one_node_left_out_comes_from_another(localnet: Localnet, part: str) -> None:
    partial, whole = _node(localnet), _node(localnet)

    def leave_out(method: str, result: Any) -> Any:
        if method != "getTransaction":
            return result
        return {**result, part: None} if part in result else {**result, "meta": {**result["meta"], part: None}}

    async with _client(partial, whole) as (client, _):
        signature = await client.airdrop(Keypair().pubkey(), 10**9)
        assert (await client.confirm(signature, timeout=5)) is not None
        partial.alter = leave_out
        [found] = await client.transactions([signature])
        assert isinstance(found, dict)
        assert {**found, **found["meta"]}[part] is not None

        # If all leave it out, that is what is told
        whole.alter = leave_out
        [found] = await client.transactions([signature])
        assert isinstance(found, dict)
        assert found[part] is None if part in found else found["meta"][part] is None


async def test_absence_told_by_a_node_that_lags_is_not_believed(localnet: Localnet) -> None:
    fresh, slow = _node(localnet), _node(localnet)
    slow.lag()
    async with _client(fresh, slow) as (client, several):
        address = Keypair().pubkey()
        signature = await client.airdrop(address, 10**9)
        assert (await client.confirm(signature, timeout=5)) is not None
        assert (await client.account(address)) is not None
        assert (await client.account(Keypair().pubkey())) is None

        # When only the one that lags is left, nothing is said to be absent
        fresh.die()
        await _looked(several)
        asked: list[Callable[[], Awaitable[object]]] = [
            lambda: client.account(address),
            lambda: client.account(address, "finalized"),
            lambda: client.statuses([signature], search_history=True),
            lambda: client.transactions([signature]),
        ]
        for ask in asked:
            with pytest.raises(ChainUnavailable, match="the nodes that answer are stale"):
                await ask()

        # And once it has caught up, it is believed again
        slow.mend()
        await _looked(several)
        assert (await client.account(address)) is not None
        assert (await client.account(Keypair().pubkey())) is None
        assert (await client.transactions([signature]))[0] is not None


async def test_one_node_that_forgets_hides_nothing_that_another_has(localnet: Localnet) -> None:
    forgetful, other = _node(localnet), _node(localnet)
    async with _client(forgetful, other) as (client, _):
        address = Keypair().pubkey()
        signature = await client.airdrop(address, 10**9)
        assert (await client.confirm(signature, timeout=5)) is not None
        forgetful.alter = lambda method, result: None if method == "getTransaction" else result

        for _ in range(3):
            assert (await client.transactions([signature]))[0] is not None


async def test_slot_that_cannot_be_is_nobodys(localnet: Localnet) -> None:
    honest, liar = _node(localnet), _node(localnet)
    async with _client(honest, liar) as (client, several):
        await client.slot()
        liar.claim(10**15)
        await _looked(several)

        assert (await client.account(Keypair().pubkey())) is None
        assert (await client.slot()) < 10**15


async def test_transaction_is_sent_to_all_and_in_doubt_if_one_is_silent(localnet: Localnet) -> None:
    first, second = _node(localnet), _node(localnet)
    async with _client(first, second) as (client, several):
        await _looked(several)
        with pytest.raises(RpcError):
            await client.send(b"no transaction")
        assert [one.methods.count("sendTransaction") for one in (first, second)] == [1, 1]

        second.lose_answers = lambda method: method == "sendTransaction"
        with pytest.raises(ChainUnavailable, match="no node has acknowledged the transaction"):
            await client.send(b"no transaction")


async def test_node_that_hangs_is_passed_over_while_another_answers(
    localnet: Localnet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.chain.nodes._PATIENCE", 0.2)
    hung, other, go_on = _node(localnet), _node(localnet), asyncio.Event()
    async with _client(hung, other) as (client, several):
        await client.account(_PROGRAM)
        assert "getMultipleAccounts" in hung.methods

        # Given the node that was read from, which now takes requests and answers none
        hung.hold = lambda _method: go_on.wait()
        async with asyncio.timeout(PATIENCE):
            assert (await client.account(_PROGRAM)) is not None
        assert other.methods.count("getMultipleAccounts") == 1

        # But it is waited for if no other answers
        hung.hold = lambda method: go_on.wait() if method == "getMultipleAccounts" else None
        other.die()
        await _looked(several)
        asked = asyncio.create_task(client.account(_PROGRAM))
        assert await asyncio.wait({asked}, timeout=1) == (set(), {asked})
        go_on.set()
        assert (await asked) is not None


async def test_node_that_is_rate_limited_is_passed_over_while_another_answers(localnet: Localnet) -> None:
    limited, other = _node(localnet), _node(localnet)
    async with _client(limited, other) as (client, _):
        await client.account(_PROGRAM)
        limited.limit(lambda _method: True)
        began = time.monotonic()
        assert await client.account(_PROGRAM) is not None
        assert time.monotonic() - began < 0.2

        # Also if its "not found" can be trusted only with its slot, and only calls for that are limited
        limited.limit(lambda method: method == "getSlot")
        began = time.monotonic()
        assert await client.transactions([str(Signature.default())]) == [None]
        assert time.monotonic() - began < 1
        assert "getTransaction" in limited.methods

        # If all are limited, the call is repeated until one answers
        answers = itertools.count()
        for node in (limited, other):
            node.limit(lambda _method: next(answers) < 6)
        assert await client.account(_PROGRAM) is not None


@pytest.mark.parametrize("nodes", [1, 2])
async def test_provider_that_limits_a_third_of_the_calls_fails_no_payment(tmp_path: Path, nodes: int) -> None:
    chosen = random.Random(nodes)
    async with ServiceWorld(tmp_path) as world:
        wallet, payee = await world.wallet(), await world.payee()
        limited, *others = [_node(world.localnet) for _ in range(nodes)]
        limited.limit(lambda _method: chosen.random() < 0.3)
        transport = Nodes([("limited", limited), ("other", others[0])]) if others else limited
        world.line.through = transport
        paid = await asyncio.gather(*(world.pay(wallet, payee, "0.01") for _ in range(15)))
        assert [one.status_code for one in paid] == [200] * 15
        assert limited.limited > 0
        assert await world.balance(payee) == 150_000
        world.line.through = AsgiTransport(world.localnet.rpc_app)


async def test_node_of_another_chain_is_left_out(localnet: Localnet) -> None:
    own = str(localnet.chain.timeline.genesis_hash)
    async with Localnet.open(None, {}) as foreign:
        foreign.chain.timeline.genesis_hash = Hash.from_string(GENESIS_HASHES["devnet"])
        other, node = _node(foreign), _node(localnet)
        async with _client(other, node, expected=own) as (client, _):
            assert (await client.account(_PROGRAM)) is not None
        assert set(other.methods) <= {"getGenesisHash", "getSlot"}
        async with _client(_node(foreign), expected=own) as (client, _):
            with pytest.raises(WrongChainError):
                await client.slot()


async def test_service_pays_on_while_nodes_die_and_doubts_while_one_lags(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        world.clock.ahead += 3_600
        one, two = _node(world.localnet), _node(world.localnet)
        several = Nodes([("one", one), ("two", two)])
        world.line.through = several
        wallet, payee = await world.wallet(), await world.payee()
        for dead in (one, two):
            dead.die()
            paid = await world.pay(wallet, payee, "1")
            assert paid.json()["status"] == "confirmed", paid.text
            dead.mend()
            await _looked(several)

        # The one that is left does not know the payee's account yet: that is no reason to make or deny anything
        one.die()
        two.lag()
        await _looked(several)
        headers = {"Idempotency-Key": "in doubt"}
        error_of(await world.pay(wallet, str(Keypair().pubkey()), "1", headers=headers), 503, "chain_unavailable")
        one.mend()
        two.mend()
        await _looked(several)
        again = await world.pay(wallet, payee, "1", headers={"Idempotency-Key": "another"})
        assert again.json()["status"] == "confirmed", again.text
        assert await world.balance(payee) == 3_000_000
        await several.aclose()
