"""Domains as recipients: a domain publishes its address over HTTPS."""

import json
import re
import ssl
from collections.abc import Callable

import httpx

from app.core.outbound import Lookup, Outbound, Owner, is_public
from app.submission.program_errors import invalid_recipient

PATH = "/.well-known/agent-vault.json"
_MAX_BYTES = 16_384
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_MAX_LENGTH = 253


def normalise(text: str) -> str | None:
    """Return a domain in lower-case ASCII, or None for any other text, such as an IP address or a bare name."""
    try:
        domain = text.rstrip(".").encode("idna").decode().lower()
    except UnicodeError:
        return None
    labels = domain.split(".")
    if len(domain) > _MAX_LENGTH or len(labels) < 2 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return None if labels[-1].isdigit() or labels[-1] == "localhost" else domain


class DomainResolver:
    """Reads ``{"solana": {"usdc": "ADDRESS"}}`` from ``https://DOMAIN/.well-known/agent-vault.json``."""

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
        self._outbound = Outbound(lookup=lookup, allowed=allowed, tls=tls)
        self._port = port

    def close(self) -> None:
        """Start no further lookups."""
        self._outbound.close()

    async def resolve(self, domain: str, owner: Owner = ("", "")) -> str:
        """Return the address that a normalised domain publishes.

        Raises ``invalid_recipient``, and ``rate_limited`` while too many lookups are waiting for a response.
        """
        try:
            document = json.loads(await self._fetch(domain, owner))
        except (OSError, TimeoutError, ValueError, RecursionError, httpx.HTTPError):
            raise invalid_recipient("to", f"No address could be read from https://{domain}{PATH}.") from None
        chain = document.get("solana") if isinstance(document, dict) else None
        address = chain.get("usdc") if isinstance(chain, dict) else None
        if not isinstance(address, str):
            raise invalid_recipient("to", f"https://{domain}{PATH} has no address at solana.usdc.")
        return address

    async def _fetch(self, domain: str, owner: Owner) -> bytes:
        url = httpx.URL(scheme="https", host=domain, port=self._port, path=PATH)
        headers = {"Accept": "application/json"}
        found = await self._outbound.exchange("GET", url, headers, b"", _MAX_BYTES, self._timeout, owner)
        if found.status != 200 or found.truncated:
            raise ValueError("the document is missing or incomplete")
        return found.body
