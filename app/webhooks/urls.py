"""Which addresses events are sent to."""

import ipaddress

import httpx

from app.core.errors import RequestError
from app.core.outbound import is_public, is_public_or_loopback
from app.recipients.domains import normalise


class UrlRules:
    """What a webhook's URL may be: https and public; with `local` also http, and this machine."""

    def __init__(self, *, local: bool) -> None:
        self._schemes = ("https", "http") if local else ("https",)
        self._local = local
        self.allowed = is_public_or_loopback if local else is_public
        """Whether an address may be connected to."""

    def check(self, text: str) -> None:
        """Raise ``invalid_request`` for a URL that events cannot be sent to.

        Its name is looked up at every delivery, and its addresses are judged then.
        """
        reason = self._wrong(text)
        if reason is not None:
            raise RequestError("invalid_request", f"url: {reason}.")

    def _wrong(self, text: str) -> str | None:
        try:
            url = httpx.URL(text)
            host, port = url.raw_host.decode("ascii").rstrip("."), url.port
        except (httpx.InvalidURL, UnicodeError, ValueError):
            return "is no URL"
        if not text.isascii() or any(character.isspace() or character == "\\" for character in text):
            return "must be ASCII without spaces and backslashes; encode other characters"
        if url.scheme not in self._schemes:
            return f"must start with {' or '.join(f'{scheme}://' for scheme in self._schemes)}"
        if url.userinfo or url.fragment or "#" in text:
            return "must have no user name, password or fragment"
        if port is not None and not 0 < port < 65_536:
            return "its port must be 1 to 65535"
        return None if self._reachable(host) else "its host must be a public domain or address"

    def _reachable(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return normalise(host) is not None or (self._local and host.lower() == "localhost")
        return "%" not in host and self.allowed(str(address))
