"""JSON-RPC 2.0: from the bytes of a request to the bytes of its answer."""

import asyncio
import inspect
import logging
from typing import Any

from pydantic_core import from_json

from app.localnet import methods_accounts, methods_cluster, methods_history, methods_transactions, params
from app.localnet.context import Method, Node
from app.localnet.encoding import Raw
from app.localnet.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, MethodError, method_not_found
from app.localnet.storage import to_json

logger = logging.getLogger(__name__)

METHODS: dict[str, Method] = {
    **methods_cluster.METHODS,
    **methods_accounts.METHODS,
    **methods_transactions.METHODS,
    **methods_history.METHODS,
}

_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})


def parse_json(body: bytes | str) -> Any:
    """Parse a request.

    Raises RpcError: not JSON, or JSON with NaN or the like.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        raise MethodError(PARSE_ERROR, "Parse error") from None


async def answer(node: Node, body: bytes) -> str:
    """Return the answer to a request or batch of requests; empty when there is nothing to say."""
    # Without a socket nothing else in here may ever wait, so callers in a loop would never let the chain write.
    await asyncio.sleep(0)
    try:
        request = parse_json(body)
    except MethodError as error:
        return response(None, error)
    if isinstance(request, list):
        answers = [await _answer_one(node, one) for one in request]
        said = [one for one in answers if one]
        return f"[{','.join(said)}]" if said else ""
    return await _answer_one(node, request)


async def _answer_one(node: Node, request: Any) -> str:
    try:
        request_id, name, arguments = read_request(request)
    except MethodError as error:
        return response(request.get("id") if isinstance(request, dict) else None, error)
    result: Any
    try:
        result = await _call(node, name, arguments)
    except MethodError as error:
        result = error
    except Exception:
        logger.exception("%s failed", name)
        result = MethodError(INTERNAL_ERROR, "Internal error")
    # A request without an id is a notification and is not answered.
    return response(request_id, result) if "id" in request else ""


def read_request(request: Any) -> tuple[Any, str, Any]:
    """Return id, method and parameters of a request.

    Raises RpcError: not a JSON-RPC 2.0 request.
    """
    if not isinstance(request, dict) or isinstance(request.get("id"), bool | float | list | dict):
        raise MethodError(PARSE_ERROR, "Parse error")
    if "jsonrpc" not in request and "method" in request:
        raise MethodError(INVALID_REQUEST, "Unsupported JSON-RPC protocol version")
    name, arguments = request.get("method"), request.get("params")
    proper = request.get("jsonrpc") == "2.0" and isinstance(arguments, list | dict | None)
    if not proper or not isinstance(name, str) or not request.keys() <= _MEMBERS:
        raise MethodError(INVALID_REQUEST, "Invalid request")
    return request.get("id"), name, arguments


async def _call(node: Node, name: str, arguments: Any) -> Any:
    method = METHODS.get(name)
    if method is None:
        raise method_not_found()
    result = method.call(node, *params.arguments(arguments, method.readers, method.required))
    return await result if inspect.isawaitable(result) else result


def response(request_id: Any, result: Any) -> str:
    """Return the text of an answer; `result` may be an RpcError."""
    name, body = ("error", result.as_json()) if isinstance(result, MethodError) else ("result", result)
    text = body if isinstance(body, Raw) else to_json(body)
    return f'{{"jsonrpc":"2.0","{name}":{text},"id":{to_json(request_id)}}}'
