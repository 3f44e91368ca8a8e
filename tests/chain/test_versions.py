"""Nodes are asked for transactions of version 1, and for older ones if they do not know the value."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from solders.pubkey import Pubkey

from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.nodes import Nodes
from app.chain.records import SignatureStatus
from app.chain.transport import HttpTransport
from tests.support.version1 import UNSUPPORTED

_INVALID = {"code": -32602, "message": "Invalid params: maxSupportedTransactionVersion must be 0."}
_SIGNATURE, _UNKNOWN, _NEW = "5" * 88, "6" * 88, "7" * 88


class Node:
    """A node with one version-1 transaction, which knows versions up to `newest`, and batches or not."""

    def __init__(self, newest: int = 1, *, batches: bool = True) -> None:
        self.newest = newest
        self.batches = batches
        self.asked: list[int | None] = []
        """The version that each request named."""
        self.logs = ["Program log: done"]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": request["id"], **self._told(request["method"], *request["params"])}

    def _told(self, method: str, *params: Any) -> dict[str, Any]:
        if method != "getTransaction":
            return {"result": {"getSlot": 9, "getGenesisHash": "genesis"}[method]}
        signature, options = params
        version = options["maxSupportedTransactionVersion"]
        self.asked.append(version)
        if version > self.newest:
            return {"error": _INVALID}
        if signature == _UNKNOWN:
            return {"result": None}
        if version < 1 or signature == _NEW:
            return {"error": UNSUPPORTED}
        return {"result": {"slot": 9, "version": 1, "meta": {"err": None, "logMessages": self.logs}}}

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not isinstance(body, list):
            return web.json_response(self.answer(body))
        return web.json_response([self.answer(one) for one in body] if self.batches else {"error": "no batches"})


@asynccontextmanager
async def _serving(node: Node) -> AsyncIterator[HttpTransport]:
    app = web.Application()
    app.router.add_post("/", node.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aclosing(HttpTransport(f"http://127.0.0.1:{runner.addresses[0][1]}")) as transport:
            yield transport
    finally:
        await runner.cleanup()


def _client(transport: Any) -> ChainClient:
    return ChainClient(transport, program_id=Pubkey.default())


async def test_version_1_is_asked_for() -> None:
    node = Node()
    async with _serving(node) as transport:
        [found] = await _client(transport).transactions([_SIGNATURE])
    assert isinstance(found, dict)
    assert found["version"] == 1
    assert node.asked == [1]


async def test_node_that_rejects_version_1_is_asked_for_0_until_later(monkeypatch: pytest.MonkeyPatch) -> None:
    node, now = Node(newest=0), [1_000.0]
    monkeypatch.setattr("app.chain.transport.time.monotonic", lambda: now[0])
    async with _serving(node) as transport:
        chain = _client(transport)
        for _ in range(3):
            assert await chain.transactions([_UNKNOWN]) == [None]
        assert node.asked == [1, 0, 1, 0, 0]
        node.newest = 1
        now[0] += 601
        [found] = await chain.transactions([_SIGNATURE])
        assert isinstance(found, dict)
        assert node.asked == [1, 0, 1, 0, 0, 1]


async def test_single_false_rejection_of_version_1_is_not_remembered() -> None:
    node = Node(newest=0)
    async with _serving(node) as transport:
        chain = _client(transport)
        assert await chain.transactions([_UNKNOWN]) == [None]
        node.newest = 1
        assert isinstance((await chain.transactions([_SIGNATURE]))[0], dict)
        node.newest = 0
        assert await chain.transactions([_UNKNOWN]) == [None]
        assert node.asked == [1, 0, 1, 1, 0]


async def test_parameters_invalid_for_another_reason_are_not_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(newest=-1)
    async with _serving(node) as transport:
        chain = _client(transport)
        [refusal] = await chain.transactions([_SIGNATURE])
        assert isinstance(refusal, RpcError)
        assert refusal.message.startswith("Invalid params")
        with pytest.raises(RpcError, match="Invalid params"):
            await chain.transactions([_SIGNATURE, _SIGNATURE])
        monkeypatch.setattr(node, "newest", 1)
        assert isinstance((await chain.transactions([_SIGNATURE]))[0], dict)
    assert node.asked[:2] == [1, 0]
    assert node.asked[-1] == 1


async def test_log_that_looks_like_a_rejection_is_none() -> None:
    node = Node()
    node.logs = ['Program log: {"code": -32602}', "Program log: -32602"]
    async with _serving(node) as transport:
        assert await _client(transport).logs(_SIGNATURE) == node.logs
    assert node.asked == [1]


async def test_node_that_rejects_version_1_hides_it_from_no_other() -> None:
    old, good = Node(newest=0), Node()
    async with _serving(old) as first, _serving(good) as second:
        chain = _client(Nodes([("old", first), ("good", second)]))
        for _ in range(3):
            [found] = await chain.transactions([_SIGNATURE])
            assert isinstance(found, dict)


@pytest.mark.parametrize("batches", [True, False])
async def test_version_that_is_too_new_refuses_no_other_transaction(*, batches: bool) -> None:
    async with _serving(Node(batches=batches)) as transport:
        new, known, unknown = await _client(transport).transactions([_NEW, _SIGNATURE, _UNKNOWN])
    assert isinstance(new, RpcError)
    assert new.code == UNSUPPORTED["code"]
    assert isinstance(known, dict)
    assert unknown is None


async def test_failure_of_an_unreadable_transaction_is_not_believed() -> None:
    failed = SignatureStatus(9, {"InstructionError": [0, {"Custom": 6001}]}, "confirmed")
    async with _serving(Node()) as transport:
        chain = _client(transport)
        with pytest.raises(RpcError):
            await chain.confirms(_NEW, failed)
        with pytest.raises(ChainUnavailable):
            await chain.confirms(_SIGNATURE, failed)
