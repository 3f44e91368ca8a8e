"""Turns a node's answer into what the indexer keeps: the program's events, and what moved in token accounts."""

from typing import Any

from solders.pubkey import Pubkey

from app.chain.errors import ChainUnavailable
from app.chain.rpc import whole
from idl.codec import Codec
from idl.transactions import RawTransaction, accounts, events, message_hash, signed
from indexer.records import ChainTransaction, TokenMove

MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading a malformed answer raises."""


def decode_transaction(raw: RawTransaction, codec: Codec) -> ChainTransaction | None:
    """Return what the indexer keeps of a transaction, `None` for a failed one, which changed nothing.

    Raises `ChainUnavailable` if the node's answer is malformed.
    """
    try:
        return _decode(raw, codec)
    except MALFORMED as error:
        raise ChainUnavailable("the node's transaction is malformed") from error


def _decode(raw: RawTransaction, codec: Codec) -> ChainTransaction | None:
    meta = raw["meta"]
    if meta is None or meta["err"] is not None:
        return None
    transaction = signed(raw)
    keys = accounts(raw, transaction)
    return ChainTransaction(
        signature=str(transaction.signatures[0]),
        slot=whole(raw["slot"]),
        block_time=whole(raw["blockTime"] or 0),
        fee_payer=str(keys[0]),
        message_hash=message_hash(bytes(transaction)),
        events=tuple(events(raw, keys, codec)),
        moves=tuple(_moves(meta, keys)),
    )


def _moves(meta: dict[str, Any], keys: list[Pubkey]) -> list[TokenMove]:
    before, after = (
        {one["accountIndex"]: int(one["uiTokenAmount"]["amount"]) for one in meta.get(name) or ()}
        for name in ("preTokenBalances", "postTokenBalances")
    )
    return [
        TokenMove(str(keys[index]), index, before.get(index, 0), after.get(index, 0))
        for index in sorted(before.keys() | after.keys())
    ]
