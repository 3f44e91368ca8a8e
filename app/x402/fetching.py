"""Sends single requests to resources. A response is read up to a size limit. A missing response raises an error."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType

import httpx

from app.core.errors import BusinessError
from app.core.outbound import ForbiddenAddressError, Outbound, Owner, Received
from app.core.slots import SlotsByOrg
from app.x402.protocols.mpp import ACCEPTED, CHALLENGE_HEADER
from app.x402.protocols.x402 import REQUIRED_HEADER

_HIDDEN = frozenset({"connection", "keep-alive", "proxy-authenticate", "set-cookie", "transfer-encoding", "upgrade"})
_MAX_HEADERS = 64
_MAX_HEADER_BYTES = 32_768
#: Headers with terms. A header that is too long is cut just above the limit, so that the terms are refused for their
#: length.
_TERMS = frozenset({REQUIRED_HEADER, CHALLENGE_HEADER})


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
        refusal = "Too many paid requests of the wallet or organisation are running. Nothing was sent. Retry later."
        self._running = SlotsByOrg(at_once, refusal)

    def admitted(self, owner: str, wallet_id: str) -> AbstractContextManager[None]:
        """Count a paid request or a quote of a wallet as running until the context ends.

        Raises ``rate_limited`` if the ``owner`` has too many running in this process. The last quarter of the owner's
        slots is for wallets without a running request.

        One admission covers everything from the first request to the delivery. A crowd of other requests therefore
        cannot come between a signed payment and its resource.
        """
        return self._running.hold(owner, wallet_id)

    def close(self) -> None:
        """Start no further requests."""
        self._outbound.close()

    async def fetch(
        self, asked: ResourceRequest, owner: Owner, payment: Mapping[str, str] = MappingProxyType({})
    ) -> Received:
        """Send a request with the headers of a ``payment``, which may be empty, and return the response.

        Raises ``x402_resource_unavailable`` if no well-formed response arrives in time, and ``rate_limited`` while too
        many names are being looked up.
        """
        headers = {"user-agent": "agent-vault-x402/1", **ACCEPTED, **asked.headers, **payment}
        try:
            received = await self._outbound.exchange(
                asked.method, asked.url, headers, asked.content, self._most_bytes, self._seconds, owner
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
    for name, given in sorted(headers.items(), key=lambda one: one[0].lower() not in _TERMS):
        value = given[: _MAX_HEADER_BYTES + 1]
        taken = size + len(name) + len(value)
        fits = len(found) < _MAX_HEADERS and taken <= _MAX_HEADER_BYTES
        if name.lower() not in _HIDDEN and (fits or name.lower() in _TERMS):
            found[name.lower()], size = value, taken
    return found
