"""Limits on the time and bytes of a client connection, and the response to input that is not an HTTP request.

With httptools, uvicorn 0.54 lacks four features: a timeout for a whole request, a limit on the bytes of a request's
head (only h11 has one, `h11_max_incomplete_event_size`), a hook for the response to a malformed request, and ending a
response when the client disconnects while later requests wait. Remove this module once uvicorn has all four.
https://github.com/Kludex/uvicorn/issues/157 asks for the first two.
"""

import asyncio

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.core.errors import RequestError

#: Limit in bytes for a request line with its headers, for input between or after the chunks of a body, and for the rest
#: of a body after the response. The parser itself buffers without limit.
_MAX_BYTES = 65_536
#: The limit is checked after every piece of this many bytes, so it can be exceeded by up to this number.
_PIECE = 4_096


class _LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits in bytes, and a limit of `seconds` for a request's head to arrive.

    If a body is late while a route reads it, the route itself sends the response. A malformed body looks to the route
    like one that ended early. Input that is not a request is answered by the application, which finds the error as
    `refusal` in the request's state.
    """

    seconds: float
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    #: Bytes received since the last end of a head, of a body chunk that the route still reads, or of a request.
    _bytes = 0
    #: True if all further input is ignored.
    _refused = False
    #: The request that is being answered. uvicorn's ``cycle`` is the newest request, which may wait behind this one.
    _answered: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._answered is not None:
            # Otherwise the running response would write to the closed connection, which raises an error in uvloop.
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            if self._refused or self.transport.is_closing():
                return
            piece = data[start : start + _PIECE]
            self._bytes += len(piece)
            super().data_received(piece)
            if self._bytes > _MAX_BYTES:
                self._refuse(f"The request line and the headers exceed {_MAX_BYTES:,} bytes.")

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's
        self._refuse("The request is not HTTP/1.1 with a known method and a path in ASCII.")

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing.

        A server may ignore Upgrade (RFC 9110, section 7.8), and uvicorn would log advice to install a package.
        """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser also reports trailers, which follow a body, as headers.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head, self._bytes = False, 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if not self.cycle.response_complete:
            self._bytes = 0

    def on_message_complete(self) -> None:
        self._stop_timer()
        super().on_message_complete()
        self._in_head, self._bytes = True, 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        async def readable(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async def receive_readable() -> ASGIReceiveEvent:
                message = await receive()
                if self._refused and message["type"] == "http.request" and message["more_body"]:
                    return {"type": "http.disconnect"}
                return message

            await app(scope, receive_readable, send)

        self._answered = cycle
        super()._start_asgi_task(cycle, readable)

    def _refuse(self, message: str) -> None:
        """Stop reading, let the open request or the refused head get its response, and close the connection."""
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # An earlier request, or the request with the malformed body, gets its own response.
            self.cycle.keep_alive = False
            self.cycle.message_event.set()
        elif self._in_head:
            self._answer(RequestError("invalid_request", message))
        else:
            self.transport.close()

    def _answer(self, error: RequestError) -> None:
        """Let the application respond with this error to input that is not a request."""
        super().on_message_begin()
        self.scope |= {"method": "", "path": "", "raw_path": b"", "query_string": b""}
        self.scope["state"]["refusal"] = error
        self.cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=False,
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.seconds, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _time_out(self) -> None:
        if self._in_head or self.cycle.response_complete:
            self.transport.close()
        else:
            self._start_timer()  # the rest of the body may still be missing after the response


def protocol(seconds: float) -> type[_LimitedProtocol]:
    """Return the protocol with a limit of `seconds` for a request's head to arrive."""
    return type("TimedProtocol", (_LimitedProtocol,), {"seconds": seconds})
