"""Requests to hosts that users name, which never reach into a private network."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import httpx

from app.core.errors import UnavailableError

#: IPv6 networks whose last 32 bits are an IPv4 address: compatible, translated and NAT64 addresses.
_HOLD_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
#: What is no part of the public internet though Python, or an older one, takes some of it for that.
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # for protocols; 192.0.0.192 serves the metadata of machines at Oracle
            "192.88.99.0/24",  # former anycast of 6to4
            "168.63.129.16/32",  # serves machines at Azure, with their configuration
            "2001::/23",  # for protocols, among them Teredo, whose addresses lead through a tunnel to an IPv4 address
            "2001:db8::/32",  # for documentation
            "3fff::/20",  # for documentation
        ),
    )
)
_PORTS = {"https": 443, "http": 80}

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class ForbiddenAddressError(ValueError):
    """A name has no address, or one that must not be connected to."""


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, also when it is wrapped in an IPv6 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and any(ip in network for network in _HOLD_IPV4):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def is_public_or_loopback(address: str) -> bool:
    """Whether an IP address is public or this machine's own: for a service that is tried out on one."""
    return is_public(address) or ipaddress.ip_address(address.partition("%")[0]).is_loopback


class Names:
    """Looks names up, a few at a time, in threads of its own.

    A look-up cannot be stopped: behind a name server that is silent its thread waits on after the caller gave up. In
    the threads that the event loop shares with everything else, a handful of these would stop every commit. Those
    who ask for a name that is being looked up wait for the same thread, so that one silent name takes one. And no
    owner of names takes more than `share` threads, so that one with many silent names leaves some to the others.
    """

    def __init__(
        self, limit: int = 8, resolve: Callable[[str, int], Sequence[str]] | None = None, *, share: int | None = None
    ) -> None:
        self._limit = limit
        self._share = limit if share is None else share
        self._taken: Counter[str] = Counter()
        self._resolve = resolve or _addresses
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="names")
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, domain: str, port: int, owner: str = "") -> Sequence[str]:
        """Return the addresses of a name, which is looked up for its owner; one without a name has no share.

        Raises OSError, and ``chain_unavailable`` when all threads are waiting, or all of the owner's.
        """
        name = (domain, port)
        found = self._running.get(name)
        if found is None:
            if len(self._running) >= self._limit or (owner and self._taken[owner] >= self._share):
                raise UnavailableError(
                    "chain_unavailable", "Too many domains are being looked up.", headers={"Retry-After": "1"}
                )
            found = asyncio.get_running_loop().run_in_executor(self._threads, self._resolve, domain, port)
            self._running[name] = found
            self._taken[owner] += 1
            found.add_done_callback(lambda ended: self._ended(name, owner, ended))
        return await asyncio.shield(found)

    def close(self) -> None:
        """Start no more look-ups; those under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, name: tuple[str, int], owner: str, ended: asyncio.Future[Sequence[str]]) -> None:
        del self._running[name]
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        if not ended.cancelled():
            ended.exception()  # Whoever asked may be gone.


def _addresses(domain: str, port: int) -> Sequence[str]:
    return [str(address[0]) for *_, address in socket.getaddrinfo(domain, port, type=socket.SOCK_STREAM)]


class Outbound:
    """Sends requests to the addresses that it has checked.

    A name is looked up once for each request, every address that it has must be allowed, and the connection goes to a
    checked address: a second, different DNS answer changes nothing. The host that was asked for stands in the Host
    header and in the TLS handshake. Redirects are not followed, proxies, cookies and open connections not used.
    """

    def __init__(
        self,
        *,
        lookup: Lookup | None = None,
        allowed: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        lookups: int = 8,
    ) -> None:
        """`lookups` is how many names are looked up at the same time, a quarter of them for one owner.

        Requests that somebody waits for have as many threads of their own, an eighth of them for one owner.
        """
        self._names = Names(lookups, share=max(1, lookups // 4))
        self._names_beside = Names(lookups, share=max(1, lookups // 8))
        self._lookup = lookup
        self._allowed = allowed
        # A connection that is kept belongs to an address, not to the name in whose certificate it trusts.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(verify=tls or _default_tls(), trust_env=False, limits=limits)

    def close(self) -> None:
        """Start no more look-ups."""
        self._names.close()
        self._names_beside.close()

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: httpx.URL,
        *,
        headers: Mapping[str, str],
        content: bytes = b"",
        owner: str = "",
        beside: bool = False,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield its answer, of which nothing but the header was read; the caller limits the time.

        `owner` is whose URL it is. What is sent `beside` all else takes no thread from that for its name. Raises
        ForbiddenAddressError, httpx.HTTPError and what `Names` raises.
        """
        host = url.raw_host.decode("ascii").rstrip(".")
        names = self._names_beside if beside else self._names
        address = await self._address(host, url.port or _PORTS[url.scheme], self._lookup or partial(names, owner=owner))
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

    async def _address(self, host: str, port: int, lookup: Lookup) -> str:
        try:
            addresses: Sequence[str] = [str(ipaddress.ip_address(host))]
        except ValueError:
            addresses = await lookup(host, port)
        if not addresses or not all(self._allowed(address) for address in addresses):
            raise ForbiddenAddressError("not a public address")
        return addresses[0]


@cache
def _default_tls() -> ssl.SSLContext:
    """Return what trusts the certificates that this system trusts; to load them takes long."""
    return ssl.create_default_context()
