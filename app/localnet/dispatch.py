"""JSON-RPC 2.0: turns the bytes of a request into the text of its response."""

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

    Raises MethodError if it is not JSON or contains NaN or an infinity.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        raise MethodError(PARSE_ERROR, "Parse error") from None


async def answer(node: Node, body: bytes) -> str:
    """Return the response to a request or a batch of requests. The text is empty if no request expects a response."""
    # Let other tasks run. A call without a socket never waits, so a caller in a loop would keep the chain from writing.
    await asyncio.sleep(0)
    try:
        request = parse_json(body)
    except MethodError as error:
        return response(None, error)
    if isinstance(request, list):
        answers = [text for one in request if (text := await _answer_one(node, one))]
        return f"[{','.join(answers)}]" if answers else ""
    return await _answer_one(node, request)


async def _answer_one(node: Node, request: Any) -> str:
    try:
        name, arguments = read_request(request)
    except MethodError as error:
        return response(request, error)
    result: Any
    try:
        result = await _call(node, name, arguments)
    except MethodError as error:
        result = error
    except Exception:
        logger.exception("%s failed", name)
        result = MethodError(INTERNAL_ERROR, "Internal error")
    # A request without an id is a notification and expects no response (JSON-RPC 2.0, section 4.1).
    return response(request, result) if "id" in request else ""


def read_request(request: Any) -> tuple[str, Any]:
    """Return the method and the parameters of a request.

    Raises MethodError if it is not a JSON-RPC 2.0 request.
    """
    if not isinstance(request, dict) or not _is_id(request.get("id")):
        raise MethodError(PARSE_ERROR, "Parse error")
    if "jsonrpc" not in request and "method" in request:
        raise MethodError(INVALID_REQUEST, "Unsupported JSON-RPC protocol version")
    name, arguments = request.get("method"), request.get("params")
    proper = request.get("jsonrpc") == "2.0" and isinstance(arguments, list | dict | None)
    if not proper or not isinstance(name, str) or not request.keys() <= _MEMBERS:
        raise MethodError(INVALID_REQUEST, "Invalid request")
    return name, arguments


def _is_id(found: Any) -> bool:
    return found is None or isinstance(found, str) or type(found) is int


async def _call(node: Node, name: str, arguments: Any) -> Any:
    method = METHODS.get(name)
    if method is None:
        raise method_not_found()
    values = params.arguments(arguments, method.readers, method.required)
    context = node.with_context(values[-1], None) if method.in_context else None
    result = method.call(node, *values)
    if inspect.isawaitable(result):
        result = await result
    return result if context is None else {**context, "value": result}


def response(request: Any, result: Any) -> str:
    """Return the text of the response to `request`, which may be malformed. `result` may be a MethodError."""
    request_id = request.get("id") if isinstance(request, dict) else None
    if not _is_id(request_id):
        request_id = None  # for example 1e999, which JSON cannot express
    name, body = ("error", result.as_json()) if isinstance(result, MethodError) else ("result", result)
    text = body if isinstance(body, Raw) else to_json(body)
    return f'{{"jsonrpc":"2.0","{name}":{text},"id":{to_json(request_id)}}}'
