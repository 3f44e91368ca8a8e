"""Listens to what other nodes signal."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from app.core.background import Background
from app.core.errors import StorageUnavailableError
from app.database.postgres.engine import listening

_log = structlog.get_logger(__name__)

_PAUSE = 1.0
"""Seconds until a lost connection is opened again."""


class Listener(Background):
    """Calls a handler for each signal, and all of them after the connection was lost: some may have been missed.

    It needs a connection of its own that leads to the server itself: a pool of transactions passes no signals on. While
    there is none, everything takes a little longer and works all the same.
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
        """Listen at `url`; `handlers` are called in the event loop, with what a signal names.

        `place` returns that of the database which must be reached there.
        """
        self._url = url
        self._channel = channel
        self._place = place
        self._handlers = handlers
        self.connected = False
        """Whether signals are heard now."""

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
            except Exception:  # noqa: BLE001 - whatever it is, the next connection may do
                _log.exception("listener_failed")
            finally:
                self.connected = False
            await asyncio.sleep(_PAUSE)

    def _hear(self, text: str) -> None:
        what, _, about = text.partition(" ")
        if what in self._handlers:
            self._handlers[what](about.split())
