"""Decodes a node's response into the parts that the indexer stores: the program's events and token balance changes."""

from typing import Any

from solders.pubkey import Pubkey

from app.chain.rpc import whole
from idl.codec import Codec
from idl.transactions import RawTransaction, Reading, accounts, at, events, failure, part, signed
from indexer.records import ChainTransaction, TokenMove

_MOST = 2**64 - 1
"""The largest amount of a token, an unsigned 64-bit number."""


def decode_transaction(raw: RawTransaction, codec: Codec) -> ChainTransaction | None:
    """Return the parts of a transaction that the indexer stores, or `None` for a failed one, which moved no tokens.

    Raises `UnreadableTransactionError` if the transaction is malformed, and `IncompleteTransactionError` if the node
    left out a part.
    """
    if failure(raw) is not None:
        return None
    transaction = signed(raw)
    keys = accounts(raw, transaction)
    with Reading():
        return ChainTransaction(
            signature=str(transaction.signatures[0]),
            slot=whole(part(raw, "slot", int)),
            block_time=whole(part(raw, "blockTime", int)),
            fee_payer=str(keys[0]),
            message_hash=transaction.message_hash,
            events=tuple(events(raw, keys, codec)),
            moves=tuple(_moves(raw["meta"], keys)),
        )


def _moves(meta: dict[str, Any], keys: list[Pubkey]) -> list[TokenMove]:
    before, after = (
        {one["accountIndex"]: _amount(one["uiTokenAmount"]["amount"]) for one in part(meta, name, list)}
        for name in ("preTokenBalances", "postTokenBalances")
    )
    return [
        TokenMove(str(at(keys, index)), index, before.get(index, 0), after.get(index, 0))
        for index in sorted(before.keys() | after.keys())
    ]


def _amount(text: Any) -> int:
    amount = int(text, 10)
    if not 0 <= amount <= _MOST:
        raise ValueError(f"{text} is not an amount")
    return amount
