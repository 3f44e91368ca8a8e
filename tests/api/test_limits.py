"""Limits of a request: the size of its body, and the time and room that a connection gets to send it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from solders.pubkey import Pubkey

from tests.http_support import PATIENCE, listening
from tests.world import World, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_largest_allowlist_of_addresses_fits(world: World) -> None:
    # 44 characters are the longest that an address takes.
    addresses = [str(Pubkey(b"\xff" * 28 + number.to_bytes(4))) for number in range(1_000)]
    body = {"name": "x" * 128, "allowedRecipients": addresses}
    assert 48_000 < len(json.dumps(body)) < world.settings.max_body_bytes == 65_536

    made = await world.ok("POST", "/v1/policies", body)

    assert sorted(made["allowed_recipients"]) == sorted(addresses)


@pytest.mark.parametrize("announced", [True, False])
async def test_body_above_the_limit_is_refused_however_it_is_sent(world: World, announced: bool) -> None:
    content = b" " * (world.settings.max_body_bytes + 1)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 1_000):
            yield content[start : start + 1_000]

    headers = {"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json"}
    sent = content if announced else chunks()
    response = await world.client.post("/v1/payments", content=sent, headers=headers)

    error_of(response, 413, "request_too_large")
    assert response.headers["connection"] == "close"


async def test_body_of_the_largest_size_is_read(world: World) -> None:
    content = b"{}".ljust(world.settings.max_body_bytes)
    headers = {"Authorization": f"Bearer {world.keys['admin']}", "Content-Type": "application/json"}

    error_of(await world.client.post("/v1/payments", content=content, headers=headers), 400, "invalid_request")


async def _answer(port: int, *parts: bytes) -> bytes:
    """What the service sends until it closes the connection."""
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


def _head(world: World, **headers: str) -> bytes:
    given = {"Host": "service", "Authorization": f"Bearer {world.keys['admin']}", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"POST /v1/payments HTTP/1.1\r\n{lines}\r\n".encode()


async def test_connection_that_sends_no_request_is_closed(world: World) -> None:
    async with listening(world, 0.2) as port:
        assert await _answer(port) == b""
        assert await _answer(port, b"GET /docs HTTP/1.1\r\nHost: service\r\n") == b""


async def test_body_that_does_not_come_is_answered_in_the_envelope(world: World) -> None:
    async with listening(world, 0.2) as port:
        head, _, body = (await _answer(port, _head(world, Content_Length="100"), b"{")).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"


async def test_body_that_nobody_waits_for_holds_no_connection(world: World) -> None:
    request = b"GET /docs/nothing HTTP/1.1\r\nHost: service\r\nContent-Length: 100\r\n\r\n"
    async with listening(world, 0.2) as port:
        assert (await _answer(port, request, b"{")).startswith(b"HTTP/1.1 404 ")


async def test_one_who_sends_a_body_that_is_too_large_gets_the_answer(world: World) -> None:
    """Closing a connection on which data arrives would have the client see a reset in place of the answer."""
    size = 8 * world.settings.max_body_bytes
    async with listening(world, PATIENCE) as port:
        answer = await _answer(port, _head(world, Content_Length=str(size)), b"x" * size)

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_huge_body_is_answered_before_it_is_sent(world: World) -> None:
    async with listening(world, PATIENCE) as port:
        answer = await _answer(port, _head(world, Content_Length="1000000000"), b"{")

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_headers_without_end_are_cut_off(world: World) -> None:
    async with listening(world, PATIENCE) as port:
        with contextlib.suppress(ConnectionError):
            assert await _answer(port, b"GET /docs HTTP/1.1\r\nA: ", *[b"x" * 1_000] * 1_000) == b""


async def test_idle_connection_stays_usable(world: World) -> None:
    ports = set()
    async with listening(world, 0.2) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            response = await client.get("/docs")
            assert response.status_code == 200
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
            await asyncio.sleep(0.4)

    assert len(ports) == 1
