"""Domains as recipients: how a domain names its address, fetched without reaching into private networks."""

import asyncio
import contextlib
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from app.errors import RequestError, UnavailableError

PATH = "/.well-known/agent-vault.json"
_MAX_BYTES = 16_384
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_MAX_LENGTH = 253
#: IPv6 networks whose last 32 bits are an IPv4 address: compatible, translated and NAT64 addresses.
_HOLD_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
#: Former anycast of 6to4, and the dummy address of IPv4-as-a-service, which older Pythons take for public.
_NOT_PUBLIC = frozenset(map(ipaddress.IPv4Address, ("192.88.99.1", "192.0.0.8")))

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


def normalise(text: str) -> str | None:
    """Return the domain in lower-case ASCII, or None when the text is none; IP addresses and bare names are none."""
    try:
        domain = text.rstrip(".").encode("idna").decode().lower()
    except UnicodeError:
        return None
    labels = domain.split(".")
    if len(domain) > _MAX_LENGTH or len(labels) < 2 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return None if labels[-1].isdigit() or labels[-1] == "localhost" else domain


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, also when it is wrapped in an IPv6 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and any(ip in network for network in _HOLD_IPV4):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is None and ip.teredo is not None:
            inner = ip.teredo[1]
        if inner is not None:
            return is_public(str(inner))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip not in _NOT_PUBLIC and ip.is_global and not ip.is_multicast


class Names:
    """Looks names up, a few at a time, in threads of its own.

    A look-up cannot be stopped: behind a name server that is silent its thread waits on after the caller gave up. In
    the threads that the event loop shares with everything else, a handful of these would stop every commit.
    """

    def __init__(self, limit: int = 8, resolve: Callable[[str, int], Sequence[str]] | None = None) -> None:
        self._limit = limit
        self._resolve = resolve or _addresses
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="names")
        self._running = 0

    async def __call__(self, domain: str, port: int) -> Sequence[str]:
        """Return the addresses of a name. Raises OSError, and ``chain_unavailable`` when all threads are waiting."""
        if self._running >= self._limit:
            raise UnavailableError(
                "chain_unavailable", "Too many domains are being looked up.", headers={"Retry-After": "1"}
            )
        self._running += 1
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, domain, port, loop)

    def close(self) -> None:
        """Start no more look-ups; those under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, domain: str, port: int, loop: asyncio.AbstractEventLoop) -> Sequence[str]:
        try:
            return self._resolve(domain, port)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        self._running -= 1


def _addresses(domain: str, port: int) -> Sequence[str]:
    return [str(address[0]) for *_, address in socket.getaddrinfo(domain, port, type=socket.SOCK_STREAM)]


class DomainResolver:
    """Asks ``https://DOMAIN/.well-known/agent-vault.json`` for ``{"solana": {"usdc": "ADDRESS"}}``.

    The name is looked up once, every address that it has must be allowed, and the connection goes to a checked
    address: a second, different DNS answer changes nothing. Redirects are not followed and proxies not used.
    """

    def __init__(
        self,
        *,
        timeout: float,
        lookup: Lookup | None = None,
        allowed: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        port: int = 443,
    ) -> None:
        self._timeout = timeout
        self._names = Names()
        self._lookup = lookup or self._names
        self._allowed = allowed
        self._tls = tls
        self._port = port

    def close(self) -> None:
        """Start no more look-ups."""
        self._names.close()

    async def resolve(self, domain: str) -> str:
        """Return the address that a normalised domain names. Raises ``invalid_recipient``."""
        try:
            async with asyncio.timeout(self._timeout):
                document = json.loads(await self._fetch(domain, await self._address(domain)))
        except (OSError, TimeoutError, ValueError, RecursionError, httpx.HTTPError):
            raise RequestError("invalid_recipient", f"The domain names no address at https://{domain}{PATH}.") from None
        chain = document.get("solana") if isinstance(document, dict) else None
        address = chain.get("usdc") if isinstance(chain, dict) else None
        if not isinstance(address, str):
            raise RequestError("invalid_recipient", f"https://{domain}{PATH} does not hold an address at solana.usdc.")
        return address

    async def _address(self, domain: str) -> str:
        addresses = await self._lookup(domain, self._port)
        if not addresses or not all(self._allowed(address) for address in addresses):
            raise ValueError("not a public address")
        return addresses[0]

    async def _fetch(self, domain: str, address: str) -> bytes:
        host = f"[{address}]" if ":" in address else address
        authority = domain if self._port == 443 else f"{domain}:{self._port}"
        if self._tls is None:
            self._tls = ssl.create_default_context()
        async with (
            httpx.AsyncClient(verify=self._tls, trust_env=False, follow_redirects=False) as client,
            client.stream(
                "GET",
                f"https://{host}:{self._port}{PATH}",
                headers={"Host": authority, "Accept": "application/json", "Accept-Encoding": "identity"},
                extensions={"sni_hostname": domain},
                timeout=self._timeout,
            ) as response,
        ):
            if response.status_code != 200:
                raise ValueError("not found")
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError("too large")
            return bytes(body)
