"""Answers that a client may get instead of the service's, each at a path of its own, and the outcomes expected."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

DEADLINE = 8
"""Seconds that a client has for each call. All calls run at once, so a busy machine needs some for each."""
_PAYMENT = {"tx_id": "tx_1", "id": "tx_1", "status": "confirmed", "amount": "0.01"}
_DONE = {"status": "confirmed", "tx_id": "tx_1"}

#: By path: what the client reports, and the requests that it sends; None stands for several.
OUTCOMES: Mapping[str, tuple[Mapping[str, Any], int | None]] = {
    "paid": (_DONE, 1),
    "newer": (_DONE, 1),
    "pending": (_DONE, 2),
    "html": ({"error": "InvalidAnswer", "status": 200}, 3),
    "cut": (_DONE, 2),
    "garbled": (_DONE, 2),
    "nested": ({"error": "InvalidAnswer", "status": 200}, 3),
    "closed": (_DONE, 2),
    "proxy": (_DONE, 3),
    "throttled": (_DONE, 3),
    "wait": ({"error": "RateLimited", "code": "rate_limited", "retry_after": 3600}, 1),
    "running": (_DONE, 2),
    "conflict": ({"error": "ConflictError", "code": "idempotency_conflict"}, 1),
    "restored": ({"error": "ConflictError", "code": "restore_unacknowledged"}, 1),
    "unverified": ({"error": "BusinessError", "code": "recipient_unverified"}, 1),
    "unknown": ({"error": "BusinessError", "code": "not_invented_yet", "status": 422}, 1),
    "teapot": ({"error": "RequestError", "code": "not_invented_yet", "status": 418}, 1),
    "failing": ({"error": "UnavailableError", "code": "internal_error"}, 3),
    "offline": ({"error": "UnavailableError", "code": "authority_offline"}, 1),
    "redirected": ({"error": "InvalidAnswer", "status": 307}, 1),
    "lapsed": ({"status": "pending", "tx_id": "tx_1"}, None),
    "down": ({"error": "DeadlineExceeded"}, None),
    "silent": ({"error": "DeadlineExceeded"}, 1),
}


def _error(status: int, code: str, retry_after: str | None = None) -> Response:
    fields = {"code": code, "message": "Something.", "docs": 1, "request_id": None, "invented": {"later": True}}
    return Response(json.dumps({"error": fields}), status, {"Retry-After": retry_after} if retry_after else None)


def _json(**fields: object) -> Response:
    return Response(json.dumps(_PAYMENT | fields))


async def _broken() -> AsyncIterator[bytes]:
    yield json.dumps(_PAYMENT).encode()[:20]
    raise ConnectionAbortedError  # the server closes the connection before the announced length


def _paid(_number: int) -> Response:
    return _json()


def _first(answer: Callable[[], Response], *, times: int = 1) -> Callable[[int], Response]:
    """Give this answer the first times, and then the payment."""
    return lambda number: answer() if number <= times else _json()


#: By path: the answer to the request of this number. Other paths give the payment.
_ANSWERS: Mapping[str, Callable[[int], Response]] = {
    "newer": lambda _: _json(invented={"later": [1]}),
    "pending": _first(lambda: _json(status="pending")),
    "html": lambda _: Response("<html>Sign in</html>"),
    "cut": _first(lambda: Response(json.dumps(_PAYMENT)[:20])),
    "garbled": _first(lambda: Response(b"no gzip", headers={"Content-Encoding": "gzip"})),
    "nested": lambda _: Response("[" * 100_000),
    "closed": _first(lambda: StreamingResponse(_broken(), headers={"Content-Length": "400"})),
    "proxy": lambda number: _json() if number > 2 else Response("<html>Bad gateway</html>", 501 + number),
    "throttled": _first(lambda: _error(429, "rate_limited"), times=2),
    "wait": lambda _: _error(429, "rate_limited", retry_after="3600"),
    "running": _first(lambda: _error(409, "idempotency_in_progress", retry_after="1")),
    "conflict": lambda _: _error(409, "idempotency_conflict"),
    "restored": lambda _: _error(409, "restore_unacknowledged"),
    "unverified": lambda _: _error(422, "recipient_unverified"),
    "unknown": lambda _: _error(422, "not_invented_yet"),
    "teapot": lambda _: _error(418, "not_invented_yet"),
    "failing": lambda _: _error(500, "internal_error"),
    "offline": lambda _: _error(503, "authority_offline"),
    "redirected": lambda _: RedirectResponse("/paid/v1/payments", 307),
    "lapsed": lambda number: _json(status="pending") if number == 1 else _error(503, "chain_unavailable"),
    "down": lambda _: _error(503, "chain_unavailable", retry_after="1"),
}


class Answers:
    """Answers payments by the first part of their path. Keeps the keys and the bodies of the requests."""

    def __init__(self) -> None:
        self.keys: defaultdict[str, list[str]] = defaultdict(list)
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, request: Request) -> Response:
        """Answer a request. Like a service of an earlier version, tell no time."""
        if request.method == "GET":
            return Response('{"data": []}')
        name = request.path_params["path"].partition("/")[0]
        self.keys[name].append(request.headers["Idempotency-Key"])
        self.bodies.append(await request.json())
        if name == "silent":
            await asyncio.sleep(DEADLINE + 1)
        return _ANSWERS.get(name, _paid)(len(self.keys[name]))
