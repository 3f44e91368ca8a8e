"""Public identifiers: a prefix and the base58 of 16 bytes.

Those of wallets, policies, escrows, transactions and chain events follow from the chain alone, so that a rebuilt
database gives every object the id it had before.
"""

import hashlib
import secrets

from based58 import b58decode, b58encode
from solders.pubkey import Pubkey

SIZE = 16
"""Bytes behind an identifier."""
WALLET_PREFIX = "wal_"
POLICY_PREFIX = "pol_"
TRANSACTION_PREFIX = "tx_"
EVENT_PREFIX = "evt_"
ESCROW_PREFIX = "escrow_"
APPROVAL_PREFIX = "apr_"

PRESET_POLICY_IDS = ("pol_conservative", "pol_moderate", "pol_permissive", "pol_locked")
"""Policies every organisation starts with; their keys are these names, padded with zero bytes."""

EVENT_INNER_INDEX = 1
"""Index of the event among the inner instructions of funding, withdrawal and payment: it follows the transfer."""
ESCROW_EVENT_INNER_INDEX = 5
"""The same of an escrow's creation: an account is made, another gets its rent and its space and is initialised, the
money moves.

It stands elsewhere when somebody has sent lamports to one of the addresses.
"""

_PRESET_KEYS = {name.encode().ljust(SIZE, b"\0"): name for name in PRESET_POLICY_IDS}
_PRESET_IDS = {name: key for key, name in _PRESET_KEYS.items()}


def wallet_id(vault: Pubkey | str) -> str:
    """Return the id of the wallet whose vault has this address."""
    address = Pubkey.from_string(vault) if isinstance(vault, str) else vault
    return _encode(WALLET_PREFIX, bytes(address)[:SIZE])


def policy_id(key: bytes) -> str:
    """Return the id of the policy with this 16-byte key."""
    return _PRESET_KEYS.get(key) or _encode(POLICY_PREFIX, key)


def policy_key(identifier: str) -> bytes:
    """Return the 16-byte key of a policy id; `ValueError` when it is none."""
    if identifier in _PRESET_IDS:
        return _PRESET_IDS[identifier]
    return _decode(POLICY_PREFIX, identifier)


def approval_id(reference: bytes) -> str:
    """Return the id of the approval that is made, or would be made, under this 16-byte reference."""
    return _encode(APPROVAL_PREFIX, reference)


def approval_reference(identifier: str) -> bytes:
    """Return the 16-byte reference of an approval's id; `ValueError` when it is none."""
    return _decode(APPROVAL_PREFIX, identifier)


def escrow_id(address: Pubkey | str) -> str:
    """Return the id of the escrow at this address."""
    key = Pubkey.from_string(address) if isinstance(address, str) else address
    return _encode(ESCROW_PREFIX, bytes(key)[:SIZE])


def transaction_id(message_hash: str, instruction: int, inner: int, row_type: str) -> str:
    """Return the id of the row that an event stands for.

    `instruction` and `inner` say where the event stands in the transaction; `row_type` tells apart the rows of one
    event, such as `a2a_send` and `escrow_lock`.
    """
    return _encode(TRANSACTION_PREFIX, _event_digest(message_hash, instruction, inner, row_type))


def event_id(message_hash: str, instruction: int, inner: int, name: str) -> str:
    """Return the id of the feed entry `name` that an on-chain event gives rise to."""
    return _encode(EVENT_PREFIX, _event_digest(message_hash, instruction, inner, name))


def random_id(prefix: str) -> str:
    """Return a fresh id with this prefix, for what has no place on the chain."""
    return _encode(prefix, secrets.token_bytes(SIZE))


def derived_id(prefix: str, *parts: str) -> str:
    """Return the id that always belongs to these parts."""
    return _encode(prefix, hashlib.sha256("\0".join(parts).encode()).digest()[:SIZE])


def new_policy_key() -> bytes:
    """Return a fresh 16-byte key for a policy."""
    return secrets.token_bytes(SIZE)


def new_reference() -> bytes:
    """Return the fresh 16 bytes that a money instruction carries and its event repeats."""
    return secrets.token_bytes(SIZE)


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` is a well-formed id with this prefix, a preset's name included."""
    if prefix == POLICY_PREFIX and text in _PRESET_IDS:
        return True
    try:
        _decode(prefix, text)
    except ValueError:
        return False
    return True


def _event_digest(message_hash: str, instruction: int, inner: int, name: str) -> bytes:
    position = instruction.to_bytes(2, "little") + inner.to_bytes(2, "little")
    return hashlib.sha256(bytes.fromhex(message_hash) + position + name.encode()).digest()[:SIZE]


def _encode(prefix: str, raw: bytes) -> str:
    return prefix + b58encode(raw).decode()


def _decode(prefix: str, text: str) -> bytes:
    # Base58 of 16 bytes has at most 22 characters; longer input is refused before it is decoded.
    if not text.startswith(prefix) or len(text) > len(prefix) + 22 or not text.isascii():
        raise ValueError(f"{text[:40]!r} is no id that starts with {prefix}")
    raw = b58decode(text.removeprefix(prefix).encode())
    if len(raw) != SIZE:
        raise ValueError(f"{text[:40]!r} is no id that starts with {prefix}")
    return raw
