"""What can go wrong between the service and the node."""

from typing import Any

from app.core.text import plain

_SHOWN = 500
"""The most characters of a node's message in the text of an error."""


class ChainUnavailable(Exception):  # noqa: N818 - named after the error code it becomes
    """The node gave no usable answer: it refused, timed out, answered 5xx or something that is not JSON-RPC.

    What was sent may or may not have arrived.
    """


class RpcError(Exception):
    """The node understood the request and answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        # The node's words may end in a terminal.
        super().__init__(plain(f"{message[:_SHOWN]} ({code})"))
        self.code = code
        self.message = message
        self.data = data


class BlockhashNotFound(RpcError):  # noqa: N818 - Solana's name for it
    """The transaction's blockhash is too old, or too new for this node."""


class HistoryNotAvailable(RpcError):  # noqa: N818 - Solana's name for it
    """The node, or one of several at its address, lacks part of the history that it lists."""

    def __init__(self, message: str) -> None:
        super().__init__(-32011, message)


def rpc_error(error: Any) -> RpcError:
    """Return the exception for the `error` member of a JSON-RPC response."""
    if not isinstance(error, dict):
        return RpcError(-32603, str(error))
    code, message, data = error.get("code", -32603), str(error.get("message", "")), error.get("data")
    found = isinstance(data, dict) and data.get("err") == "BlockhashNotFound"
    if found or "Blockhash not found" in message:
        return BlockhashNotFound(code, message, data)
    return RpcError(code, message, data)
