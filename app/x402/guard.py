"""The URLs and headers that a paid request may have."""

import ipaddress
from collections.abc import Collection, Mapping

import httpx

from app.core.errors import BusinessError, RequestError
from app.core.hosts import ANY_HOST, is_loopback
from app.webhooks.urls import UrlRules

#: Headers that a client may set. Other headers could carry credentials or change how the request is read.
_ALLOWED = frozenset({"accept", "accept-language", "content-type", "if-match", "if-modified-since", "if-none-match"})
#: Headers that are dropped silently, because only the service and its HTTP client may decide on them.
_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "payment-signature",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-payment",
    }
)


class RequestGuard:
    """Checks requests before any connection.

    ``local`` also permits requests to this machine, by http or https, but not to the service's ports.
    """

    def __init__(self, *, local: bool, own_ports: Collection[int]) -> None:
        self._rules = UrlRules(local=local)
        self._own_ports = frozenset(own_ports)
        self.allowed = self._rules.allowed
        """Predicate: True if the service may connect to an address."""

    def url(self, text: str, hosts: Collection[str]) -> httpx.URL:
        """Return the URL if the policy's ``hosts`` include its host.

        Raises ``x402_host_not_allowed`` if they do not, and ``invalid_request`` for any other forbidden URL, such as
        one that leads to this service.
        """
        self._rules.check(text)
        url = httpx.URL(text)
        host = host_of(url)
        if is_loopback(host):
            if (url.port or {"http": 80, "https": 443}[url.scheme]) in self._own_ports:
                raise RequestError("invalid_request", "url: must not point to this service or its chain.")
        elif url.scheme != "https" or url.port not in (None, 443):
            raise RequestError("invalid_request", "url: must be https on port 443.")
        if ANY_HOST not in hosts and host not in hosts:
            raise BusinessError(
                "x402_host_not_allowed",
                f"The wallet's policy does not list {host} in x402Hosts.",
                fields={"host": host},
            )
        return url

    @staticmethod
    def headers(given: Mapping[str, str]) -> dict[str, str]:
        """Return the headers to send to the resource, without headers that the service sets itself.

        Raises ``invalid_request`` for a header that is not allowed, is given twice or has an invalid value.
        """
        found: dict[str, str] = {}
        for name, value in given.items():
            key = name.lower()
            if key in _OURS:
                continue
            if key not in _ALLOWED:
                raise RequestError("invalid_request", f"headers: {name[:64]!r} is not allowed. Omit it.")
            if key in found:
                raise RequestError("invalid_request", f"headers: {name[:64]!r} is given twice.")
            if not value.isascii() or not value.isprintable() or len(value) > 1_024:
                raise RequestError("invalid_request", f"headers: {name} must be printable ASCII of up to 1,024 bytes.")
            found[key] = value
        return found


def host_of(url: httpx.URL) -> str:
    """Return the host of a URL in the form that policies list: in lower case, an IP address in its usual notation."""
    host = url.raw_host.decode("ascii").rstrip(".").lower()
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def origin_of(url: httpx.URL) -> str:
    """Return the scheme, host and port of a URL."""
    port = f":{url.port}" if url.port else ""
    return f"{url.scheme}://{host_of(url)}{port}"
