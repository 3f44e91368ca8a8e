"""Responses to outbound requests: their content codings, and the limits of their size and time."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable

import brotli
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.core.outbound import Outbound, Received, is_public_or_loopback
from tests.support.http import site

_MOST = 4_096
_TEXT = b'{"temperature": 21}' * 50


def _raw_deflate(content: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(content) + stream.flush()


_CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "in capitals": (" GZip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without its header": ("deflate", _raw_deflate),
    "br": ("br", brotli.compress),
    "identity": ("identity", bytes),
}


async def _received(body: bytes, coding: str | None, *, most: int = _MOST, method: str = "GET") -> Received:
    async def handler(_request: Request) -> Response:
        return Response(body, headers={} if coding is None else {"Content-Encoding": coding})

    outbound = Outbound(allowed=is_public_or_loopback)
    async with site(handler) as url:
        found = await outbound.exchange(method, httpx.URL(url), {}, b"", most, 10)
    outbound.close()
    return found


@pytest.mark.parametrize("name", _CODINGS)
async def test_body_is_decoded_and_its_coding_is_no_longer_named(name: str) -> None:
    coding, encode = _CODINGS[name]

    found = await _received(encode(_TEXT), coding)

    assert (found.status, found.body, found.truncated, found.coding) == (200, _TEXT, False, None)
    assert not {"content-encoding", "content-length"} & set(found.headers)


async def test_body_without_a_coding_is_as_received() -> None:
    found = await _received(gzip.compress(_TEXT), None)

    assert gzip.decompress(found.body) == _TEXT
    assert found.coding is None
    assert found.headers["content-length"] == str(len(found.body))


_UNDECODABLE: dict[str, tuple[str, bytes]] = {
    "two codings": ("gzip, br", brotli.compress(gzip.compress(_TEXT))),
    "one coding twice": ("gzip, gzip", gzip.compress(gzip.compress(_TEXT))),
    "unknown": ("zstd", b"(\xb5/\xfd" + _TEXT),
    "no coding": ("utf-8", _TEXT),
    "not gzip": ("gzip", _TEXT),
    "not deflate": ("deflate", _TEXT),
    "not brotli": ("br", _TEXT),
    "gzip with a wrong checksum": ("gzip", gzip.compress(_TEXT)[:-8] + bytes(8)),
    "deflate with a wrong checksum": ("deflate", zlib.compress(_TEXT)[:-4] + bytes(4)),
    "two streams": ("gzip", gzip.compress(_TEXT) + gzip.compress(_TEXT)),
    "gzip and more": ("gzip", gzip.compress(_TEXT) + b"more"),
    "brotli and more": ("br", brotli.compress(_TEXT) + b"more"),
}


@pytest.mark.parametrize("name", _UNDECODABLE)
async def test_body_that_cannot_be_decoded_is_as_received_with_its_coding(name: str) -> None:
    coding, body = _UNDECODABLE[name]

    found = await _received(body, coding)

    assert (found.body, found.truncated, found.coding) == (body, False, coding)
    assert found.headers["content-encoding"] == coding


@pytest.mark.parametrize("name", ["gzip", "deflate", "deflate without its header", "br"])
async def test_bomb_is_not_inflated_beyond_the_limit(name: str) -> None:
    coding, encode = _CODINGS[name]
    bomb = encode(bytes(30_000_000))
    most = len(bomb) + 1
    tracemalloc.start()
    try:
        found = await _received(bomb, coding, most=most)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (len(found.body), found.truncated, found.coding) == (most, True, None)
    assert peak < 10_000_000


@pytest.mark.parametrize("name", ["gzip", "deflate", "deflate without its header", "br", "identity"])
@pytest.mark.parametrize("over", [0, 1])
async def test_decoded_body_has_at_most_the_limit(name: str, over: int) -> None:
    coding, encode = _CODINGS[name]

    found = await _received(encode(b"x" * (_MOST + over)), coding)

    assert (found.body, found.truncated) == (b"x" * _MOST, over == 1)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br"])
async def test_body_that_ends_early_is_decoded_as_far_as_it_came(name: str) -> None:
    coding, encode = _CODINGS[name]
    content = b"".join(b"%d " % (number * number) for number in range(2_000))

    found = await _received(encode(content)[:2_000], coding, most=100_000)

    assert 0 < len(found.body) < len(content)
    assert content.startswith(found.body)
    assert (found.truncated, found.coding) == (True, None)


@pytest.mark.parametrize("name", ["gzip", "br"])
async def test_response_without_a_body_is_complete(name: str) -> None:
    coding, _ = _CODINGS[name]

    found = await _received(b"", coding)

    assert (found.body, found.truncated, found.coding) == (b"", False, None)


async def test_name_of_a_coding_is_shortened() -> None:
    found = await _received(_TEXT, "x" * 5_000)

    assert found.coding == "x" * 64


async def test_status_counts_even_if_the_body_does_not_end_in_time() -> None:
    async def handler(_request: Request) -> Response:
        async def stuck() -> AsyncIterator[bytes]:
            yield gzip.compress(_TEXT)[:40]
            await asyncio.Event().wait()

        return StreamingResponse(stuck(), 402, headers={"Content-Encoding": "gzip"})

    outbound = Outbound(allowed=is_public_or_loopback)
    async with site(handler) as url:
        found = await outbound.exchange("GET", httpx.URL(url), {}, b"", _MOST, 0.3)
    outbound.close()

    assert (found.status, found.truncated) == (402, True)
    assert _TEXT.startswith(found.body)


async def test_response_that_does_not_begin_in_time_is_an_error() -> None:
    release = asyncio.Event()

    async def handler(_request: Request) -> Response:
        await release.wait()
        return Response(b"late")

    outbound = Outbound(allowed=is_public_or_loopback)
    async with site(handler) as url:
        with pytest.raises(TimeoutError):
            await outbound.exchange("GET", httpx.URL(url), {}, b"", _MOST, 0.3)
        release.set()
    outbound.close()
