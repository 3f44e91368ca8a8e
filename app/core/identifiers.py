"""Public identifiers: a prefix and 16 bytes in base58.

The ids of wallets, policies, escrows, transactions and chain events derive from the chain alone. They stay the same
when the database is rebuilt.
"""

import hashlib
import secrets

from based58 import b58decode, b58encode
from solders.pubkey import Pubkey

SIZE = 16
"""Number of bytes in an identifier."""
WALLET_PREFIX = "wal_"
POLICY_PREFIX = "pol_"
BUDGET_PREFIX = "bud_"
TRANSACTION_PREFIX = "tx_"
EVENT_PREFIX = "evt_"
ESCROW_PREFIX = "escrow_"
ALLOWANCE_PREFIX = "alw_"
APPROVAL_PREFIX = "apr_"

PRESET_POLICY_IDS = ("pol_conservative", "pol_moderate", "pol_permissive", "pol_locked")
"""Ids of the preset policies that every organisation has. Their 16-byte keys are these names, padded with zero bytes.
"""

EVENT_INNER_INDEX = 1
"""Index of the event among the inner instructions of a funding, withdrawal or payment. The transfer precedes the event.
"""
ESCROW_EVENT_INNER_INDEX = 5
"""Index of the event among the inner instructions of an escrow's creation.

The inner instructions before it create one of the escrow's two accounts, give the other its rent, space and
initialisation, and move the money. The index differs if one of the two addresses already holds lamports.
"""
ALLOWANCE_EVENT_INNER_INDEX = 6
"""Index of the event among the inner instructions of an allowance's grant.

Compared with an escrow, one more inner instruction names the delegate.
"""

_PRESET_KEYS = {name.encode().ljust(SIZE, b"\0"): name for name in PRESET_POLICY_IDS}
_PRESET_IDS = {name: key for key, name in _PRESET_KEYS.items()}


def wallet_id(vault: Pubkey | str) -> str:
    """Return the id of the wallet with the vault at this address."""
    return _encode(WALLET_PREFIX, _bytes_of(vault)[:SIZE])


def policy_id(key: bytes) -> str:
    """Return the id of the policy with this 16-byte key."""
    return _PRESET_KEYS.get(key) or _encode(POLICY_PREFIX, key)


def policy_key(identifier: str) -> bytes:
    """Return the 16-byte key of a policy id. Raises ValueError for a malformed id."""
    if identifier in _PRESET_IDS:
        return _PRESET_IDS[identifier]
    return _decode(POLICY_PREFIX, identifier)


def budget_id(key: bytes) -> str:
    """Return the id of the budget with this 16-byte key."""
    return _encode(BUDGET_PREFIX, key)


def budget_key(identifier: str) -> bytes:
    """Return the 16-byte key of a budget id. Raises ValueError for a malformed id."""
    return _decode(BUDGET_PREFIX, identifier)


def approval_id(reference: bytes) -> str:
    """Return the id of the approval with this 16-byte reference. The approval does not need to exist yet."""
    return _encode(APPROVAL_PREFIX, reference)


def approval_reference(identifier: str) -> bytes:
    """Return the 16-byte reference of an approval id. Raises ValueError for a malformed id."""
    return _decode(APPROVAL_PREFIX, identifier)


def escrow_id(address: Pubkey | str) -> str:
    """Return the id of the escrow at this address."""
    return _encode(ESCROW_PREFIX, _bytes_of(address)[:SIZE])


def allowance_id(address: Pubkey | str) -> str:
    """Return the id of the allowance at this address."""
    return _encode(ALLOWANCE_PREFIX, _bytes_of(address)[:SIZE])


def transaction_id(message_hash: str, instruction: int, inner: int, row_type: str) -> str:
    """Return the id of the transaction row that an event produces.

    `instruction` and `inner` locate the event in the transaction. `row_type` distinguishes several rows of one event,
    such as `a2a_send` and `escrow_lock`.
    """
    return _encode(TRANSACTION_PREFIX, _event_digest(message_hash, instruction, inner, row_type))


def event_id(message_hash: str, instruction: int, inner: int, name: str) -> str:
    """Return the id of the feed entry `name` that an on-chain event causes."""
    return _encode(EVENT_PREFIX, _event_digest(message_hash, instruction, inner, name))


def random_id(prefix: str) -> str:
    """Return a random id with this prefix, for objects that are not on the chain."""
    return _encode(prefix, secrets.token_bytes(SIZE))


def derived_id(prefix: str, *parts: str) -> str:
    """Return the id determined by these parts; the same parts always give the same id."""
    return _encode(prefix, hashlib.sha256("\0".join(parts).encode()).digest()[:SIZE])


def new_key() -> bytes:
    """Return a random 16-byte key for a policy or a budget."""
    return secrets.token_bytes(SIZE)


def new_reference() -> bytes:
    """Return 16 random bytes that identify an approval or a movement of money. Its event repeats the bytes."""
    return secrets.token_bytes(SIZE)


def is_id(prefix: str, text: str) -> bool:
    """Return True if `text` is a well-formed id with this prefix. Names of presets are well-formed policy ids."""
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


def _bytes_of(address: Pubkey | str) -> bytes:
    return bytes(Pubkey.from_string(address) if isinstance(address, str) else address)


def _encode(prefix: str, raw: bytes) -> str:
    return prefix + b58encode(raw).decode()


def _decode(prefix: str, text: str) -> bytes:
    # 16 bytes have at most 22 characters in base58. Longer input is refused before it is decoded.
    fits = text.startswith(prefix) and len(text) <= len(prefix) + 22 and text.isascii()
    raw = b58decode(text.removeprefix(prefix).encode()) if fits else b""
    if len(raw) != SIZE:
        raise ValueError(f"{text[:40]!r} is not an id that starts with {prefix}")
    return raw
