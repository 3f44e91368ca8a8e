"""Transports for JSON-RPC: HTTP to any node, or direct calls to an ASGI application in the same process."""

import re
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from starlette.types import ASGIApp

from app.chain.errors import ChainUnavailable, RateLimited
from app.core.asgi import call

Transport = Callable[[bytes], Awaitable[bytes]]
"""A function from a request body to the response body. It raises `ChainUnavailable` if there is no response."""

_HEADERS = {"content-type": "application/json"}
_CONNECTIONS = 64
_SERVER_ERROR = 500
_RATE_LIMITED = 429
_NEWEST, _OLDER = (b'"maxSupportedTransactionVersion":%d' % version for version in (1, 0))
_OLDER_FOR = 600.0
"""Seconds until transaction version 1 is requested again from a node that rejected it. The node may have been upgraded
by then."""
_INVALID_PARAMS = re.compile(rb'"code": *-32602\b')
"""The error code "invalid params" of JSON-RPC 2.0. Text inside a JSON string cannot match the pattern, because its
quotation marks would be escaped."""


class HttpTransport:
    """Posts to a URL over a pool of persistent connections.

    The transport uses aiohttp for speed. With httpx, the four or five calls of a payment took more than half of its
    processor time.
    """

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        """`timeout` is the maximum number of seconds for connecting, and for each read."""
        self._url = url
        self._timeout = aiohttp.ClientTimeout(connect=timeout, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._older_until = 0.0
        self._rejected = False

    async def __call__(self, body: bytes) -> bytes:
        """Return the response body. Raises `RateLimited` for status 429, and `ChainUnavailable` for other failures.

        If a node rejects version 1 as the newest transaction version, the request is repeated with version 0. A single
        rejection may be false. After two in a row, only version 0 is requested from the node for ten minutes.
        """
        older = body.replace(_NEWEST, _OLDER)
        if older == body or time.monotonic() < self._older_until:
            return await self._post(older)
        answer = await self._post(body)
        if not _INVALID_PARAMS.search(answer) or _INVALID_PARAMS.search(second := await self._post(older)):
            self._rejected = False
            return answer
        if self._rejected:
            self._older_until = time.monotonic() + _OLDER_FOR
        self._rejected = True
        return second

    async def _post(self, body: bytes) -> bytes:
        if self._session is None:
            # Create the session here, because it belongs to the running event loop.
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, headers=_HEADERS, proxy=_proxy_to(self._url)
            )
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as response:
                status, content = response.status, await response.read()
                retry_after = response.headers.get("retry-after")
        except (aiohttp.ClientError, OSError) as error:
            raise ChainUnavailable(f"the node does not answer: {type(error).__name__}") from error
        if status == _RATE_LIMITED:
            raise RateLimited(retry_after)
        if status >= _SERVER_ERROR:
            raise ChainUnavailable(f"the node answered {status}")
        return content

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _proxy_to(url: str) -> str | None:
    """Return the proxy that the environment configures for a URL.

    The proxy is looked up once here. With `trust_env`, aiohttp would do so in a thread for each request, which would
    take a fifth of a payment's processor time.
    """
    address = urlsplit(url)
    if address.hostname is None or proxy_bypass(address.hostname):
        return None
    return getproxies().get(address.scheme)


class AsgiTransport:
    """Calls an ASGI application directly, without a socket or an HTTP client."""

    def __init__(self, app: ASGIApp, path: str = "/") -> None:
        self._app = app
        self._headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }

    async def __call__(self, body: bytes) -> bytes:
        """Return the response body. Raises `ChainUnavailable` if the application raises or returns status 5xx."""
        scope = {**self._scope, "headers": [*self._headers, (b"content-length", b"%d" % len(body))]}
        try:
            status, _, answer = await call(self._app, scope, body)
        except Exception as error:  # A server would return status 500.
            raise ChainUnavailable(f"the node failed: {type(error).__name__}") from error
        if status >= _SERVER_ERROR:
            raise ChainUnavailable(f"the node answered {status}")
        return answer

    async def aclose(self) -> None:
        """Do nothing: the caller owns the application."""
