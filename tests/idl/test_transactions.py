"""A transaction of any format is read as it was signed, or cannot be read; no bytes raise anything else."""

import base64
import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from idl.codec import load
from idl.transactions import (
    IncompleteTransactionError,
    SignedTransaction,
    UnreadableTransactionError,
    message_hash,
    parse,
)
from indexer.decode import decode_transaction
from tests.support.runtimes import Runtime
from tests.support.version1 import as_version_1

KEYS = [Keypair.from_seed(bytes([number]) * 32) for number in (1, 2)]
_PROGRAM, _TABLE = load().program_id, Pubkey(bytes([9]) * 32)
_OTHERS = [Pubkey(bytes([number]) * 32) for number in range(10, 16)]
_MUTATIONS = 2_000, 100_000
"""Mutations of each format, without and with `--full`."""
_MASK = slice(4, 8)


def _steps() -> list[Instruction]:
    signer = AccountMeta(KEYS[1].pubkey(), is_signer=True, is_writable=False)
    others = [AccountMeta(one, is_signer=False, is_writable=True) for one in _OTHERS]
    return [Instruction(_PROGRAM, b"a" * 300, [signer, *others]), Instruction(_TABLE, b"", others[:1])]


def _legacy() -> bytes:
    message = Message.new_with_blockhash(_steps(), KEYS[0].pubkey(), Hash.hash(b"recent"))
    return bytes(VersionedTransaction(message, KEYS))


def _version_0() -> bytes:
    tables = [AddressLookupTableAccount(_TABLE, _OTHERS[2:])]
    message = MessageV0.try_compile(KEYS[0].pubkey(), _steps(), tables, Hash.hash(b"recent"))
    return bytes(VersionedTransaction(message, KEYS))


FORMATS: dict[str, Callable[[], bytes]] = {
    "legacy": _legacy,
    "version 0": _version_0,
    "version 1": lambda: as_version_1(_legacy()),
}


def _shown(found: SignedTransaction) -> dict[str, Any]:
    return {
        "message": base64.b64encode(found.message).decode(),
        "signatures": [str(one) for one in found.signatures],
        "keys": [str(one) for one in found.keys],
        "blockhash": str(found.blockhash),
        "instructions": [
            [one.program_id_index, list(one.accounts), bytes(one.data).hex()] for one in found.instructions
        ],
    }


def _answer(transaction: bytes) -> dict[str, Any]:
    """Return what a node shows of a transaction that has called the program."""
    step = {"programIdIndex": 1, "accounts": [1], "data": "3mJr7AoU"}
    loaded = {"writable": [str(one) for one in _OTHERS[2:]], "readonly": []}
    balances = [{"accountIndex": 1, "uiTokenAmount": {"amount": "7"}}]
    return {
        "slot": 5,
        "blockTime": 100,
        "transaction": [base64.b64encode(transaction).decode(), "base64"],
        "meta": {
            "err": None,
            "innerInstructions": [{"index": 0, "instructions": [step]}],
            "preTokenBalances": balances,
            "postTokenBalances": balances,
            "loadedAddresses": loaded,
        },
    }


@pytest.mark.parametrize(("name", "version"), [("legacy", None), ("version 0", 0), ("version 1", 1)])
def test_every_format_is_read(name: str, version: int | None) -> None:
    raw = FORMATS[name]()
    found = parse(raw)
    assert found.version == version
    assert found.signers == [one.pubkey() for one in KEYS]
    assert found.from_tables == (len(_OTHERS[2:]) if version == 0 else 0)
    assert found.blockhash == Hash.hash(b"recent")
    assert [bytes(one.data) for one in found.instructions] == [b"a" * 300, b""]
    assert found.signed_with(found.signatures) == raw
    assert found.message_hash == message_hash(raw) == hashlib.sha256(found.message).hexdigest()
    if version != 1:  # as_version_1 keeps the signatures of the other format
        pairs = zip(found.signatures, found.signers, strict=True)
        assert all(signature.verify(key, found.message) for signature, key in pairs)


def test_version_1_is_read_as_solders_made_it(newer_solders: Runtime) -> None:
    raw = newer_solders.version_1(_legacy(), KEYS)
    found = parse(raw)
    assert found.version == 1
    assert [_shown(found)] == newer_solders.parse([raw])
    for signature, key in zip(found.signatures, found.signers, strict=True):
        assert signature.verify(key, found.message)
    # Only configuration and signatures differ from what the tests make by themselves.
    made = parse(as_version_1(_legacy()))
    assert (made.keys, made.instructions, made.header) == (found.keys, found.instructions, found.header)
    assert newer_solders.parse([as_version_1(_legacy())]) == [_shown(made)]


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_transaction_is_unreadable(name: str) -> None:
    raw = FORMATS[name]()
    for end in range(len(raw)):
        with pytest.raises(UnreadableTransactionError):
            parse(raw[:end])
        with pytest.raises(UnreadableTransactionError):
            decode_transaction(_answer(raw[:end]), load())
    with pytest.raises(UnreadableTransactionError, match="surplus"):
        parse(raw + b"\0")


@pytest.mark.parametrize("version", [0, 2, 3, 127])
def test_unknown_version_is_unreadable(version: int) -> None:
    with pytest.raises(UnreadableTransactionError, match=r"version|malformed"):
        parse(bytes([0x80 | version]) + FORMATS["version 1"]()[1:])


def _mutated(raw: bytes, draw: random.Random) -> bytes:
    """Change a few bytes, half of the time in the header, where most of them matter."""
    changed = bytearray(raw)
    for _ in range(draw.randint(1, 3)):
        changed[draw.randrange(len(raw) if draw.random() < 0.5 else 44)] = draw.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_transaction_is_read_or_unreadable(name: str, request: pytest.FixtureRequest) -> None:
    draw, codec, raw = random.Random(name), load(), FORMATS[name]()
    read = 0
    for _ in range(_MUTATIONS[request.config.getoption("--full")]):
        changed = _mutated(raw, draw)
        try:
            found = parse(changed)
        except UnreadableTransactionError:
            with pytest.raises(UnreadableTransactionError):
                decode_transaction(_answer(changed), codec)
            continue
        assert found.signed_with(found.signatures) == changed
        read += 1
        # Another number of addresses from lookup tables is not the number that the node names.
        try:
            decoded = decode_transaction(_answer(changed), codec)
        except IncompleteTransactionError:
            assert found.from_tables not in {0, len(_OTHERS[2:])}
        except UnreadableTransactionError:
            assert len(found.keys) + found.from_tables < 2
        else:
            assert decoded is not None
    assert read


def test_mutations_are_read_as_solders_reads_them(newer_solders: Runtime) -> None:
    draw, raw = random.Random(1), newer_solders.version_1(_legacy(), KEYS)
    changed = [_mutated(raw, draw) for _ in range(_MUTATIONS[0])]
    for one, expected in zip(changed, newer_solders.parse(changed), strict=True):
        try:
            found: dict[str, Any] | None = _shown(parse(one))
        except UnreadableTransactionError:
            found = None
        if found != expected:
            # Solders refuses bits of the configuration mask that are not assigned yet.
            assert expected is None
            assert one[_MASK] != raw[_MASK]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("slot",), "5"),
        (("slot",), True),
        (("slot",), -1),
        (("slot",), 1e308),
        (("blockTime",), 2**80),
        (("transaction",), "text"),
        (("transaction",), []),
        (("transaction", 0), None),
        (("transaction", 0), "not base64"),
        (("transaction", 0), "é"),
        (("meta",), []),
        (("meta", "innerInstructions"), {}),
        (("meta", "innerInstructions"), [None]),
        (("meta", "innerInstructions", 0, "index"), -1),
        (("meta", "innerInstructions", 0, "index"), 2**40),
        (("meta", "innerInstructions", 0, "instructions"), "text"),
        (("meta", "innerInstructions", 0, "instructions", 0, "programIdIndex"), 99),
        (("meta", "innerInstructions", 0, "instructions", 0, "programIdIndex"), -1),
        (("meta", "innerInstructions", 0, "instructions", 0, "programIdIndex"), True),
        (("meta", "innerInstructions", 0, "instructions", 0, "accounts"), [-1]),
        (("meta", "innerInstructions", 0, "instructions", 0, "data"), "0OIl"),
        (("meta", "preTokenBalances"), "text"),
        (("meta", "preTokenBalances", 0), None),
        (("meta", "preTokenBalances", 0, "accountIndex"), "1"),
        (("meta", "preTokenBalances", 0, "accountIndex"), -1),
        (("meta", "preTokenBalances", 0, "uiTokenAmount"), None),
        (("meta", "preTokenBalances", 0, "uiTokenAmount", "amount"), 7),
        (("meta", "preTokenBalances", 0, "uiTokenAmount", "amount"), "-7"),
        (("meta", "preTokenBalances", 0, "uiTokenAmount", "amount"), "9" * 5000),
        (("meta", "loadedAddresses"), "text"),
        (("meta", "loadedAddresses", "writable", 0), "not an address"),
        (("meta", "loadedAddresses", "writable", 0), None),
    ],
)
def test_field_of_another_type_is_unreadable(path: tuple[str | int, ...], value: Any) -> None:
    answer: Any = _answer(_version_0())
    assert decode_transaction(answer, load()) is not None
    holder = answer
    for one in path[:-1]:
        holder = holder[one]
    holder[path[-1]] = value
    with pytest.raises(UnreadableTransactionError):
        decode_transaction(answer, load())


@pytest.mark.parametrize("answer", [None, 7, "text", [], True])
def test_answer_that_is_no_object_is_unreadable(answer: Any) -> None:
    with pytest.raises(UnreadableTransactionError):
        decode_transaction(answer, load())
