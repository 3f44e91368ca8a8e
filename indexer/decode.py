"""From a node's answer to the program's events.

Only inner instructions count that the program sent to itself: their data begins with the event tag and their only
account is the program's event authority, an address that nobody else can sign for. Log lines prove nothing.
"""

import base64
import hashlib
from typing import Any

from based58 import b58decode
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from idl.codec import Codec
from indexer.records import ChainEvent, ChainTransaction, RawTransaction, TokenMove


def decode_transaction(raw: RawTransaction, codec: Codec) -> ChainTransaction | None:
    """Return what the indexer keeps of a transaction; `None` for a failed one, which changed nothing."""
    meta = raw["meta"]
    if meta is None or meta["err"] is not None:
        return None
    transaction = VersionedTransaction.from_bytes(base64.b64decode(raw["transaction"][0]))
    message = transaction.message
    keys = list(message.account_keys)
    loaded = meta.get("loadedAddresses") or {}
    keys += [Pubkey.from_string(key) for key in (*loaded.get("writable", ()), *loaded.get("readonly", ()))]
    return ChainTransaction(
        signature=str(transaction.signatures[0]),
        slot=raw["slot"],
        block_time=raw["blockTime"] or 0,
        fee_payer=str(keys[0]),
        message_hash=_message_hash(transaction),
        events=tuple(_events(meta, keys, codec)),
        moves=tuple(_moves(meta, keys)),
    )


def _events(meta: dict[str, Any], keys: list[Pubkey], codec: Codec) -> list[ChainEvent]:
    found = []
    for group in meta.get("innerInstructions") or ():
        for inner, instruction in enumerate(group["instructions"]):
            accounts = instruction["accounts"]
            if keys[instruction["programIdIndex"]] != codec.program_id:
                continue
            if len(accounts) != 1 or keys[accounts[0]] != codec.event_authority:
                continue
            event = codec.decode_event(b58decode(instruction["data"].encode()))
            if event is not None:
                found.append(ChainEvent(group["index"], inner, event))
    return found


def _moves(meta: dict[str, Any], keys: list[Pubkey]) -> list[TokenMove]:
    before = {one["accountIndex"]: one for one in meta.get("preTokenBalances") or ()}
    after = {one["accountIndex"]: one for one in meta.get("postTokenBalances") or ()}
    return [
        TokenMove(str(keys[index]), index, _amount(before.get(index)), _amount(after.get(index)))
        for index in sorted(before.keys() | after.keys())
    ]


def _amount(balance: dict[str, Any] | None) -> int:
    return 0 if balance is None else int(balance["uiTokenAmount"]["amount"])


def _message_hash(transaction: VersionedTransaction) -> str:
    # A transaction is the signatures, counted by one byte as there are fewer than 128, and then the message.
    return hashlib.sha256(bytes(transaction)[1 + 64 * len(transaction.signatures) :]).hexdigest()
