"""Invented transactions, in the form that the decoder returns."""

from typing import Any

from solders.pubkey import Pubkey

from idl.codec import Event
from idl.transactions import ChainEvent
from indexer.records import ChainTransaction, TokenMove

ORG, RESERVE = Pubkey(bytes([1]) * 32), Pubkey(bytes([2]) * 32)
VAULT, TOKENS = Pubkey(bytes([3]) * 32), Pubkey(bytes([4]) * 32)


def transaction(
    number: int, *events: Event, moves: tuple[TokenMove, ...] = (), slot: int | None = None
) -> ChainTransaction:
    """Return a transaction with these events, one per instruction."""
    found = tuple(ChainEvent(index, 0, event) for index, event in enumerate(events))
    at = number if slot is None else slot
    return ChainTransaction(f"signature-{number}", at, 1000 + at, "payer", "hash", found, moves)


def org_created(sequence: int = 1, org: Pubkey = ORG, reserve: Pubkey = RESERVE) -> Event:
    """Return the creation of an organisation."""
    return Event("OrgInitialized", {"org": org, "reserve_tokens": reserve, "sequence": sequence})


def vault_created(sequence: int = 1) -> Event:
    """Return the creation of a vault."""
    return Event("WalletCreated", {"org": ORG, "vault": VAULT, "vault_tokens": TOKENS, "sequence": sequence})


def vault_event(name: str, sequence: int, **fields: Any) -> Event:
    """Return an event of the vault."""
    return Event(name, {"org": ORG, "vault": VAULT, "sequence": sequence, **fields})


def move(account: Pubkey, before: int, after: int, index: int = 1) -> TokenMove:
    """Return what a transaction did to a token account."""
    return TokenMove(str(account), index, before, after)
