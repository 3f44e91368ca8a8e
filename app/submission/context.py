"""The context that use cases receive as their first argument."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from solders.pubkey import Pubkey

from app.chain.addresses import Addresses
from app.chain.client import ChainClient
from app.chain.clock import ChainClock
from app.chain.identity import ChainIdentity
from app.chain.instructions import Instructions
from app.core.settings import Settings
from app.core.signers import Signers
from app.database.interface import Database
from app.projection.projector import Projector
from app.submission.brake import Brakes
from app.submission.locks import Locks
from app.submission.submitter import Submitter
from idl.codec import Codec
from indexer import Indexer

T = TypeVar("T")


@dataclass(slots=True)
class Service:
    """The objects that capabilities share, wired by ``app.server.bootstrap``.

    ``parts`` maps classes to the objects that only some use cases or processes need; see ``part``.
    """

    settings: Settings
    db: Database
    codec: Codec
    addresses: Addresses
    identity: ChainIdentity
    chain: ChainClient
    clock: ChainClock
    indexer: Indexer
    projector: Projector
    signers: Signers
    submitter: Submitter
    brake: Brakes
    parts: Mapping[type, object]
    locks: Locks = field(default_factory=Locks)
    _instructions: dict[str, Instructions] = field(default_factory=dict)

    def part(self, kind: type[T]) -> T:
        """Return the part of a class, such as a background worker. Raises KeyError if this process runs without it."""
        return cast(T, self.parts[kind])

    def instructions(self, org: str) -> Instructions:
        """Return the program's instructions, bound to an organisation."""
        found = self._instructions.get(org)
        if found is None:
            found = Instructions(self.codec, self.addresses, Pubkey.from_string(org))
            self._instructions[org] = found
        return found

    async def catch_up(self) -> None:
        """Bring all the program's events on the chain into the read models."""
        await self.indexer.catch_up()
        await self.projector.catch_up()
