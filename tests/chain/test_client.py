"""What the client makes of a node's answers, good and bad."""

import asyncio
import base64
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.client import ChainClient
from app.chain.errors import BlockhashNotFound, ChainUnavailable, RpcError
from app.chain.records import Block
from app.chain.rpc import Rpc
from app.chain.transactions import sign
from app.chain.transport import AsgiTransport, HttpTransport
from tests.support.chain import USDC, Stage

PROGRAM = Pubkey.new_unique()
SIGNATURE = "5" * 88


class Node:
    """Answers calls as a test lays down, and records them."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, list[Any]]] = []

    async def __call__(self, body: bytes) -> bytes:
        asked = json.loads(body)
        told = [self._answer(one) for one in asked] if isinstance(asked, list) else self._answer(asked)
        return json.dumps(told).encode()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((request["method"], request["params"]))
        answer = self.answers[request["method"]]
        if callable(answer):
            answer = answer(request["params"])
        kind = "error" if isinstance(answer, dict) and "code" in answer else "result"
        return {"jsonrpc": "2.0", "id": request["id"], kind: answer}


def client(transport: Any, **options: Any) -> ChainClient:
    """Return a client over a transport."""
    return ChainClient(transport, program_id=PROGRAM, **options)


def statuses(found: list[Any]) -> dict[str, Any]:
    """Return an answer of `getSignatureStatuses`."""
    return {"context": {"slot": 9}, "value": found}


def blockhash_answer(number: int = 1) -> dict[str, Any]:
    """Return a node's answer to getLatestBlockhash."""
    value = {"blockhash": str(Hash(bytes([number]) * 32)), "lastValidBlockHeight": 150 + number}
    return {"context": {"slot": number}, "value": value}


def status(commitment: str = "confirmed", err: Any = None) -> dict[str, Any]:
    """Return a node's status of a transaction."""
    return {"slot": 7, "err": err, "confirmations": 1, "confirmationStatus": commitment}


async def test_blockhash_is_asked_once_for_many_transactions() -> None:
    node = Node(getLatestBlockhash=blockhash_answer())
    chain = client(node)
    found = await asyncio.gather(*(chain.blockhash() for _ in range(20)))
    assert len(node.calls) == 1
    assert {one.last_valid_block_height for one in found} == {151}


@pytest.mark.parametrize("number", [1e308, 7.0, 2**63, -1, True, "7", None])
async def test_what_is_no_slot_or_height_is_no_answer(number: Any) -> None:
    answer = blockhash_answer()
    answer["value"]["lastValidBlockHeight"] = number
    chain = client(
        Node(
            getLatestBlockhash=answer,
            getSlot=number,
            getBlock={"parentSlot": number, "signatures": [SIGNATURE]},
            getEpochInfo={"absoluteSlot": 1, "blockHeight": number},
            getSignatureStatuses={"context": {"slot": number}, "value": [None]},
            getSignaturesForAddress=[{"signature": SIGNATURE, "slot": number, "err": None}],
        )
    )

    for asked in (
        chain.blockhash(),
        chain.slot(),
        chain.finalized_block(1),
        chain.last_finalized_block(),
        chain.statuses([SIGNATURE]),
        chain.newest(str(PROGRAM), 1),
    ):
        with pytest.raises(ChainUnavailable):
            await asked


async def test_blockhash_is_asked_again_when_old_or_when_wanted_fresh() -> None:
    numbers = iter(range(1, 10))
    node = Node(getLatestBlockhash=lambda _: blockhash_answer(next(numbers)))
    aged = client(node, blockhash_max_age=0.0)
    assert (await aged.blockhash()).hash != (await aged.blockhash()).hash
    kept = client(node)
    first = await kept.blockhash()
    assert (await kept.blockhash()).hash == first.hash
    assert (await kept.blockhash(fresh=True)).hash != first.hash


async def test_simulation_gives_error_logs_and_only_own_return_data() -> None:
    value = {
        "err": {"InstructionError": [2, {"Custom": 6005}]},
        "logs": ["a"],
        "unitsConsumed": 123,
        "returnData": {"programId": str(PROGRAM), "data": ["AQI=", "base64"]},
    }
    node = Node(simulateTransaction={"context": {"slot": 9}, "value": value})
    found = await client(node).simulate(b"raw")
    assert (found.custom_error, found.failed_instruction, found.units, found.slot) == (6005, 2, 123, 9)
    assert found.return_data == b"\x01\x02"
    value["returnData"] = {"programId": str(Pubkey.new_unique()), "data": ["AQI=", "base64"]}
    assert (await client(node).simulate(b"raw")).return_data is None
    value["err"] = "AccountNotFound"
    assert (await client(node).simulate(b"raw")).custom_error is None


async def test_old_blockhash_is_an_error_of_its_own() -> None:
    value = {"err": "BlockhashNotFound", "logs": []}
    node = Node(
        simulateTransaction={"context": {"slot": 9}, "value": value},
        sendTransaction={"code": -32002, "message": "Transaction simulation failed: Blockhash not found"},
    )
    with pytest.raises(BlockhashNotFound):
        await client(node).simulate(b"raw")
    with pytest.raises(BlockhashNotFound):
        await client(node).send(b"raw")


async def test_refusal_by_the_node_carries_code_and_message() -> None:
    node = Node(sendTransaction={"code": -32602, "message": "invalid transaction", "data": {"x": 1}})
    with pytest.raises(RpcError) as caught:
        await client(node).send(b"raw")
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32602, "invalid transaction", {"x": 1})


async def test_text_of_a_refusal_controls_no_terminal() -> None:
    node = Node(sendTransaction={"code": -1, "message": "\x1b[2JFacts:\n  amount: 1.00 USDC" + "x" * 1_000})
    with pytest.raises(RpcError) as caught:
        await client(node).send(b"raw")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b"{}", b'{"id": 1}', b'{"id": 99, "result": 1}', b'{"id":1,"result":{"value":3}}'],
)
async def test_garbage_means_that_the_chain_is_unavailable(body: bytes) -> None:
    async def garbage(_: bytes) -> bytes:
        return body

    with pytest.raises(ChainUnavailable):
        await client(garbage).blockhash()


@asynccontextmanager
async def _answering(answer: bytes | None) -> AsyncIterator[ChainClient]:
    """Run a node that answers every request with these bytes, or never; yields a client of it."""
    over, handlers = asyncio.Event(), set[asyncio.Task[None] | None]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            # The whole request, because closing a connection with unread data resets it.
            head = await reader.readuntil(b"\r\n\r\n")
            [length] = re.findall(rb"content-length: ([0-9]+)", head.lower())
            await reader.readexactly(int(length))
            if answer is None:
                await over.wait()
            else:
                writer.write(answer)
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aclosing(client(HttpTransport(url, timeout=0.5))) as chain:
            yield chain
        over.set()
        # A connection that outlives its loop is a leak.
        await asyncio.gather(*filter(None, handlers))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000,
        b"no HTTP at all",
        b"",
    ],
)
async def test_node_that_does_not_answer_as_it_must_is_unavailable(answer: bytes | None) -> None:
    async with _answering(answer) as chain:
        with pytest.raises(ChainUnavailable):
            await chain.send(b"raw")


@asynccontextmanager
async def _limiting(limits: Sequence[str]) -> AsyncIterator[tuple[ChainClient, list[float]]]:
    """Run a node that answers 429 with each of these headers, then gives its slot; yields a client and the times."""
    times: list[float] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = re.findall(rb"content-length: ([0-9]+)", head.lower())
        request = json.loads(await reader.readexactly(int(length)))
        times.append(time.monotonic())
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": 7})
        status = "200 OK" if len(times) > len(limits) else f"429 Too Many Requests\r\n{limits[len(times) - 1]}"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aclosing(client(HttpTransport(url))) as chain:
            yield chain, times


@pytest.mark.parametrize(
    ("limit", "pause"),
    [("retry-after: 1", 1.0), ("retry-after: 0", 0.1), ("retry-after: soon", 0.1), ("x-other: 1", 0.1)],
)
async def test_rate_limited_call_is_repeated_after_the_pause_that_the_node_names(limit: str, pause: float) -> None:
    async with _limiting([limit, limit]) as (chain, times):
        assert await chain.slot() == 7
    first, second, third = times
    assert pause <= second - first < pause + 0.9
    assert pause <= third - second < pause + 0.9


async def test_rate_limit_beyond_the_time_of_a_call_is_unavailable_at_once() -> None:
    async with _limiting(["retry-after: 60"]) as (chain, times):
        with pytest.raises(ChainUnavailable, match="429"):
            await chain.slot()
    assert len(times) == 1


async def test_rate_limit_without_an_end_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.chain.rpc._PATIENCE", 0.6)
    async with _limiting(["x-other: 1"] * 9) as (chain, times):
        with pytest.raises(ChainUnavailable, match="429"):
            await chain.slot()
    assert 2 <= len(times) <= 3


async def test_node_that_refuses_connections_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    async with aclosing(client(HttpTransport(f"http://127.0.0.1:{port}"))) as chain:
        with pytest.raises(ChainUnavailable):
            await chain.send(b"raw")


@pytest.mark.parametrize(("around", "through_proxy"), [("", True), ("node.example", False)])
async def test_node_is_reached_through_the_proxy_of_the_environment(
    around: str, *, through_proxy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        monkeypatch.setenv("http_proxy", f"http://us:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}")
        monkeypatch.setenv("no_proxy", around)
        async with aclosing(client(HttpTransport("http://node.example:8899"))) as chain:
            with pytest.raises(ChainUnavailable):
                await chain.send(b"raw")
    assert [one.startswith(b"POST http://node.example:8899 HTTP/1.1\r\n") for one in heard] == [True] * through_proxy
    assert all(b"Proxy-Authorization: Basic dXM6c2VjcmV0" in one for one in heard)


async def test_application_that_raises_is_unavailable() -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("closed")

    with pytest.raises(ChainUnavailable):
        await client(AsgiTransport(broken)).last_finalized_block()


async def test_last_final_block_has_its_slot_and_its_height() -> None:
    node = Node(getEpochInfo={"absoluteSlot": 700, "blockHeight": 600, "epoch": 1, "slotIndex": 2})
    assert await client(node).last_finalized_block() == Block(slot=700, height=600)
    assert node.calls == [("getEpochInfo", [{"commitment": "finalized"}])]


async def test_all_who_wait_share_one_question() -> None:
    node = Node(getSignatureStatuses=lambda params: statuses([status() for _ in params[0]]))
    chain = client(node)
    found = await asyncio.gather(*(chain.confirm(f"{n:088}", timeout=5) for n in range(50)))
    assert all(one is not None and one.slot == 7 for one in found)
    assert len(node.calls) <= 2
    await chain.aclose()


async def test_confirmation_waits_through_processed_and_an_absent_node() -> None:
    answers = iter([statuses([None]), statuses([status("processed")]), {"code": -32005, "message": "behind"}])
    node = Node(getSignatureStatuses=lambda _: next(answers, statuses([status("finalized")])))
    chain = client(node)
    found = await chain.confirm(SIGNATURE, timeout=5)
    assert found is not None
    assert found.commitment == "finalized"
    assert len(node.calls) == 4
    await chain.aclose()


async def test_failed_transaction_is_confirmed_with_its_error() -> None:
    err, sent = {"InstructionError": [0, {"Custom": 6001}]}, sign([], payer=Keypair(), blockhash=Hash.default())
    landed = {"slot": 7, "meta": {"err": err}, "transaction": [base64.b64encode(sent.raw).decode(), "base64"]}
    node = Node(getSignatureStatuses=statuses([status(err=err)]), getTransaction=landed)
    chain = client(node)
    found = await chain.confirm(sent.signature, timeout=5)
    assert found is not None
    assert found.custom_error == 6001

    # Without the transaction's own word it is not known.
    for other in (None, landed | {"meta": {"err": None}}, landed | {"slot": 8}):
        node.answers["getTransaction"] = other
        assert await chain.confirm(sent.signature, timeout=0.05) is None
    await chain.aclose()


async def test_unknown_outcome_is_none_and_does_not_disturb_others() -> None:
    node = Node(getSignatureStatuses=statuses([None]))
    chain = client(node)
    impatient = asyncio.create_task(chain.confirm(SIGNATURE, timeout=0.02))
    patient = asyncio.create_task(chain.confirm(SIGNATURE, timeout=5))
    assert await impatient is None
    node.answers["getSignatureStatuses"] = statuses([status()])
    assert await patient is not None
    await chain.aclose()


async def test_many_accounts_are_asked_a_hundred_at_a_time() -> None:
    node = Node(getMultipleAccounts=lambda params: {"context": {"slot": 1}, "value": [None] * len(params[0])})
    assert await client(node).accounts([Pubkey.new_unique() for _ in range(250)]) == [None] * 250
    assert [len(params[0]) for _, params in node.calls] == [100, 100, 50]


async def test_node_without_batches_is_asked_one_by_one() -> None:
    calls: list[Any] = []

    async def single(body: bytes) -> bytes:
        request = json.loads(body)
        calls.append(request)
        if isinstance(request, list):
            return b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"no batches"},"id":null}'
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": request["params"][0]}).encode()

    rpc = Rpc(single)
    assert await rpc.batch([("echo", [n]) for n in range(5)]) == [0, 1, 2, 3, 4]
    assert await rpc.batch([("echo", [n]) for n in range(3)]) == [0, 1, 2]
    assert sum(isinstance(call, list) for call in calls) == 1


async def test_refused_call_is_an_error() -> None:
    async def refuse(body: bytes) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": json.loads(body)["id"], "error": {"code": 1}}).encode()

    with pytest.raises(RpcError):
        await Rpc(refuse).call("x", [])


async def test_history_is_read_over_all_pages() -> None:
    entries = [{"signature": f"s{n}", "slot": n, "err": None if n % 2 else {"x": 1}} for n in range(2500)][::-1]

    async def node(body: bytes) -> bytes:
        request = json.loads(body)
        options = request["params"][1]
        signatures = [one["signature"] for one in entries]
        start = signatures.index(options["before"]) + 1 if "before" in options else 0
        end = signatures.index(options["until"]) if "until" in options else len(entries)
        page = entries[start : min(end, start + options["limit"])]
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": page}).encode()

    chain = client(node)
    history = await chain.history("address", None)
    assert [one.slot for one in history] == list(range(2500))
    assert [one.failed for one in history[:2]] == [True, False]
    assert [one.slot for one in await chain.history("address", "s2400")] == list(range(2401, 2500))


async def test_page_of_a_node_that_does_not_know_the_page_before_is_an_error() -> None:
    page = [{"signature": f"s{n}", "slot": n, "err": None} for n in range(1000)]

    async def node(body: bytes) -> bytes:
        request = json.loads(body)
        known = [] if "before" in request["params"][1] else page
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": known}).encode()

    with pytest.raises(RpcError, match="the node lacks a transaction"):
        await client(node).history("address", None)


async def test_the_embedded_chain_settles_a_payment_over_http_and_in_process() -> None:
    async with Stage() as stage, stage.localnet.serving("127.0.0.1", 0) as (port, _):
        vault = await stage.wallet("agent-1", funds=10 * USDC)
        tokens = stage.addresses.token_account(stage.payee)
        transport = HttpTransport(f"http://127.0.0.1:{port}")
        remote = ChainClient(transport, program_id=stage.codec.program_id)
        signature = await stage.pay(vault, 3 * USDC)
        assert await remote.token_balance(tokens) == await stage.chain.token_balance(tokens) == 3 * USDC
        seen = await remote.statuses([signature], search_history=True)
        [found] = seen.found
        assert found is not None
        assert found.err is None
        assert found.slot <= seen.slot
        assert await remote.token_balance(Pubkey.new_unique()) is None
        await remote.aclose()
