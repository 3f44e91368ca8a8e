"""What a connection of a client may take, in time and bytes."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: What a request line and headers may take; the parser itself keeps all that it is given.
_MAX_HEAD_BYTES = 65_536


def protocol(seconds: float) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol, which waits for ever, with limits to how long a request and how large its head is.

    A body that does not come while a route reads it is answered by that route.
    """

    class Patient(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _in_head = True
        _head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > _MAX_HEAD_BYTES:
                    self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0
            self._wait()

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._stop()
            super().on_message_complete()

        def _wait(self) -> None:
            self._stop()
            self._timer = self.loop.call_later(seconds, self._give_up)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()

        def _give_up(self) -> None:
            if self._in_head or self.cycle.response_complete:
                self.transport.close()

    return Patient
