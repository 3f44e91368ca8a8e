"""Accounts and transactions in the encodings of the RPC."""

import base64
import json
from collections.abc import Callable
from typing import Any

from based58 import b58decode, b58encode
from solders.account import Account
from solders.instruction import CompiledInstruction
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from app.localnet import tokens
from app.localnet.errors import INVALID_REQUEST, UNSUPPORTED_TRANSACTION_VERSION, MethodError
from app.localnet.parsed_instructions import parsed_instruction
from app.localnet.storage import StoredTransaction, to_json

_MAX_BASE58_DATA = 128
# The rent epoch of an account that is exempt from rent, as all are. Built-in programs and sysvars keep epoch 0.
_RENT_EXEMPT = 2**64 - 1
_BUILT_IN_OWNERS = {
    Pubkey.from_string("NativeLoader1111111111111111111111111111111"),
    Pubkey.from_string("Sysvar1111111111111111111111111111111111111"),
}
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_MAX_BLOCK = 128 * 1024


class Raw(str):
    """A method's result that is already JSON text."""

    __slots__ = ()


# Accounts


def account_json(
    account: Account,
    encoding: str,
    data_slice: dict[str, int] | None = None,
    decimals_of: Callable[[Pubkey], int | None] = lambda _mint: None,
) -> dict[str, Any]:
    """Return an account in the RPC's form.

    `encoding` is binary, base58, base64, base64+zstd or jsonParsed. The last one decodes token accounts and mints and
    shows all other data in base64. Raises MethodError if base58 or binary is requested for more than 128 bytes.
    """
    shown: Any = tokens.parsed(account, decimals_of) if encoding == "jsonParsed" else None
    data = account.data
    size = len(data)
    if shown is None:
        if data_slice is not None:
            data = data[data_slice["offset"] : data_slice["offset"] + data_slice["length"]]
        shown = _encoded_data(data, encoding)
    return {
        "data": shown,
        "executable": account.executable,
        "lamports": account.lamports,
        "owner": str(account.owner),
        "rentEpoch": 0 if account.owner in _BUILT_IN_OWNERS else _RENT_EXEMPT,
        "space": size,
    }


def _encoded_data(data: bytes, encoding: str) -> Any:
    if encoding in {"binary", "base58"}:
        if len(data) > _MAX_BASE58_DATA:
            message = "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding."
            raise MethodError(INVALID_REQUEST, message)
        text = b58encode(data).decode()
        # `binary` is the oldest form: only the text, without the name of the encoding.
        return text if encoding == "binary" else [text, "base58"]
    if encoding == "base64+zstd":
        return [base64.b64encode(zstd_frame(data)).decode(), "base64+zstd"]
    return [base64.b64encode(data).decode(), "base64"]


def zstd_frame(data: bytes) -> bytes:
    """Return `data` as a Zstandard frame of uncompressed blocks (RFC 8878, 3.1.1), readable by every decoder.

    Clients such as the Solana CLI request this encoding. Compression would gain nothing on a local connection.
    """
    # Frame header: 8-byte content size, single segment, no checksum, no dictionary.
    parts = [_ZSTD_MAGIC, b"\xe0", len(data).to_bytes(8, "little")]
    blocks = [data[start : start + _ZSTD_MAX_BLOCK] for start in range(0, len(data), _ZSTD_MAX_BLOCK)] or [b""]
    for index, block in enumerate(blocks):
        last = index == len(blocks) - 1
        parts += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(parts)


# Transactions


def transaction_json(stored: StoredTransaction, encoding: str, max_version: int | None) -> Raw:
    """Return a stored transaction in the form of getTransaction.

    `encoding` is binary, base58, base64, json or jsonParsed. `max_version` is the newest version that the client reads,
    or None if it reads only legacy transactions. Raises MethodError if the transaction's version is newer.
    """
    shown = _transaction_members(stored, encoding, max_version)
    place = f'"slot":{stored.slot},"transactionIndex":{stored.index},"blockTime":{stored.block_time}'
    return Raw(f"{{{place},{shown}}}")


def block_transaction_json(stored: StoredTransaction, encoding: str, max_version: int | None) -> Raw:
    """Return a stored transaction in the form of getBlock with full details: without slot and block time.

    The parameters and errors are as for ``transaction_json``.
    """
    return Raw(f"{{{_transaction_members(stored, encoding, max_version)}}}")


def _transaction_members(stored: StoredTransaction, encoding: str, max_version: int | None) -> str:
    versioned = stored.wire_is_versioned
    if versioned and max_version is None:
        raise MethodError(
            UNSUPPORTED_TRANSACTION_VERSION,
            "Transaction version (0) is not supported by the requesting client. Please try the request again "
            'with the following configuration parameter: "maxSupportedTransactionVersion": 0',
        )
    meta = stored.meta
    if encoding == "base64":
        shown = to_json([base64.b64encode(stored.wire).decode(), "base64"])
    elif encoding in {"binary", "base58"}:
        text = b58encode(stored.wire).decode()
        shown = to_json(text if encoding == "binary" else [text, "base58"])
    else:
        transaction = VersionedTransaction.from_bytes(stored.wire)
        message = _message_json(transaction.message)
        if encoding == "jsonParsed":
            body = json.loads(meta)
            _resolve_indexes(message, transaction.message, body)
            meta = to_json(body)
        shown = to_json({"message": message, "signatures": [str(one) for one in transaction.signatures]})
    version = "" if max_version is None else f'"version":{0 if versioned else to_json("legacy")},'
    return f'{version}"meta":{meta},"transaction":{shown}'


def instruction_json(instruction: CompiledInstruction, stack_height: int) -> dict[str, Any]:
    """Return an instruction with its program and accounts as indexes into the transaction's keys."""
    return {
        "programIdIndex": instruction.program_id_index,
        "accounts": list(instruction.accounts),
        "data": b58encode(bytes(instruction.data)).decode(),
        "stackHeight": stack_height,
    }


def _message_json(message: Message | MessageV0) -> dict[str, Any]:
    header = message.header
    shown: dict[str, Any] = {
        "accountKeys": [str(key) for key in message.account_keys],
        "header": {
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
            "numRequiredSignatures": header.num_required_signatures,
        },
        "instructions": [instruction_json(instruction, 1) for instruction in message.instructions],
        "recentBlockhash": str(message.recent_blockhash),
    }
    if isinstance(message, MessageV0):
        shown["addressTableLookups"] = [
            {
                "accountKey": str(lookup.account_key),
                "writableIndexes": list(lookup.writable_indexes),
                "readonlyIndexes": list(lookup.readonly_indexes),
            }
            for lookup in message.address_table_lookups
        ]
    return shown


def _resolve_indexes(shown: dict[str, Any], message: Message | MessageV0, meta: dict[str, Any]) -> None:
    """Replace indexes with addresses in `shown`, the JSON form of `message`, and in `meta`.

    Instructions of well-known programs are parsed. All others get the RPC's partially decoded form: program, accounts
    and data.
    """
    header = message.header
    signers = header.num_required_signatures
    static: list[str] = shown["accountKeys"]
    unsigned_writable = len(static) - header.num_readonly_unsigned_accounts
    loaded = meta.pop("loadedAddresses")
    keys = [*static, *loaded["writable"], *loaded["readonly"]]

    def account(index: int, key: str) -> dict[str, Any]:
        if index < len(static):
            writable = index < (signers - header.num_readonly_signed_accounts if index < signers else unsigned_writable)
            return {"pubkey": key, "signer": index < signers, "source": "transaction", "writable": writable}
        writable = index < len(static) + len(loaded["writable"])
        return {"pubkey": key, "signer": False, "source": "lookupTable", "writable": writable}

    def decoded(instruction: dict[str, Any]) -> dict[str, Any]:
        program = keys[instruction["programIdIndex"]]
        named = [keys[index] for index in instruction["accounts"]]
        ends = {"programId": program, "stackHeight": instruction["stackHeight"]}
        parsed = parsed_instruction(program, named, b58decode(instruction["data"].encode()))
        return (parsed or {"accounts": named, "data": instruction["data"]}) | ends

    for group in (shown, *meta["innerInstructions"]):
        group["instructions"] = [decoded(instruction) for instruction in group["instructions"]]
    shown["accountKeys"] = [account(index, key) for index, key in enumerate(keys)]
    del shown["header"]
