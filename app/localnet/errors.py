"""JSON-RPC errors of a Solana node, with the codes and messages of a validator."""

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
PREFLIGHT_FAILURE = -32002
BLOCK_NOT_AVAILABLE = -32004
NODE_UNHEALTHY = -32005
UNSUPPORTED_TRANSACTION_VERSION = -32015
MIN_CONTEXT_SLOT_NOT_REACHED = -32016
TRANSACTION_NOT_FOUND = -32020


class MethodError(Exception):
    """An error of a method, sent as the `error` member of the response in place of `result`."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        """Take the JSON-RPC error `code`, its `message` and the optional `data` member."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def as_json(self) -> dict[str, Any]:
        """Return the `error` object of the response."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


def invalid_params(message: str, data: Any = None) -> MethodError:
    """Return the error for parameters with a wrong form or value."""
    return MethodError(INVALID_PARAMS, message, data)


def method_not_found() -> MethodError:
    """Return the error for a method that this node does not have."""
    return MethodError(METHOD_NOT_FOUND, "Method not found")


def node_unhealthy() -> MethodError:
    """Return the error of a node that cannot write to its disk at the moment."""
    return MethodError(NODE_UNHEALTHY, "Node is unhealthy", {"numSlotsBehind": None})
