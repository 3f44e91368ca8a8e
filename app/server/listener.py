"""Listens to the signals of other nodes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from app.core.background import Background
from app.core.errors import StorageUnavailableError
from app.database.postgres.engine import listening

_log = structlog.get_logger(__name__)

_PAUSE = 1.0
"""Seconds before a lost connection is reopened."""


class Listener(Background):
    """Calls a handler for each signal, and all handlers after each new connection, as signals may have been missed.

    It needs its own connection, directly to the server, because a transaction pooler does not pass on signals. Without
    a connection, everything still works but takes a little longer.
    """

    name = "listener"

    def __init__(
        self,
        url: str,
        channel: str,
        handlers: Mapping[str, Callable[[Sequence[str]], object]],
        *,
        place: Callable[[], Awaitable[str]],
    ) -> None:
        """Listen at `url`. `handlers` are called in the event loop, with the objects that a signal names.

        `place` returns the identity of the service's database and server. The connection must reach the same database.
        """
        self._url = url
        self._channel = channel
        self._place = place
        self._handlers = handlers
        self.connected = False
        """True while this process has a connection on which it receives signals."""

    async def _run(self) -> None:
        warned = False
        while True:
            try:
                async with listening(self._url, self._channel, self._hear, at=await self._place()) as lost:
                    warned, self.connected = False, True
                    for handler in self._handlers.values():
                        handler(())
                    await lost
            except (OSError, StorageUnavailableError) as error:
                if not warned:
                    _log.warning("signals_not_heard", error=str(error))
                warned = True
            except Exception:  # noqa: BLE001 - the next connection may work
                _log.exception("listener_failed")
            finally:
                self.connected = False
            await asyncio.sleep(_PAUSE)

    def _hear(self, text: str) -> None:
        what, _, about = text.partition(" ")
        if what in self._handlers:
            self._handlers[what](about.split())
