"""One attempt to deliver: a signed request to an address that was checked, and what came of it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from app.core.outbound import ForbiddenAddressError, Outbound

TIMEOUT = 5.0
"""Seconds in which a receiver has to acknowledge."""
_EXCERPT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What a receiver answered within its time.

    Without an answer there is no `status_code` and `error` says why: `timeout`, `address_not_allowed` (its name has
    none, or one that is not public) or `connection_failed`. `duration` is in milliseconds.
    """

    status_code: int | None
    error: str | None
    excerpt: str
    duration: int

    @property
    def delivered(self) -> bool:
        """Whether the receiver acknowledged: by any status 2xx, whatever its body is."""
        return self.status_code is not None and 200 <= self.status_code < 300


class Sender:
    """Sends to receivers, with `timeout` seconds for each."""

    def __init__(self, outbound: Outbound, *, timeout: float = TIMEOUT) -> None:
        self._outbound = outbound
        self._timeout = timeout

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], *, owner: str = "", beside: bool = False
    ) -> SendOutcome:
        """Send once to a URL of the organisation `owner`; `beside` what is queued, it takes nothing from that.

        Raises ``chain_unavailable`` when this service could not even look the name up.
        """
        began = time.monotonic()
        status_code, error, excerpt = None, None, bytearray()
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._outbound.request(
                    "POST",
                    httpx.URL(url),
                    headers={"Content-Type": "application/json", "User-Agent": "agent-vault-webhooks/1", **headers},
                    content=body,
                    owner=owner,
                    beside=beside,
                ) as response,
            ):
                status_code = response.status_code
                async for chunk in response.aiter_raw():
                    excerpt += chunk
                    if len(excerpt) >= _EXCERPT_BYTES:
                        break
        except ForbiddenAddressError:
            error = "address_not_allowed"
        except TimeoutError:
            error = "timeout"
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL):
            error = "connection_failed"
        # Whoever acknowledged in time has done so, even when its body did not end.
        return SendOutcome(
            status_code=status_code,
            error=error if status_code is None else None,
            excerpt=_text(bytes(excerpt[:_EXCERPT_BYTES])),
            duration=round((time.monotonic() - began) * 1000),
        )


def _text(excerpt: bytes) -> str:
    """Return what can be stored and shown of a body, whatever it is."""
    text = excerpt.decode(errors="replace")
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
