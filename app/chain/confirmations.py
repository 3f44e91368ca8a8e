"""Waits for the confirmation of transactions, with one poller for all waiters."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.records import SignatureStatus, Statuses
from app.core.waiters import Waiters

Ask = Callable[[Sequence[str]], Awaitable[Statuses]]

STATUS_BATCH = 256
"""Maximum number of signatures in one call to `getSignatureStatuses`."""
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.4
"""Seconds between two polls: short after a new signature, then growing to the length of a slot."""


class Confirmations:
    """Reports the confirmation of transactions, successful or failed.

    Concurrent payments share each call to the node, for up to 256 signatures. Polling needs no subscription, which
    would have to be kept alive.
    """

    def __init__(self, statuses: Ask) -> None:
        self._statuses = statuses
        self._waiting: Waiters[SignatureStatus] = Waiters()
        self._added = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, signature: str, timeout: float) -> SignatureStatus | None:  # noqa: ASYNC109 - None is a result
        """Return the status of the transaction once it is confirmed, or `None` after `timeout` seconds."""
        self._added.set()
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
            if self._added.is_set():
                pause = _FIRST_PAUSE
                self._added.clear()
            signatures = list(self._waiting)
            for start in range(0, len(signatures), STATUS_BATCH):
                await self._ask(signatures[start : start + STATUS_BATCH])
            if not self._waiting:
                return
            try:
                # Do not use `wait_for`: in Python 3.11 it can swallow a cancellation.
                async with asyncio.timeout(pause):
                    await self._added.wait()
            except TimeoutError:
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _ask(self, signatures: list[str]) -> None:
        try:
            seen = await self._statuses(signatures)
        except (ChainUnavailable, RpcError):
            return  # The node may recover before the waiters time out.
        for signature, status in zip(signatures, seen.found, strict=True):
            if status is not None and status.is_confirmed:
                self._waiting.notify(signature, status)
