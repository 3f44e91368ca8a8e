"""Listens for the program's log notifications and uses them only as a hint of new transactions.

Logs can be truncated, lost, or written by other programs. So the indexer reads events from the transactions themselves.
"""

import asyncio
import json
import logging
from collections.abc import Callable

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 10.0
_SUBSCRIPTION = 1
"""Id of the JSON-RPC request that subscribes to notifications."""


class LogListener:
    """Listens to one node and reopens a lost connection after a pause that grows to ten seconds."""

    def __init__(self, url: str, program: str, wake: Callable[[str], None]) -> None:
        """Call `wake` with the signature of each successful transaction of the program."""
        self._url = url
        self._request = {
            "jsonrpc": "2.0",
            "id": _SUBSCRIPTION,
            "method": "logsSubscribe",
            "params": [{"mentions": [program]}, {"commitment": "confirmed"}],
        }
        self._wake = wake
        self.subscribed = False
        """True while the subscription at the node is active."""

    async def run(self) -> None:
        """Listen until cancelled."""
        pause = 0.5
        while True:
            try:
                # Skip compression: most of the received data are logs that are never read.
                async with connect(self._url, compression=None) as socket:
                    await socket.send(json.dumps(self._request))
                    async for message in socket:
                        pause = 0.5
                        self._take(json.loads(message))
            except (OSError, EOFError, WebSocketException, ValueError, RecursionError) as error:
                logger.warning("log notifications from %s failed: %s", self._url, error)
            finally:
                self.subscribed = False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _take(self, message: object) -> None:
        match message:
            case {"id": int(number), "result": int()} if number == _SUBSCRIPTION:
                self.subscribed = True
        signature = _signature(message)
        if signature is not None:
            self._wake(signature)


def _signature(message: object) -> str | None:
    match message:
        case {"params": {"result": {"value": {"signature": str() as signature, "err": None}}}}:
            return signature
    return None
