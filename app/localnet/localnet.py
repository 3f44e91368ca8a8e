"""The embedded chain as a whole: storage, execution, RPC and a faucet."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Self

import uvicorn
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction
from spl.token.instructions import MintToParams, mint_to
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp

from app.core.hosts import AllowedHosts
from app.localnet import genesis
from app.localnet.bank import Bank
from app.localnet.chain import Chain
from app.localnet.context import Node
from app.localnet.guard import Guard
from app.localnet.server import RpcApp
from app.localnet.storage import Storage
from app.localnet.subscriptions import Subscriptions
from app.localnet.timeline import Timeline
from app.localnet.tokens import TOKEN_PROGRAM

_MAX_UNITS = 1_400_000
_DISTINCT_LIMITS = 1_000_000


class Localnet:
    """A Solana node with its own chain.

    Call it in the same process through `rpc_app` (`httpx.ASGITransport`), or over sockets with `serving`. Use it as an
    asynchronous context manager or call `aclose`, so that the last executed transactions are written.
    """

    def __init__(self, chain: Chain, faucet: Keypair, lock: IO[str] | None) -> None:
        """Do not call this directly; use `open`."""
        self.chain = chain
        self.faucet = faucet
        self.usdc_mint = genesis.USDC_MINT
        self._lock = lock
        self._faucet_calls = int(time.time() * 1000)
        self._subscriptions = Subscriptions(chain)
        node = Node(chain, faucet.pubkey(), lambda address, lamports: str(self._airdrop(address, lamports)))
        self.ws_app: ASGIApp = Starlette(routes=[WebSocketRoute("/", self._subscriptions.serve)])
        self.rpc_app: ASGIApp = RpcApp(node, self.ws_app)

    @classmethod
    def open(
        cls, data_dir: Path | None, programs: Mapping[Pubkey, Path], clock: Callable[[], float] = time.time
    ) -> Self:
        """Start or continue the chain in `data_dir`, or in memory if it is None.

        `programs` maps addresses to .so files, which are loaded at every start. `clock` returns Unix seconds; slots and
        the Clock sysvar follow it. Raises DataDirInUseError if another process uses the directory. Raises ValueError or
        sqlite3.Error if its contents cannot be read, and KeyFileError if the key of an existing chain's faucet is
        missing.
        """
        with contextlib.ExitStack() as on_error:
            lock = None if data_dir is None else on_error.enter_context(genesis.lock(data_dir))
            storage = Storage(None if data_dir is None else data_dir / "localnet.db")
            on_error.callback(storage.close)
            state = storage.state()
            faucet = genesis.faucet_key(data_dir, create=not state)
            if not state:
                state = genesis.write(storage, faucet.pubkey(), int(clock()))
            timeline = Timeline(clock, Hash(state["genesis_hash"]), state["genesis_time"], state["last_time"])
            bank = Bank(timeline, programs)
            for address, account in storage.accounts():
                if address not in programs:
                    bank.put(address, account)
            localnet = cls(Chain(storage, timeline, bank), faucet, lock)
            on_error.pop_all()
        return localnet

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write all executed transactions and close the files.

        Raises sqlite3.Error if they could not be written.
        """
        try:
            await self._subscriptions.aclose()
            await self.chain.aclose()
        finally:
            if self._lock is not None:
                self._lock.close()

    # Faucet

    async def airdrop(self, address: Pubkey, lamports: int) -> Signature:
        """Send lamports from the faucet and wait for the confirmation.

        Raises RuntimeError if the transfer failed.
        """
        return await self._confirmed(self._airdrop(address, lamports))

    async def mint_usdc(self, token_account: Pubkey, amount: int) -> Signature:
        """Mint `amount` micro-USDC into an existing token account of the USDC mint and wait for the confirmation.

        Raises RuntimeError if the token program refused it.
        """
        mint = MintToParams(TOKEN_PROGRAM, self.usdc_mint, token_account, self.faucet.pubkey(), amount)
        return await self._confirmed(self._send(mint_to(mint)))

    def _airdrop(self, address: Pubkey, lamports: int) -> Signature:
        parameters = TransferParams(from_pubkey=self.faucet.pubkey(), to_pubkey=address, lamports=lamports)
        return self._send(transfer(parameters))

    def _send(self, instruction: Instruction) -> Signature:
        # Use a different compute limit in each call, so that two equal requests in one slot are not duplicates.
        self._faucet_calls += 1
        limit = set_compute_unit_limit(_MAX_UNITS - self._faucet_calls % _DISTINCT_LIMITS)
        blockhash = self.chain.timeline.blockhash(self.chain.slot())
        message = Message.new_with_blockhash([limit, instruction], self.faucet.pubkey(), blockhash)
        transaction = VersionedTransaction(message, [self.faucet])
        return self.chain.send(transaction, preflight=False).signature

    async def _confirmed(self, signature: Signature) -> Signature:
        err = await self.chain.confirmation(signature)
        if err is not None:
            raise RuntimeError(f"the faucet's transaction failed: {err}")
        return signature

    # Sockets

    @contextlib.asynccontextmanager
    async def serving(
        self,
        host: str,
        port: int,
        *,
        hosts: AllowedHosts | None = None,
        http: type[asyncio.Protocol] | None = None,
    ) -> AsyncIterator[tuple[int, int]]:
        """Serve HTTP and WebSocket on `port`, and WebSocket also on the next port. Yield both ports.

        A validator serves HTTP and WebSocket on two ports, and hosted nodes serve both on one.

        A request's Host and Origin must be among `hosts`, by default the names of this machine. `http` is uvicorn's
        HTTP protocol, such as one with time limits. With port 0, any free pair of ports is used. Signal handlers are
        left to the caller. Raises OSError if a port is in use.
        """
        # The sockets already listen, so clients may connect before the servers have started.
        sockets = _listen_pair(host, port)
        apps = [Guard(app, hosts or AllowedHosts()) for app in (self.rpc_app, self.ws_app)]
        servers = [_RpcServer(_uvicorn(app, http)) for app in apps]
        tasks = [asyncio.create_task(one.serve([bound])) for one, bound in zip(servers, sockets, strict=True)]
        try:
            yield sockets[0].getsockname()[1], sockets[1].getsockname()[1]
        finally:
            for one in servers:
                one.should_exit = True
            await asyncio.gather(*tasks)


class _RpcServer(uvicorn.Server):
    """A server that installs no signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn(app: ASGIApp, http: type[asyncio.Protocol] | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=http or "auto",
        ws="websockets-sansio",
        # Keep idle connections longer than clients do, so that no client sends into one that is being closed.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )


def _listen_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Listen on `port` and the next one. With port 0, try free ports until a pair is found."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        first = _listen(family, host, port)
        try:
            return first, _listen(family, host, first.getsockname()[1] + 1)
        except (OSError, OverflowError):
            first.close()
            if port:
                raise


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    # With Nagle's algorithm, every response takes 40 ms. asyncio disables it only on sockets that name their protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot listen on port {port} of {host}: {error.strerror}") from None
        raise
    return listener
