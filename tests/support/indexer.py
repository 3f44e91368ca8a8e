"""Indexers of a `Stage`'s chain, misbehaving nodes, and invented transactions in the form that the decoder returns."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from solders.pubkey import Pubkey

from idl.codec import Event
from idl.transactions import ChainEvent
from indexer import Indexer
from indexer.records import ChainTransaction, TokenMove
from tests.support.chain import Stage, altered

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
    """Return a transaction's effect on a token account."""
    return TokenMove(str(account), index, before, after)


def indexer_of(stage: Stage, path: Path, transport: Any = None, **options: Any) -> Indexer:
    """Return an indexer of the stage's chain."""
    return Indexer(transport=transport or stage.transport, codec=stage.codec, db_path=path / "chain.db", **options)


class Altered:
    """Carries calls to a node, and lets a test change the answers."""

    def __init__(self, transport: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.transport = transport
        self.calls: list[str] = []
        self.params: list[Any] = []
        self.change: Callable[[str, Any], Any] = lambda method, result: result  # noqa: ARG005

    async def __call__(self, body: bytes) -> bytes:
        request = json.loads(body)
        methods = [one["method"] for one in (request if isinstance(request, list) else [request])]
        self.calls += methods
        self.params += [one["params"] for one in (request if isinstance(request, list) else [request])]
        return altered(methods, await self.transport(body), self.change)
