"""Error responses to malformed JSON-RPC messages that the SDK would misread or leave without a response."""

import json
from typing import Any

from mcp.types import INVALID_REQUEST, jsonrpc_message_adapter

from app.mcp.operations import Json


def error_response(code: int, message: str, to: Any = None) -> Json:
    """Return an error response. Its id is ``to``, or null if ``to`` is not a valid request id."""
    return {"jsonrpc": "2.0", "id": to if _is_id(to) else None, "error": {"code": code, "message": message}}


def fault_of_id(message: Json) -> Json | None:
    """Return the error response to a request with an invalid id, or None for any other message.

    Without this check, the SDK would take such a request for a notification and send no response.
    """
    if "method" not in message or "id" not in message or _is_id(message["id"]):
        return None
    return error_response(INVALID_REQUEST, "The id of a request must be a string or an integer.")


def fault_of(message: Json) -> Json | None:
    """Return the error response to a message that is not valid JSON-RPC, or None for a valid message."""
    try:
        jsonrpc_message_adapter.validate_json(json.dumps(message), by_name=False)
    except ValueError:
        return error_response(INVALID_REQUEST, "The message is not valid JSON-RPC 2.0.", message.get("id"))
    return fault_of_id(message)


def _is_id(given: Any) -> bool:
    return isinstance(given, str | int) and not isinstance(given, bool)
