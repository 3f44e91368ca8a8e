"""Limits of a request: the size of its body, and the time and room that a connection gets to send it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from solders.pubkey import Pubkey

from app.main import create_app
from app.serve import protocol
from tests.world import World, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PATIENCE = 10.0


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


@contextlib.asynccontextmanager
async def _listening(world: World, seconds: float) -> AsyncIterator[int]:
    """The world's service behind a socket; requests must arrive within `seconds`."""
    settings = world.settings.model_copy(update={"request_timeout": seconds})
    application = create_app(settings, world._lifespan)
    config = uvicorn.Config(
        application, port=0, http=protocol(seconds), log_config=None, timeout_graceful_shutdown=1, timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    earlier, world.service.settings = world.service.settings, settings
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(_PATIENCE):
            while not server.started:  # noqa: ASYNC110 - uvicorn says so in no other way
                await asyncio.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task
        world.service.settings = earlier


async def _answer(port: int, *parts: bytes) -> bytes:
    """What the service sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(_PATIENCE):
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
    async with _listening(world, 0.2) as port:
        assert await _answer(port) == b""
        assert await _answer(port, b"GET /docs HTTP/1.1\r\nHost: service\r\n") == b""


async def test_body_that_does_not_come_is_answered_in_the_envelope(world: World) -> None:
    async with _listening(world, 0.2) as port:
        head, _, body = (await _answer(port, _head(world, Content_Length="100"), b"{")).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"


async def test_body_that_nobody_waits_for_holds_no_connection(world: World) -> None:
    request = b"GET /docs/nothing HTTP/1.1\r\nHost: service\r\nContent-Length: 100\r\n\r\n"
    async with _listening(world, 0.2) as port:
        assert (await _answer(port, request, b"{")).startswith(b"HTTP/1.1 404 ")


async def test_huge_body_is_answered_before_it_is_sent(world: World) -> None:
    async with _listening(world, _PATIENCE) as port:
        answer = await _answer(port, _head(world, Content_Length="1000000000"), b"{")

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_headers_without_end_are_cut_off(world: World) -> None:
    async with _listening(world, _PATIENCE) as port:
        with contextlib.suppress(ConnectionError):
            assert await _answer(port, b"GET /docs HTTP/1.1\r\nA: ", *[b"x" * 1_000] * 1_000) == b""


async def test_idle_connection_stays_usable(world: World) -> None:
    ports = set()
    async with _listening(world, 0.2) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            response = await client.get("/docs")
            assert response.status_code == 200
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
            await asyncio.sleep(0.4)

    assert len(ports) == 1
