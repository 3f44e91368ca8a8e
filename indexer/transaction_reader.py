"""Reads transactions from the nodes and distinguishes momentarily missing ones from holes."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from app.chain.client import UNSUPPORTED_VERSION, ChainClient
from app.chain.errors import RpcError
from app.core.recent import Recent
from idl.codec import Codec
from idl.transactions import IncompleteTransactionError, RawTransaction, UnreadableTransactionError
from indexer.decode import decode_transaction
from indexer.records import ChainTransaction, TransactionHole

_PATIENCE = 10.0
"""Seconds that the nodes have to serve a listed transaction completely before it becomes a hole."""
_REMEMBERED = 100_000
"""Maximum number of missing transactions for which the time of the first look is remembered.

A missing transaction beyond this number would never become a hole.
"""
_LONGEST_REASON = 200


class ReadTransactions(NamedTuple):
    """The transactions that were read, the signatures of missing ones, and the holes."""

    transactions: list[ChainTransaction]
    missing: list[str]
    holes: list[TransactionHole]


class TransactionReader:
    """Reads transactions.

    An unreadable transaction becomes a hole immediately. An incomplete one counts as missing and becomes a hole when it
    is still incomplete ten seconds later.
    """

    def __init__(self, chain: ChainClient, codec: Codec) -> None:
        self._chain = chain
        self._codec = codec
        self._missed: Recent[float] = Recent(_REMEMBERED)

    async def read(self, slots: Mapping[str, int]) -> ReadTransactions:
        """Read transactions that a node lists as successful. `slots` holds their slots by signature."""
        found, now = ReadTransactions([], [], []), time.monotonic()
        for signature, raw in zip(slots, await self._chain.transactions(list(slots)), strict=True):
            try:
                transaction = self._decoded(signature, raw)
            except (UnreadableTransactionError, IncompleteTransactionError) as error:
                since = self._missed.get(signature) or now
                self._missed.put(signature, since)
                if isinstance(error, IncompleteTransactionError) and now - since < _PATIENCE:
                    found.missing.append(signature)
                else:
                    found.holes.append(TransactionHole(signature, slots[signature], _line(error), int(time.time())))
            else:
                self._missed.forget(signature)
                found.transactions.append(transaction)
        return found

    def _decoded(self, signature: str, raw: RawTransaction | RpcError | None) -> ChainTransaction:
        if raw is None:
            raise IncompleteTransactionError("no node serves it")
        if isinstance(raw, RpcError):
            kind = UnreadableTransactionError if raw.code == UNSUPPORTED_VERSION else IncompleteTransactionError
            raise kind(str(raw))
        found = decode_transaction(raw, self._codec)
        if found is None:
            # One of the node's two responses is wrong. If this one is wrong, accepting it would lose events.
            raise IncompleteTransactionError("the node lists it as successful but shows it as failed")
        if found.signature != signature:
            raise IncompleteTransactionError("the node returned another transaction")
        return found


def _line(error: Exception) -> str:
    """Return an error as a short printable text, because parts of it come from the node."""
    return ascii(str(error)[:_LONGEST_REASON])[1:-1]
