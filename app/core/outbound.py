"""Requests to hosts named by users. Unless the caller allows it, no request reaches a private network."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import brotli
import httpx

from app.core.slots import SlotsByOrg

#: IPv6 networks with an IPv4 address in their last 32 bits: IPv4-compatible, translated and NAT64.
_EMBED_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
#: Networks outside the public internet. Some versions of Python report parts of them as global.
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # protocol assignments; 192.0.0.192 serves instance metadata at Oracle Cloud
            "192.88.99.0/24",  # former 6to4 relay anycast
            "168.63.129.16/32",  # serves configuration to virtual machines at Azure
            "2001::/23",  # protocol assignments, such as Teredo, which tunnels to IPv4 addresses
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation
        ),
    )
)
_PORTS = {"https": 443, "http": 80}

_CROWDED = "Too many domains are being looked up. Retry."

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
Owner = tuple[str, str]
"""The cause of a request: an organisation, with its wallet, API key, person or webhook."""
_NO_OWNER: Owner = ("", "")


class ForbiddenAddressError(ValueError):
    """The host has no address, or has an address that the service must not connect to."""


def is_public(address: str) -> bool:
    """Return True if an IP address is public.

    A mapped, compatible, translated, NAT64 or 6to4 address is public if its embedded IPv4 address is public.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and any(ip in network for network in _EMBED_IPV4):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def is_public_or_loopback(address: str) -> bool:
    """Return True if an IP address is public or a loopback address. Local networks use this instead of `is_public`."""
    return is_public(address) or ipaddress.ip_address(address.partition("%")[0]).is_loopback


@dataclass(frozen=True, slots=True)
class Received:
    """A response with its body, decoded and up to a limit.

    ``truncated`` is True if the body exceeded the limit, broke off or did not end in time. ``coding`` is None if the
    body was decoded. Otherwise, ``body`` is as received, and ``coding`` is its content coding.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool
    coding: str | None


class HostResolver:
    """Looks up host names in a few threads of its own.

    A lookup cannot be cancelled: its thread waits for a silent name server long after the caller gave up. In the event
    loop's shared threads, a few such lookups would block every commit. Concurrent requests for the same name and port
    share one thread. Each organisation gets at most one `part`-th of the threads, and each of its members a quarter of
    that. The last quarter of the threads is only for owners without a running lookup. Names that do not resolve
    therefore leave threads for other owners.
    """

    def __init__(
        self, limit: int = 64, resolve: Callable[[str, int], Sequence[str]] | None = None, *, part: int = 4
    ) -> None:
        share = max(1, limit // part)
        self._orgs = SlotsByOrg(limit, _CROWDED, share)
        self._members = SlotsByOrg(share, _CROWDED, max(1, share // 4))
        self._resolve = resolve or _addresses
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="names")
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}
        """Result of each running lookup, by name and port."""

    async def __call__(self, domain: str, port: int, owner: Owner = _NO_OWNER) -> Sequence[str]:
        """Return the addresses of a name. A running lookup of the same name and port is joined.

        Raises OSError if the lookup fails. Raises ``rate_limited`` if a new lookup is needed while all threads that the
        `owner` may use are busy.
        """
        name = (domain, port)
        if name not in self._running:
            with contextlib.ExitStack() as held:
                held.enter_context(self._orgs.hold("", owner[0]))
                held.enter_context(self._members.hold(*owner))
                found = asyncio.get_running_loop().run_in_executor(self._threads, self._resolve, domain, port)
                self._running[name] = found
                found.add_done_callback(partial(self._ended, name, held.pop_all()))
        return await asyncio.shield(self._running[name])

    def close(self) -> None:
        """Start no further lookups, and do not wait for running ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, name: tuple[str, int], held: contextlib.ExitStack, ended: asyncio.Future[Sequence[str]]) -> None:
        del self._running[name]
        held.close()
        if not ended.cancelled():
            ended.exception()  # Retrieved here, because every waiter may have given up.


def _addresses(domain: str, port: int) -> Sequence[str]:
    return [str(address[0]) for *_, address in socket.getaddrinfo(domain, port, type=socket.SOCK_STREAM)]


class Outbound:
    """Sends requests to checked addresses only.

    Each request looks up its host once, requires that all addresses are allowed, and connects to one of them. A second
    lookup with a different result is therefore impossible. The Host header and the TLS handshake name the host.
    Redirects, proxies, cookies and kept connections are not used.
    """

    def __init__(
        self,
        *,
        lookup: Lookup | None = None,
        allowed: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        lookups: int = 64,
        part: int = 4,
    ) -> None:
        """Allow `lookups` concurrent lookups. Each organisation may use one `part`-th of them.

        If `lookup` is given, it resolves names instead, without limits.
        """
        self._names = HostResolver(lookups, part=part)
        self._lookup = lookup
        self._allowed = allowed
        # Connections are not kept: they would be reused by address, but a certificate is checked for one host name
        # only.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(verify=tls or _default_tls(), trust_env=False, limits=limits)

    def close(self) -> None:
        """Start no further lookups."""
        self._names.close()

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, url: httpx.URL, *, headers: Mapping[str, str], content: bytes = b"", owner: Owner = _NO_OWNER
    ) -> AsyncIterator[httpx.Response]:
        """Send a request on behalf of an owner, and yield the response with its body unread. Sets no timeout.

        Raises ForbiddenAddressError, httpx.HTTPError and the errors of `HostResolver`.
        """
        host = url.raw_host.decode("ascii").rstrip(".")
        address = await self._address(host, url.port or _PORTS[url.scheme], owner)
        request = httpx.Request(
            method,
            url.copy_with(host=address, userinfo=b"", fragment=None),
            headers={**headers, "Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity"},
            content=content,
            extensions={"sni_hostname": host, "timeout": {}},
        )
        response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

    async def exchange(  # noqa: PLR0917
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        body: bytes,
        most: int,
        within: float,
        owner: Owner = _NO_OWNER,
    ) -> Received:
        """Send a request on behalf of an owner, and return the response with at most ``most`` bytes of its body.

        The exchange may take ``within`` seconds. Raises TimeoutError, OSError, ValueError, httpx.InvalidURL and the
        errors of `request` if no response begins. Once the response has begun, it is returned even if its body does not
        end.
        """
        response: httpx.Response | None = None
        raw, whole = bytearray(), False
        try:
            async with (
                asyncio.timeout(within),
                self.request(method, url, headers=headers, content=body, owner=owner) as response,
            ):
                async for chunk in response.aiter_raw():
                    raw += chunk
                    if len(raw) > most:
                        break
                else:
                    whole = True
        except (TimeoutError, OSError, httpx.HTTPError):
            if response is None:
                raise
        return _received(response, bytes(raw), most, whole=whole)

    async def _address(self, host: str, port: int, owner: Owner) -> str:
        try:
            addresses: Sequence[str] = [str(ipaddress.ip_address(host))]
        except ValueError:
            addresses = await (self._lookup(host, port) if self._lookup else self._names(host, port, owner))
        if not addresses or not all(self._allowed(address) for address in addresses):
            raise ForbiddenAddressError("not a public address")
        return addresses[0]


@cache
def _default_tls() -> ssl.SSLContext:
    """Return a context that trusts the system's certificates. It is cached, because loading them is slow."""
    return ssl.create_default_context()


def _inflated(raw: bytes, limit: int, window: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj(window)
    body = stream.decompress(raw, limit)
    # Without a header, only the end of the stream shows that the bytes are `deflate`.
    if stream.unused_data or (window < 0 and not stream.eof and len(body) < limit):
        raise ValueError("not one stream")
    return body, stream.eof


def _unbrotlied(raw: bytes, limit: int) -> tuple[bytes, bool]:
    stream = brotli.Decompressor()
    # The output may exceed the limit by its last buffer, to a few times the limit at most.
    return stream.process(raw, output_buffer_limit=limit), stream.is_finished()


_GZIP = (partial(_inflated, window=16 + zlib.MAX_WBITS),)
#: Headers that describe a body before it is decoded.
_OF_CODED_BODY = frozenset({"content-encoding", "content-length"})
#: Decoders of each content coding (RFC 9110, section 8.4.1), in the order to try. Each stops after about ``limit``
#: bytes, and returns True if it has read the end. Some servers send `deflate` without the header that the RFC requires.
_DECODERS: Mapping[str, Sequence[Callable[[bytes, int], tuple[bytes, bool]]]] = {
    "identity": (lambda raw, _limit: (raw, True),),
    "gzip": _GZIP,
    "x-gzip": _GZIP,
    "deflate": (partial(_inflated, window=zlib.MAX_WBITS), partial(_inflated, window=-zlib.MAX_WBITS)),
    "br": (_unbrotlied,),
}


def _received(response: httpx.Response, raw: bytes, limit: int, *, whole: bool) -> Received:
    """Return a response with its body decoded, if it has at most one content coding and a known one."""
    status, headers = response.status_code, response.headers
    coding = headers.get("content-encoding", "").strip().lower() if raw else ""
    for decode in _DECODERS.get(coding, ()):
        with contextlib.suppress(ValueError, zlib.error, brotli.error):
            body, ended = decode(raw, limit + 1)
            shown = {name: value for name, value in headers.items() if name not in _OF_CODED_BODY}
            return Received(status, shown, body[:limit], not (whole and ended and len(body) <= limit), None)
    return Received(status, headers, raw[:limit], not whole, coding[:64] or None)
