"""The URLs that a webhook may have, and the addresses that events may be sent to."""

import ipaddress
from collections.abc import Collection

import httpx

from app.core.errors import RequestError
from app.core.hosts import is_loopback
from app.core.outbound import is_public, is_public_or_loopback
from app.recipients.domains import normalise


class UrlRules:
    """Allows https URLs and public addresses. With `local`, http and addresses of this machine are allowed too.

    `own` are URLs of the service and its chain. Their pairs of host and port are refused.
    """

    def __init__(self, *, local: bool, own: Collection[str] = ()) -> None:
        self._own = {_place(httpx.URL(one)) for one in own}
        self._schemes = ("https", "http") if local else ("https",)
        self._local = local
        self.allowed = is_public_or_loopback if local else is_public
        """A function that returns True if the service may connect to an address."""

    def check(self, text: str) -> None:
        """Raise ``invalid_request`` for a URL that events cannot be sent to.

        Names are not looked up here, because their addresses are checked at each delivery.
        """
        reason = self._fault(text)
        if reason is not None:
            raise RequestError("invalid_request", f"url: {reason}.")

    def _fault(self, text: str) -> str | None:
        try:
            url = httpx.URL(text)
            host, port = url.raw_host.decode("ascii").rstrip("."), url.port
        except (httpx.InvalidURL, UnicodeError, ValueError):
            return "must be a URL"
        if not text.isascii() or any(character.isspace() or character == "\\" for character in text):
            return "must be ASCII without spaces and backslashes; encode other characters"
        if url.scheme not in self._schemes:
            return f"must start with {' or '.join(f'{scheme}://' for scheme in self._schemes)}"
        if url.userinfo or url.fragment or "#" in text:
            return "must not contain a user name, password or fragment"
        if port is not None and not 0 < port < 65_536:
            return "must have a port from 1 to 65535"
        if _place(url) in self._own:
            return "must not point to this service or its chain"
        return None if self._host_allowed(host) else "must have a public domain or address as its host"

    def _host_allowed(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return normalise(host) is not None or (self._local and host.lower() == "localhost")
        return "%" not in host and self.allowed(str(address))


def _place(url: httpx.URL) -> tuple[str, int]:
    """Return a URL's host and port. All names of this machine are one host."""
    host = url.host.rstrip(".")
    return "" if is_loopback(host) else host, url.port or (80 if url.scheme in {"http", "ws"} else 443)
