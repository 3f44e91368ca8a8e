"""JSON-RPC 2.0 with batches, over anything that carries bytes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import httpx
from pydantic_core import from_json, to_json

Transport = Callable[[bytes], Awaitable[bytes]]
"""Takes the body of a request and returns the body of the answer; raises when there is none."""

Call = tuple[str, list[Any]]

_CONCURRENT = 16
"""Single calls under way at once to a node that refuses batches."""
_HEADERS = {"content-type": "application/json"}


class RpcError(Exception):
    """The node refused a call or answered something that is no JSON-RPC response."""


class Rpc:
    """Makes calls one by one or many in one request."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ids = count(1)
        self._batches = True

    async def call(self, method: str, params: list[Any]) -> Any:
        """Return the result of one call. Raises `RpcError`, and what the transport raises."""
        request = self._request((method, params))
        return _result(from_json(await self._transport(to_json(request))), request["id"])

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        """Return the results of many calls, in their order.

        A node that refuses a batch is asked one by one from then on, 16 at a time. Raises `RpcError`, and what the
        transport raises.
        """
        if not calls:
            return []
        if self._batches:
            requests = [self._request(call) for call in calls]
            answers = from_json(await self._transport(to_json(requests)))
            if isinstance(answers, list):
                by_id = {answer.get("id"): answer for answer in answers if isinstance(answer, dict)}
                return [_result(by_id.get(request["id"]), request["id"]) for request in requests]
            self._batches = False
        free = asyncio.Semaphore(_CONCURRENT)

        async def one(call: Call) -> Any:
            async with free:
                return await self.call(*call)

        return await asyncio.gather(*(one(call) for call in calls))

    def _request(self, call: Call) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": call[0], "params": call[1]}


class HttpTransport:
    """Posts to a node's URL over kept connections."""

    def __init__(self, url: str, *, timeout: float = 30.0) -> None:
        self._url = url
        self._client = httpx.AsyncClient(timeout=timeout, headers=_HEADERS)

    async def __call__(self, body: bytes) -> bytes:
        """Return the answer's body; raises `httpx.HTTPError`, also for an HTTP error."""
        response = await self._client.post(self._url, content=body)
        return response.raise_for_status().content

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _result(answer: Any, number: int) -> Any:
    if not isinstance(answer, dict) or answer.get("id") != number or ("result" not in answer and "error" not in answer):
        raise RpcError("no JSON-RPC response")
    if answer.get("error") is not None:
        raise RpcError(str(answer["error"]))
    return answer["result"]
