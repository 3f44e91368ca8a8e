"""Listens for the program's log notifications, and uses them only as a sign that something is new.

Logs can be cut, lost, or written by others. The indexer reads the truth from the transactions themselves.
"""

import asyncio
import json
import logging
from collections.abc import Callable

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 10.0


async def listen(url: str, program: str, wake: Callable[[str], None]) -> None:
    """Call `wake` with the signature of each successful transaction of the program, until cancelled.

    A lost connection is opened again after a pause that grows to ten seconds. Meanwhile the indexer polls.
    """
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "logsSubscribe",
        "params": [{"mentions": [program]}, {"commitment": "confirmed"}],
    }
    pause = 0.5
    while True:
        try:
            async with connect(url) as socket:
                await socket.send(json.dumps(request))
                async for message in socket:
                    pause = 0.5
                    signature = _signature(json.loads(message))
                    if signature is not None:
                        wake(signature)
        except (OSError, EOFError, WebSocketException, ValueError, RecursionError) as error:
            logger.warning("log notifications from %s failed: %s", url, error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _signature(message: object) -> str | None:
    match message:
        case {"params": {"result": {"value": {"signature": str() as signature, "err": None}}}}:
            return signature
    return None
