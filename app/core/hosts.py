"""Checks that a request names one of the service's own hosts, and that clients write hosts in the expected form.

The first check stops DNS rebinding: otherwise, a web page could reach a local server by pointing its own domain at it.
"""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]

#: Clients write this in place of a host to allow any host.
ANY_HOST = "*"
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
#: Pattern of a host: a name in lower case, an IPv4 address, or `*`.
HOST_PATTERN = rf"^(\*|{_LABEL}(\.{_LABEL})*)$"
MAX_HOST = 253


class AllowedHosts:
    """Allows this machine's loopback names and the given names. Ports are ignored."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in names}

    def fault(self, headers: Headers) -> str | None:
        """Return a phrase that describes the fault in the headers Host and Origin, or None if both are allowed.

        Browsers name the service's host in Host and the page's host in Origin; other clients send no Origin. Exactly
        one Host is required.
        """
        found: dict[bytes, list[str]] = {b"host": [], b"origin": []}
        for name, value in headers:
            if name in found:
                found[name].append(value.decode("latin-1"))
        if len(found[b"host"]) != 1:
            return "The request must have exactly one Host header"
        for host in found[b"host"]:
            if not self._allows(f"//{host}"):
                return f"The Host {_quoted(host)} is not allowed"
        for origin in found[b"origin"]:
            if not self._allows(origin):
                return f"The Origin {_quoted(origin)} is not allowed"
        return None

    def _allows(self, url: str) -> bool:
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return host in self._names or is_loopback(host)


def fault_of_host(text: str) -> str | None:
    """Return a phrase that describes the fault in a host written by a client, or None if there is none.

    Valid hosts are ``*``, a name in lower case, and an IP address in its shortest form without brackets.
    """
    try:
        address: str | None = str(ipaddress.ip_address(text))
    except ValueError:
        address = None
    if text == address or (len(text) <= MAX_HOST and re.fullmatch(HOST_PATTERN, text)):
        return None
    if address is not None:
        return f"must be written as {address}"
    if re.fullmatch(r"[^:]+:[0-9]+", text):
        return "must be a host without a port, because paid requests go only to the port of https"
    return "must be a host in lower case, such as api.example.com, or *"


def is_loopback(host: str) -> bool:
    """Return True if a host can only mean this machine: `localhost` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _quoted(text: str) -> str:
    return '"' + "".join(character if character.isprintable() else "?" for character in text[:100]) + '"'
