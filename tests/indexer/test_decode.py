"""Only an instruction that the program sent to itself is an event."""

import base64
import hashlib
from typing import Any

import pytest
from based58 import b58encode
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import Transaction, VersionedTransaction

from idl.codec import Codec, Event, load
from idl.transactions import IncompleteTransactionError
from indexer.decode import decode_transaction
from indexer.records import TokenMove

OTHER = Pubkey(bytes([7]) * 32)
CLOSED = {
    "org": Pubkey(bytes([1]) * 32),
    "vault": Pubkey(bytes([2]) * 32),
    "policy": Pubkey(bytes([3]) * 32),
    "sequence": 9,
}


@pytest.fixture(name="codec")
def _codec() -> Codec:
    return load()


class Made:
    """A transaction with the accounts payer, event authority, program and another, and a node's answer for it."""

    def __init__(self, codec: Codec) -> None:
        self.payer = payer = Keypair()
        metas = [AccountMeta(one, is_signer=False, is_writable=False) for one in (codec.event_authority, OTHER)]
        message = Message.new_with_blockhash(
            [Instruction(codec.program_id, b"x", metas)], payer.pubkey(), Hash.default()
        )
        self.keys = list(message.account_keys)
        self.transaction = Transaction([payer], message, Hash.default())
        self.message_hash = hashlib.sha256(bytes(message)).hexdigest()
        self.answer: dict[str, Any] = {
            "slot": 5,
            "blockTime": 100,
            "transaction": [base64.b64encode(bytes(self.transaction)).decode(), "base64"],
            "meta": {"err": None, "innerInstructions": [], "preTokenBalances": [], "postTokenBalances": []},
        }

    def takes_from_table(self, writable: list[Pubkey], readonly: list[Pubkey]) -> None:
        """Make it one of version 0 that takes these addresses from a lookup table."""
        metas = [AccountMeta(one, is_signer=False, is_writable=one in writable) for one in (*writable, *readonly)]
        table = AddressLookupTableAccount(Pubkey.new_unique(), [*writable, *readonly])
        step = Instruction(OTHER, b"x", metas)
        message = MessageV0.try_compile(self.payer.pubkey(), [step], [table], Hash.default())
        raw = bytes(VersionedTransaction(message, [self.payer]))
        self.answer["transaction"] = [base64.b64encode(raw).decode(), "base64"]
        loaded = {"writable": [str(one) for one in writable], "readonly": [str(one) for one in readonly]}
        self.answer["meta"]["loadedAddresses"] = loaded

    def inner(self, program: Pubkey, accounts: list[Pubkey], data: bytes) -> dict[str, Any]:
        """Return an inner instruction as a node shows it."""
        return {
            "programIdIndex": self.keys.index(program),
            "accounts": [self.keys.index(one) for one in accounts],
            "data": b58encode(data).decode(),
        }


def test_event_is_found_with_its_place(codec: Codec) -> None:
    made = Made(codec)
    event = Event("WalletClosed", CLOSED)
    made.answer["meta"]["innerInstructions"] = [
        {
            "index": 3,
            "instructions": [
                made.inner(OTHER, [], b"transfer"),
                made.inner(codec.program_id, [codec.event_authority], codec.encode_event(event)),
            ],
        }
    ]
    found = decode_transaction(made.answer, codec)
    assert found is not None
    assert [(one.instruction, one.inner, one.event) for one in found.events] == [(3, 1, event)]
    assert (found.signature, found.slot, found.block_time) == (str(made.transaction.signatures[0]), 5, 100)
    assert (found.fee_payer, found.message_hash) == (str(made.keys[0]), made.message_hash)


def test_imitations_are_no_events(codec: Codec) -> None:
    made = Made(codec)
    data = codec.encode_event(Event("WalletClosed", CLOSED))
    authority = codec.event_authority
    made.answer["meta"]["innerInstructions"] = [
        {
            "index": 0,
            "instructions": [
                made.inner(OTHER, [authority], data),
                made.inner(codec.program_id, [OTHER], data),
                made.inner(codec.program_id, [], data),
                made.inner(codec.program_id, [authority, OTHER], data),
                made.inner(codec.program_id, [authority], data[8:]),
                made.inner(codec.program_id, [authority], data[:8] + bytes(40)),
            ],
        }
    ]
    made.answer["meta"]["logMessages"] = [f"Program data: {base64.b64encode(data[8:]).decode()}"]
    found = decode_transaction(made.answer, codec)
    assert found is not None
    assert found.events == ()


def test_failed_transaction_is_skipped(codec: Codec) -> None:
    made = Made(codec)
    made.answer["meta"]["err"] = {"InstructionError": [0, {"Custom": 6000}]}
    assert decode_transaction(made.answer, codec) is None


def test_accounts_from_lookup_tables_are_counted(codec: Codec) -> None:
    made = Made(codec)
    loaded = [Pubkey.new_unique() for _ in range(2)]
    made.takes_from_table(loaded[:1], loaded[1:])
    made.answer["meta"]["preTokenBalances"] = [{"accountIndex": 2, "uiTokenAmount": {"amount": "10"}}]
    made.answer["meta"]["postTokenBalances"] = [
        {"accountIndex": 2, "uiTokenAmount": {"amount": "7"}},
        {"accountIndex": 3, "uiTokenAmount": {"amount": "3"}},
    ]
    found = decode_transaction(made.answer, codec)
    assert found is not None
    assert found.moves == (TokenMove(str(loaded[0]), 2, 10, 7), TokenMove(str(loaded[1]), 3, 0, 3))


@pytest.mark.parametrize(
    "path",
    [
        *(("blockTime",), ("slot",), ("transaction",), ("meta",), ("meta", "err"), ("meta", "innerInstructions")),
        *(("meta", "preTokenBalances"), ("meta", "postTokenBalances"), ("meta", "loadedAddresses")),
        *(("meta", "loadedAddresses", "writable"), ("meta", "loadedAddresses", "readonly")),
    ],
    ids="/".join,
)
def test_part_that_the_node_left_out_is_not_taken_for_empty(codec: Codec, path: tuple[str, ...]) -> None:
    made = Made(codec)
    made.takes_from_table([Pubkey.new_unique()], [Pubkey.new_unique()])
    *parents, name = path
    holder = made.answer
    for parent in parents:
        holder = holder[parent]
    whole = holder.pop(name)
    with pytest.raises(IncompleteTransactionError, match=name):
        decode_transaction(made.answer, codec)
    if name != "err":  # a successful transaction has none
        holder[name] = None
        with pytest.raises(IncompleteTransactionError, match=name):
            decode_transaction(made.answer, codec)
    holder[name] = whole
    assert decode_transaction(made.answer, codec) is not None


def test_failed_transaction_without_its_parts_has_failed(codec: Codec) -> None:
    made = Made(codec)
    made.answer["meta"] = {"err": {"InstructionError": [0, {"Custom": 6000}]}}
    assert decode_transaction(made.answer, codec) is None
