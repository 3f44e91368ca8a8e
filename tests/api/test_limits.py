"""Limits of a request: the size of its body, and the time and room that a connection gets to send it."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from solders.pubkey import Pubkey

from tests.support.http import PATIENCE, listening
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Seconds that a connection may last where something other than time should end it.
_LONG = 6 * PATIENCE


async def test_largest_allowlist_of_addresses_fits(world: ServiceWorld) -> None:
    # An address has at most 44 characters.
    numbered = (Pubkey(b"\xff" * 28 + number.to_bytes(4)) for number in itertools.count())
    addresses = [str(one) for one in itertools.islice(filter(Pubkey.is_on_curve, numbered), 1_000)]
    body = {"name": "x" * 128, "allowedRecipients": addresses}
    assert 48_000 < len(json.dumps(body)) < world.settings.max_body_bytes == 65_536

    made = await world.ok("POST", "/v1/policies", body)

    assert sorted(made["allowed_recipients"]) == sorted(addresses)


@pytest.mark.proves("error request_too_large", "Limits: Body")
@pytest.mark.parametrize("announced", [True, False])
async def test_body_above_the_limit_is_refused_however_it_is_sent(world: ServiceWorld, announced: bool) -> None:
    content = b" " * (world.settings.max_body_bytes + 1)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 1_000):
            yield content[start : start + 1_000]

    headers = {"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json"}
    sent = content if announced else chunks()
    response = await world.client.post("/v1/payments", content=sent, headers=headers)

    error_of(response, 413, "request_too_large")
    assert response.headers["connection"] == "close"


@pytest.mark.proves("Limits: Body")
async def test_body_of_the_largest_size_is_read(world: ServiceWorld) -> None:
    content = b"{}".ljust(world.settings.max_body_bytes)
    headers = {"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json"}

    error_of(await world.client.post("/v1/payments", content=content, headers=headers), 400, "invalid_request")


async def _answer(port: int, *parts: bytes) -> bytes:
    """Return what the service sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def _parsed(answer: bytes) -> httpx.Response:
    """Return the only response in an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def _head(world: ServiceWorld, **headers: str) -> bytes:
    given = {"Host": "localhost", "Authorization": f"Bearer {world.keys['admin']}", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"POST /v1/payments HTTP/1.1\r\n{lines}\r\n".encode()


async def test_connection_that_sends_no_request_is_closed(world: ServiceWorld) -> None:
    async with listening(world, 0.2) as port:
        assert await _answer(port) == b""
        assert await _answer(port, b"GET /docs HTTP/1.1\r\nHost: localhost\r\n") == b""


@pytest.mark.proves("error request_timeout", "Limits: Arrival of a request's head, and then of its body")
async def test_overdue_body_is_answered_in_the_envelope(world: ServiceWorld) -> None:
    async with listening(world, 0.2) as port:
        head, _, body = (await _answer(port, _head(world, Content_Length="100"), b"{")).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"


async def test_body_that_nobody_waits_for_holds_no_connection(world: ServiceWorld) -> None:
    request = b"GET /docs/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    async with listening(world, 0.2) as port:
        assert (await _answer(port, request, b"{")).startswith(b"HTTP/1.1 404 ")


async def test_sender_of_a_body_that_is_too_large_gets_the_answer(world: ServiceWorld) -> None:
    """If the connection were closed while data arrives, the client would see a reset instead of the answer."""
    size = 8 * world.settings.max_body_bytes
    async with listening(world, PATIENCE) as port:
        answer = await _answer(port, _head(world, Content_Length=str(size)), b"x" * size)

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_huge_body_is_answered_before_it_is_sent(world: ServiceWorld) -> None:
    async with listening(world, PATIENCE) as port:
        answer = await _answer(port, _head(world, Content_Length="1000000000"), b"{")

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_headers_without_end_are_cut_off(world: ServiceWorld) -> None:
    async with listening(world, _LONG) as port:
        with contextlib.suppress(ConnectionError):
            await _answer(port, b"GET /docs HTTP/1.1\r\nA: ", *[b"x" * 1_000] * 1_000)


@pytest.mark.proves("Limits: Request line and headers")
async def test_head_of_64_kb_is_read_and_one_that_goes_on_is_refused(world: ServiceWorld) -> None:
    head, end = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nA: ", b"\r\n\r\n"
    async with listening(world, PATIENCE) as port:
        largest = await _answer(port, head.ljust(65_536 - len(end), b"x") + end)
        larger = _parsed(await _answer(port, head.ljust(65_537, b"x")))

    assert largest.startswith(b"HTTP/1.1 200 ")
    assert "65,536 bytes" in error_of(larger, 400, "invalid_request")["message"]


#: What a client can send without end inside a malformed body.
_NO_BODY = {
    "fields after the last chunk": (b"1\r\na\r\n0\r\n", b"a: b\r\n" * 200),
    "one such field": (b"1\r\na\r\n0\r\na: ", b"x" * 1_000),
    "extension of a chunk": (b"1;", b"x" * 1_000),
}


@pytest.mark.parametrize("kind", _NO_BODY)
async def test_what_is_neither_head_nor_body_is_cut_off(world: ServiceWorld, kind: str) -> None:
    begin, more = _NO_BODY[kind]
    requests = [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        _head(world, Transfer_Encoding="chunked"),
    ]
    async with listening(world, _LONG) as port:
        for request in requests:
            with contextlib.suppress(ConnectionError):
                await _answer(port, request, begin, *[more] * 1_000)


async def test_body_that_turns_malformed_is_answered_once_in_the_envelope(world: ServiceWorld) -> None:
    async with listening(world, _LONG) as port:
        for broken in (b"nonsense\r\n", b"0\r\na: ".ljust(70_000, b"x")):
            answer = _parsed(await _answer(port, _head(world, Transfer_Encoding="chunked"), b"2\r\n{}\r\n", broken))
            error = error_of(answer, 400, "invalid_request")
            assert error["message"] == "The body ended early. Send the request again."


async def test_body_in_chunks_of_a_byte_is_read(world: ServiceWorld) -> None:
    content = b"{}".ljust(world.settings.max_body_bytes)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\nChecksum: x\r\n\r\n"
    head = _head(world, Transfer_Encoding="chunked", Connection="close")
    async with listening(world, PATIENCE) as port:
        answer = _parsed(await _answer(port, head, chunks))

    assert "is required" in error_of(answer, 400, "invalid_request")["message"]


async def test_bodies_of_the_largest_size_fit_one_after_another_without_waiting(world: ServiceWorld) -> None:
    content = b"{}".ljust(world.settings.max_body_bytes)
    requests = [
        _head(world, Content_Length=str(len(content)), Connection=connection) + content
        for connection in ("keep-alive", "keep-alive", "close")
    ]
    async with listening(world, PATIENCE) as port:
        answer = await _answer(port, b"".join(requests))

    assert answer.count(b"HTTP/1.1 400 ") == answer.count(b"is required") == len(requests)


async def test_body_that_nobody_reads_is_cut_off(world: ServiceWorld) -> None:
    request = b"POST /v1/payments HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    async with listening(world, _LONG) as port:
        with contextlib.suppress(ConnectionError):
            await _answer(port, request, *[b"x" * 1_000] * 1_000)


async def test_refused_request_with_its_body_leaves_the_connection_usable(world: ServiceWorld) -> None:
    content = b"{}".ljust(world.settings.max_body_bytes)
    async with listening(world, PATIENCE) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        ports = set()
        for _ in range(2):
            response = await client.post("/v1/payments", content=content)
            error_of(response, 401, "authentication_failed")
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))

    assert len(ports) == 1


async def test_field_after_the_body_is_no_header(world: ServiceWorld) -> None:
    head = b"GET /v1/wallets HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    late = f"0\r\nAuthorization: Bearer {world.keys['admin']}\r\n\r\n".encode()
    async with listening(world, PATIENCE) as port:
        error_of(_parsed(await _answer(port, head + late)), 401, "authentication_failed")


async def test_upgrade_to_another_protocol_is_ignored(world: ServiceWorld) -> None:
    wish = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "a" * 24,
    }
    async with listening(world, PATIENCE) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        error_of(await client.get("/v1/wallets", headers=wish), 401, "authentication_failed")


_NO_REQUEST = [
    "GET /v1/walléts HTTP/1.1\r\n\r\n".encode(),
    b"GET /v1/wallets?cursor=\xff HTTP/1.1\r\n\r\n",
    b"CONNECT service:80 HTTP/1.1\r\n\r\n",
    b"GET http://service HTTP/1.1\r\n\r\n",
    b"BREW /v1/wallets HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01",
]


@pytest.mark.proves("error invalid_request")
@pytest.mark.parametrize("sent", _NO_REQUEST)
async def test_malformed_request_is_answered_in_the_envelope(world: ServiceWorld, sent: bytes) -> None:
    async with listening(world, PATIENCE) as port:
        answer = _parsed(await _answer(port, sent))

    error_of(answer, 400, "invalid_request")
    assert answer.headers["connection"] == "close"


async def test_malformed_request_is_counted(world: ServiceWorld) -> None:
    name = b'agent_vault_http_requests_total{route="unknown",status="4xx"} '
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    async def count(port: int) -> float:
        lines = (await _answer(port, asked)).splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    async with listening(world, PATIENCE) as port:
        before = await count(port)
        for sent in _NO_REQUEST[:2]:
            await _answer(port, sent)
        assert await count(port) - before == 2


async def test_request_is_answered_when_a_malformed_one_follows(world: ServiceWorld) -> None:
    async with listening(world, PATIENCE) as port:
        answer = await _answer(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + _NO_REQUEST[0])

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"status":"ok"}')


async def test_idle_connection_stays_usable(world: ServiceWorld) -> None:
    ports = set()
    async with listening(world, 0.2) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            response = await client.get("/docs")
            assert response.status_code == 200
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
            # One that was opened after it and sends nothing has been open for too long.
            assert await _answer(port) == b""

    assert len(ports) == 1
