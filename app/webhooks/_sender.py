"""One HTTP request to a receiver, and its outcome."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from app.core.outbound import ForbiddenAddressError, Outbound, Owner

TIMEOUT = 5.0
"""Seconds within which a receiver must acknowledge."""
_EXCERPT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The outcome of one request to a receiver: its response, or the reason for a missing response.

    Without a response, `status_code` is None and `error` has the reason: `timeout`, `address_not_allowed` (the host has
    no address, or one that the service may not connect to) or `connection_failed`. `excerpt` is the beginning of the
    response's body. `duration` is in milliseconds.
    """

    status_code: int | None
    error: str | None
    excerpt: str
    duration: int

    @property
    def delivered(self) -> bool:
        """True if the receiver acknowledged. Any 2xx status acknowledges, with any body."""
        return self.status_code is not None and 200 <= self.status_code < 300


async def send(
    outbound: Outbound,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    owner: Owner = ("", ""),
    within: float = TIMEOUT,
) -> SendOutcome:
    """Post a body once to a URL of the `owner`. The request may take `within` seconds.

    Raises ``rate_limited`` if too many names are being looked up.
    """
    began = time.monotonic()
    status_code, error, excerpt = None, None, b""
    headers = {"Content-Type": "application/json", "User-Agent": "agent-vault-webhooks/1", **headers}
    try:
        received = await outbound.exchange("POST", httpx.URL(url), headers, body, _EXCERPT_BYTES, within, owner)
        # The status alone acknowledges, even if the body did not arrive completely in time.
        status_code, excerpt = received.status, received.body
    except ForbiddenAddressError:
        error = "address_not_allowed"
    except TimeoutError:
        error = "timeout"
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL):
        error = "connection_failed"
    return SendOutcome(
        status_code=status_code,
        error=error,
        excerpt=_printable(excerpt),
        duration=round((time.monotonic() - began) * 1000),
    )


def _printable(excerpt: bytes) -> str:
    text = excerpt.decode(errors="replace")
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
