"""Reads transactions as a node gives them, in base64: the accounts that they name and the program's events in them.

Only an inner instruction that the program sent to itself counts as an event: its data begins with the event tag, and
its only account is the program's event authority, for which nobody else can sign. Log lines prove nothing.
"""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from based58 import b58decode
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from idl.codec import Codec, Event

RawTransaction = dict[str, Any]
"""A result of `getTransaction` with the options `OPTIONS`."""
OPTIONS = {"encoding": "base64", "commitment": "confirmed", "maxSupportedTransactionVersion": 0}


@dataclass(frozen=True, slots=True)
class ChainEvent:
    """An event of the program and its place: `inner` counts the inner instructions of `instruction`."""

    instruction: int
    inner: int
    event: Event


def signed(raw: RawTransaction) -> VersionedTransaction:
    """Return the transaction as it was signed. Raises `ValueError` when the bytes are not a transaction."""
    return VersionedTransaction.from_bytes(base64.b64decode(raw["transaction"][0]))


def accounts(raw: RawTransaction, transaction: VersionedTransaction) -> list[Pubkey]:
    """Return the addresses to which the instructions' indexes refer: the transaction's, then those of lookup tables."""
    loaded = raw["meta"].get("loadedAddresses") or {}
    from_tables = (*loaded.get("writable", ()), *loaded.get("readonly", ()))
    return [*transaction.message.account_keys, *map(Pubkey.from_string, from_tables)]


def events(raw: RawTransaction, keys: list[Pubkey], codec: Codec) -> Iterator[ChainEvent]:
    """Yield the program's events in a transaction with these `accounts`."""
    for group in raw["meta"].get("innerInstructions") or ():
        for inner, instruction in enumerate(group["instructions"]):
            named = instruction["accounts"]
            if keys[instruction["programIdIndex"]] != codec.program_id:
                continue
            if len(named) != 1 or keys[named[0]] != codec.event_authority:
                continue
            event = codec.decode_event(b58decode(instruction["data"].encode()))
            if event is not None:
                yield ChainEvent(group["index"], inner, event)


def instructions(raw: RawTransaction) -> Iterator[tuple[Pubkey, bytes, list[Pubkey]]]:
    """Yield program, data and accounts of the transaction's own instructions, then of those that programs called."""
    transaction = signed(raw)
    keys = accounts(raw, transaction)
    for outer in transaction.message.instructions:
        yield keys[outer.program_id_index], bytes(outer.data), [keys[index] for index in outer.accounts]
    for group in raw["meta"].get("innerInstructions") or ():
        for inner in group["instructions"]:
            named = [keys[index] for index in inner["accounts"]]
            yield keys[inner["programIdIndex"]], b58decode(inner["data"].encode()), named


def message_hash(transaction: bytes) -> str:
    """Return the hex SHA-256 of the signed message in a serialised transaction.

    The transaction begins with the number of its signatures (one byte, as they are fewer than 128), then has 64 bytes
    for each.
    """
    return hashlib.sha256(transaction[1 + 64 * transaction[0] :]).hexdigest()
