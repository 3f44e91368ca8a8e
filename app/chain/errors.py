"""Errors of the communication between the service and the node."""

from typing import Any

from app.core.text import plain

_SHOWN = 500
"""Maximum number of characters of a node's message in an error text."""


class ChainUnavailable(Exception):  # noqa: N818 - named after the error code it becomes
    """No node gave a usable response.

    Examples: connection refused, timeout, status 429 or 5xx, a malformed body, a node of another chain, only stale
    nodes, or no reading of the chain's clock yet. If the request sent a transaction, the transaction may have arrived.
    """


class RateLimited(ChainUnavailable):
    """The node answered 429. The same request may be sent again after ``pause`` seconds."""

    def __init__(self, retry_after: str | None) -> None:
        super().__init__("the node answered 429")
        # Nodes send seconds. The date that the header also permits is ignored.
        self.pause = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0


class RpcError(Exception):
    """The node returned a JSON-RPC error, or its responses show the error that a subclass describes."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        # Make the node's message safe to print: it may be shown in a terminal.
        super().__init__(plain(f"{message[:_SHOWN]} ({code})"))
        self.code = code
        self.message = message
        self.data = data


class BlockhashNotFound(RpcError):  # noqa: N818 - Solana's name for it
    """The transaction's blockhash is too old, or too new for this node."""


class HistoryNotAvailable(RpcError):  # noqa: N818 - Solana's name for it
    """The node lacks a part of the history that it has listed, or that another node behind the same URL has listed.

    Also raised if a transaction of an allowance cannot be read.
    """

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
