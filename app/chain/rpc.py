"""JSON-RPC 2.0 over a transport."""

import asyncio
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from pydantic_core import from_json, to_json

from app.chain.errors import ChainUnavailable, RateLimited, RpcError, rpc_error
from app.chain.transport import Transport

RpcCall = tuple[str, list[Any]]
"""A method and its parameters."""

_MOST = 2**63 - 1
"""The largest accepted number, which is also the largest that a database column holds."""
_CONCURRENT = 16
"""Number of concurrent single calls to a node that does not support batches."""
_PATIENCE = 10.0
"""Seconds for which a call answered with 429 is repeated. A call to a node that does not answer may take the same time.
"""
_PAUSE = 0.1
"""Minimum seconds before the first repetition. The minimum doubles with each further repetition."""


class Rpc:
    """Sends single calls or batches, and checks the responses.

    solana-py's client is not used: it parses each response into objects, although the payment path reads only two or
    three fields, and it uses HTTP even for a node in the same process. This class sends plain JSON instead.
    """

    def __init__(self, transport: Transport, *, patient: bool = True) -> None:
        """Repeat calls that are answered 429, unless `patient` is False."""
        self._transport = transport
        self._patient = patient
        self._ids = count(1)
        self._batches = True

    async def call(self, method: str, params: list[Any]) -> Any:
        """Return the `result` of one call. Raises `RpcError` for an error, `ChainUnavailable` without a response."""
        request = self._request(method, params)
        return _result(await self._exchange(request), request["id"])

    async def batch(self, calls: Sequence[RpcCall], *, refusals: bool = False) -> list[Any]:
        """Return the results of many calls in their order. Raises the errors of `call`.

        With `refusals`, the `RpcError` of a call is returned in place of its result. After a node has refused a batch,
        it gets single calls, at most 16 at a time.
        """

        def result(answer: Any, request: dict[str, Any]) -> Any:
            try:
                return _result(answer, request["id"])
            except RpcError as error:
                if not refusals:
                    raise
                return error

        if not calls:
            return []
        if self._batches:
            requests = [self._request(*call) for call in calls]
            answers = await self._exchange(requests)
            if isinstance(answers, list):
                by_id = {answer.get("id"): answer for answer in answers if isinstance(answer, dict)}
                return [result(by_id.get(request["id"]), request) for request in requests]
            self._batches = False
        free = asyncio.Semaphore(_CONCURRENT)

        async def one(call: RpcCall) -> Any:
            async with free:
                request = self._request(*call)
                return result(await self._exchange(request), request)

        return await asyncio.gather(*(one(call) for call in calls))

    def _request(self, method: str, params: list[Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    async def _exchange(self, request: Any) -> Any:
        try:
            return from_json(await self._patiently(to_json(request)))
        except ValueError as error:
            raise ChainUnavailable("the node's response is not JSON") from error

    async def _patiently(self, body: bytes) -> bytes:
        """Return the response body.

        Repeats a call answered with 429, which is safe because the same bytes cannot pay twice.
        """
        until, least = time.monotonic() + _PATIENCE, _PAUSE
        while True:
            try:
                return await self._transport(body)
            except RateLimited as error:
                pause = max(least, error.pause)
                if not self._patient or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause)
            least *= 2


def _result(answer: Any, number: int) -> Any:
    if isinstance(answer, dict) and answer.get("id") == number:
        if answer.get("error") is not None:
            raise rpc_error(answer["error"])
        if "result" in answer:
            return answer["result"]
    raise ChainUnavailable("the node's response is not JSON-RPC")


def whole(value: Any) -> int:
    """Return a slot, height, time or amount. Raises `ValueError` for any other value, such as `1e308` or `true`."""
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is not a whole number")
    return value
