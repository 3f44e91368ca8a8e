"""The event loop of commands that run for long."""

from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on libuv's loop until it ends.

    A payment is some twenty rounds of the loop, which took asyncio's own a sixth of a node's processor time.
    """
    uvloop.run(main)
