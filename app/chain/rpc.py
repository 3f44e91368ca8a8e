"""JSON-RPC 2.0 over a transport."""

from itertools import count
from typing import Any

from pydantic_core import from_json, to_json

from app.chain.errors import ChainUnavailable, rpc_error
from app.chain.transport import Transport


class Rpc:
    """Sends calls and checks answers.

    Plain JSON instead of solana-py's client: that one parses each answer into objects of which the payment path reads
    two or three fields, and it always goes through an HTTP client, also to a node in the same process.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ids = count(1)

    async def call(self, method: str, params: list[Any]) -> Any:
        """Return the `result` of one call. Raises `RpcError` or `ChainUnavailable`."""
        number = next(self._ids)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        answer = _parse(await self._transport(to_json(request)))
        if not isinstance(answer, dict) or answer.get("id") != number:
            raise ChainUnavailable("the node answered something that is no JSON-RPC response")
        if "error" in answer:
            raise rpc_error(answer["error"])
        if "result" not in answer:
            raise ChainUnavailable("the node answered something that is no JSON-RPC response")
        return answer["result"]


def _parse(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError as error:
        raise ChainUnavailable("the node answered something that is no JSON") from error
