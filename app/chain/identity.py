"""Identifies a service's chain, program and mint, and provides a transport that rejects nodes of other chains."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from solders.hash import Hash

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.rpc import Rpc
from app.chain.transport import Transport

Cluster = Literal["mainnet-beta", "devnet", "testnet", "localnet"]

#: The public clusters by genesis hash. Every other chain counts as a local network.
#: Source: `getGenesisHash` of their public nodes; https://docs.anza.xyz/clusters/available.
_CLUSTERS: Mapping[str, Cluster] = {
    "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d": "mainnet-beta",
    "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG": "devnet",
    "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY": "testnet",
}
#: Circle's USDC mints.
USDC_MINTS: Mapping[Cluster, str] = {
    "mainnet-beta": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
    "devnet": "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",
}


def cluster_of(genesis_hash: str) -> Cluster:
    """Return the public cluster with this genesis hash, or `localnet` for any other chain."""
    return _CLUSTERS.get(genesis_hash, "localnet")


def chain_name(genesis_hash: str) -> str:
    """Return a readable name of a chain: its cluster and its genesis hash."""
    cluster = cluster_of(genesis_hash)
    return f"{'a local network' if cluster == 'localnet' else cluster} (genesis hash {genesis_hash})"


@dataclass(frozen=True, slots=True)
class ChainIdentity:
    """The chain, program and mint of a data folder, in base58. The folder cannot be used with any others."""

    genesis_hash: str
    program_id: str
    mint: str

    @property
    def genesis_bytes(self) -> bytes:
        """The genesis hash as 32 bytes, the form that the program stores."""
        return bytes(Hash.from_string(self.genesis_hash))

    @property
    def cluster(self) -> Cluster:
        """The public cluster with this genesis hash, or `localnet` for any other chain."""
        return cluster_of(self.genesis_hash)


class WrongChainError(ChainUnavailable):
    """The node belongs to another chain than expected."""


class SameChain:
    """A transport that checks the node's genesis hash, and passes requests only to a node of the expected chain.

    The first call waits for the check. Later calls repeat the check in the background, at most every ten seconds,
    because the node behind an address can change.
    """

    #: Seconds between two checks.
    every = 10.0

    def __init__(self, through: Transport, expected: str | None) -> None:
        """Expect this genesis hash of the node; None accepts the first one received."""
        self._through = through
        self._expected = expected
        self._same = False
        self._asked = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def genesis_hash(self) -> str:
        """Return the node's genesis hash.

        Raises `WrongChainError` if the node serves another chain, and the errors of `Rpc.call`.
        """
        if not self._same:
            await self._ask()
        assert self._expected is not None
        return self._expected

    async def __call__(self, body: bytes) -> bytes:
        """Return the response body. Raises `ChainUnavailable`.

        For an unchecked node, raises the errors of `genesis_hash`.
        """
        if not self._same:
            await self._ask()
        elif self._asking is None and time.monotonic() >= self._asked + self.every:
            self._asking = asyncio.create_task(self._ask_again())
        return await self._through(body)

    async def _ask(self) -> None:
        found = await Rpc(self._through).call("getGenesisHash", [])
        if not isinstance(found, str):
            raise ChainUnavailable("the node's response to getGenesisHash is malformed")
        self._same = self._expected in (None, found)
        if not self._same:
            raise WrongChainError(f"the node belongs to {chain_name(found)}")
        self._expected, self._asked = found, time.monotonic()

    async def _ask_again(self) -> None:
        # If the node does not respond, it may still be of the right chain. The next call repeats the check.
        try:
            with suppress(ChainUnavailable, RpcError):
                await self._ask()
        finally:
            self._asking = None

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        if self._asking is not None:
            self._asking.cancel()
        close = getattr(self._through, "aclose", None)
        if close is not None:
            await close()
