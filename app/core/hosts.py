"""Hosts as clients write them, and which of them a request may name as the service's own.

The latter is checked so that a web page reaches no local server by rebinding its own name to it.
"""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]

#: Stands for any host where a host can be given.
ANY_HOST = "*"
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
#: What is written for a host: a name in lower case or an IPv4 address, or `*`.
HOST_PATTERN = rf"^(\*|{_LABEL}(\.{_LABEL})*)$"
MAX_HOST = 253


class AllowedHosts:
    """Allows this machine's loopback names, and others by name. Ports do not count."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in names}

    def fault(self, headers: Headers) -> str | None:
        """Return what is wrong with the headers Host and Origin; None if both are allowed.

        Browsers name the page's host in both, other clients send no Origin. Host is required, once.
        """
        found: dict[bytes, list[str]] = {b"host": [], b"origin": []}
        for name, value in headers:
            if name in found:
                found[name].append(value.decode("latin-1"))
        if len(found[b"host"]) != 1:
            return "The request must have one Host header"
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
    """Return what is wrong with a host that a client wrote; None if a URL can have it, or if it is ``*``."""
    try:
        address: str | None = str(ipaddress.ip_address(text))
    except ValueError:
        address = None
    if text == address or (len(text) <= MAX_HOST and re.fullmatch(HOST_PATTERN, text)):
        return None
    if address is not None:
        return f"must be written as {address}"
    if re.fullmatch(r"[^:]+:[0-9]+", text):
        return "must be a host without a port: paid requests go to the port of https alone"
    return "must be a host in lower case, such as api.example.com, or *"


def is_loopback(host: str) -> bool:
    """Tell whether a host can only mean the machine itself: `localhost` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _quoted(text: str) -> str:
    return '"' + "".join(character if character.isprintable() else "?" for character in text[:100]) + '"'
