"""Waiting for transactions to be confirmed: one poller for all who wait."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.records import SignatureStatus, Statuses
from app.core.waiters import Waiters

Ask = Callable[[Sequence[str]], Awaitable[Statuses]]

_BATCH = 256
"""The most signatures that `getSignatureStatuses` takes."""
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.4
"""Seconds between two polls: short after something new, up to one slot later on."""


class Confirmations:
    """Answers when a signature is confirmed, successful or not.

    A hundred concurrent payments ask the node once, not a hundred times, and no subscription has to be kept alive.
    """

    def __init__(self, statuses: Ask) -> None:
        self._statuses = statuses
        self._waiting: Waiters[SignatureStatus] = Waiters()
        self._news = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, signature: str, timeout: float) -> SignatureStatus | None:  # noqa: ASYNC109 - None is a result
        """Return the confirmed status, or `None` when it is still unknown after `timeout` seconds."""
        self._news.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        return await self._waiting.wait(signature, timeout)

    async def aclose(self) -> None:
        """Stop polling."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)

    async def _poll(self) -> None:
        pause = _FIRST_PAUSE
        while self._waiting:
            if self._news.is_set():
                pause = _FIRST_PAUSE
                self._news.clear()
            signatures = list(self._waiting)
            for start in range(0, len(signatures), _BATCH):
                await self._ask(signatures[start : start + _BATCH])
            if not self._waiting:
                return
            try:
                # Not `wait_for`, which in Python 3.11 can swallow a cancellation.
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _ask(self, signatures: list[str]) -> None:
        try:
            seen = await self._statuses(signatures)
        except (ChainUnavailable, RpcError):
            return  # the node may be back before the time of those who wait is up
        for signature, status in zip(signatures, seen.found, strict=True):
            if status is not None and status.is_confirmed:
                self._waiting.tell(signature, status)
