"""What a running service consists of; the use cases get it as their first argument."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from solders.pubkey import Pubkey

from app.access.keyring import KeyRing
from app.chain.addresses import Addresses
from app.chain.client import ChainClient
from app.chain.instructions import Instructions
from app.core.settings import Settings
from app.core.signers import Signers
from app.projection.projector import Projector
from app.store.database import Database
from app.submission.idempotency import Idempotency
from app.submission.recovery import Settlement
from app.submission.submitter import Submitter
from app.submission.wallet_cache import WalletCache
from idl.codec import Codec
from indexer import Indexer

if TYPE_CHECKING:
    from app.alerts.watcher import Watcher
    from app.exports.exporter import Exporter
    from app.exports.links import DownloadLinks
    from app.recipients.domains import DomainResolver
    from app.webhooks.courier import Courier


@dataclass(slots=True)
class Service:
    """The parts of the service, wired by ``app.server.bootstrap``."""

    settings: Settings
    db: Database
    codec: Codec
    addresses: Addresses
    chain: ChainClient
    indexer: Indexer
    projector: Projector
    signers: Signers
    keys: KeyRing
    idempotency: Idempotency
    submitter: Submitter
    domains: "DomainResolver"
    settlement: Settlement
    wallet_cache: WalletCache
    exporter: "Exporter"
    download_links: "DownloadLinks"
    courier: "Courier"
    watcher: "Watcher | None"
    _instructions: dict[str, Instructions] = field(default_factory=dict)

    def instructions(self, org: str) -> Instructions:
        """Return the program's instructions, bound to an organisation."""
        found = self._instructions.get(org)
        if found is None:
            found = Instructions(self.codec, self.addresses, Pubkey.from_string(org))
            self._instructions[org] = found
        return found
