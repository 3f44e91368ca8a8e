"""One request to a resource: its response up to a size limit, or an error with the reason why none came."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import httpx

from app.core.errors import BusinessError, RequestError
from app.core.outbound import ForbiddenAddressError, Outbound, Received
from app.core.slots import Slots

_HIDDEN = frozenset({"connection", "keep-alive", "proxy-authenticate", "set-cookie", "transfer-encoding", "upgrade"})
_MAX_HEADERS = 64
_MAX_HEADER_BYTES = 32_768


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The request to a resource. It is sent again for each try, with or without a payment."""

    method: str
    url: httpx.URL
    headers: Mapping[str, str]
    content: bytes


class Fetcher:
    """Sends requests to resources, with limits on time, response size and an organisation's concurrent requests."""

    def __init__(self, outbound: Outbound, *, seconds: float, most_bytes: int, at_once: int) -> None:
        self._outbound = outbound
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._at_once = at_once
        #: The slots of each organisation with running requests.
        self._running: dict[str, Slots] = {}

    @contextlib.contextmanager
    def admitted(self, owner: str, wallet_id: str) -> Iterator[None]:
        """Count a paid request or a quote of a wallet as running until the context ends.

        Raises ``rate_limited`` if too many of the ``owner`` are running in this process. The last quarter of its slots
        is for wallets without a running request.

        One admission covers everything from the first request to the delivery. A crowd of other requests therefore
        cannot come between a signed payment and its resource.
        """
        slots = self._running.setdefault(owner, Slots(self._at_once))
        if not slots.is_free(wallet_id):
            message = "Too many paid requests of the wallet or organisation are running. Nothing was sent. Retry later."
            raise RequestError("rate_limited", message, headers={"Retry-After": "1"})
        try:
            with slots.held(wallet_id):
                yield
        finally:
            if not slots:
                self._running.pop(owner, None)

    def close(self) -> None:
        """Start no further requests."""
        self._outbound.close()

    async def fetch(self, asked: ResourceRequest, *, owner: str, payment: Mapping[str, str]) -> Received:
        """Send a request with the headers of a ``payment``, which may be empty, and return the response.

        Raises ``x402_resource_unavailable``, and ``chain_unavailable`` while too many names are being looked up.
        """
        headers = {"user-agent": "agent-vault-x402/1", **asked.headers, **payment}
        try:
            received = await self._outbound.exchange(
                asked.method, asked.url, headers, asked.content, owner, self._most_bytes, self._seconds
            )
            return replace(received, headers=_shown(received.headers))
        except ForbiddenAddressError:
            raise BusinessError("x402_resource_unavailable", "The resource has no public address.") from None
        except TimeoutError:
            reason = f"did not answer within {self._seconds:g} seconds"
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL):
            reason = "could not be reached, or its response was malformed"
        # The request may have arrived.
        raise BusinessError("x402_resource_unavailable", f"The resource {reason}.", fields={"answered": False})


def _shown(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers to show to the caller, without cookies and connection headers, limited in number and size."""
    found: dict[str, str] = {}
    size = 0
    for name, value in headers.items():
        taken = size + len(name) + len(value)
        if name.lower() not in _HIDDEN and len(found) < _MAX_HEADERS and taken <= _MAX_HEADER_BYTES:
            found[name.lower()], size = value, taken
    return found
