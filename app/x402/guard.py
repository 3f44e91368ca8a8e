"""The URLs and headers that a paid request may have."""

import ipaddress
import re
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
        "accept-payment",
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "payment-authorization",
        "payment-signature",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-payment",
    }
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")


class RequestGuard:
    """Checks requests before any connection.

    If the ``rules`` permit requests to this machine, these may use http and any port.
    """

    def __init__(self, rules: UrlRules) -> None:
        self._rules = rules
        self.allowed = rules.allowed
        """A function that returns True if the service may connect to an address."""

    def url(self, text: str, hosts: Collection[str]) -> httpx.URL:
        """Return the URL if the policy's ``hosts`` include its host.

        Raises ``x402_host_not_allowed`` if they do not, and ``invalid_request`` for any other forbidden URL, such as
        one that leads to this service.
        """
        self._rules.check(text)
        url = httpx.URL(text)
        host = host_of(url)
        if not is_loopback(host) and (url.scheme != "https" or url.port not in (None, 443)):
            raise RequestError("invalid_request", "url: must be https on port 443.")
        if ANY_HOST not in hosts and host not in hosts:
            raise BusinessError(
                "x402_host_not_allowed",
                f"The wallet's policy does not list {host} in x402Hosts. An admin can add the host.",
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


def may_carry_credential(name: str) -> bool:
    """Return True if a resource may name this header for a credential.

    A header that changes the meaning of a request is not allowed.
    """
    taken = (_ALLOWED | _OURS) - {"payment-authorization"}
    return _HEADER_NAME.fullmatch(name) is not None and name.lower() not in taken


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
