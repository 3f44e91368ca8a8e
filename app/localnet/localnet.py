"""The embedded chain as a whole: storage, execution, RPC and a faucet."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import uvicorn
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction
from starlette.types import ASGIApp

from app.localnet import genesis, server, tokens
from app.localnet.bank import Bank
from app.localnet.chain import Chain
from app.localnet.context import Node
from app.localnet.storage import Storage
from app.localnet.subscriptions import Subscriptions
from app.localnet.timeline import Timeline

_MINT_TO = 7  # instruction number in the SPL Token program
_MAX_UNITS = 1_400_000
_DISTINCT_LIMITS = 1_000_000


class Localnet:
    """A Solana node with a chain of its own.

    Reach it in process through `rpc_app` (`httpx.ASGITransport`), or over sockets with `serve`. Use it as an
    asynchronous context manager, or call `aclose`, so that the last executed transactions are written.
    """

    def __init__(self, chain: Chain, faucet: Keypair, lock: IO[str] | None) -> None:
        """Use `open` instead."""
        self.chain = chain
        self.faucet = faucet
        self.usdc_mint = genesis.USDC_MINT
        self._lock = lock
        self._faucet_calls = int(time.time() * 1000)
        self._subscriptions = Subscriptions(chain)
        node = Node(chain, faucet.pubkey(), lambda address, lamports: str(self._airdrop(address, lamports)))
        self._node = node
        self.rpc_app: ASGIApp = server.RpcApp(node)
        self.ws_app: ASGIApp = server.ws_app(self._subscriptions)

    @classmethod
    def open(
        cls, data_dir: Path | None, programs: Mapping[Pubkey, Path], clock: Callable[[], float] = time.time
    ) -> Self:
        """Start or continue the chain kept in `data_dir`; None keeps one in memory.

        `programs` maps addresses to .so files, which are loaded anew at every start. `clock` gives Unix seconds; slots
        and the Clock sysvar follow it. Raises DataDirInUseError: another process has the directory. Raises ValueError
        or sqlite3.Error: what is in it cannot be read.
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

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write everything executed and close the files.

        Raises sqlite3.Error: the rest could not be written.
        """
        try:
            await self._subscriptions.aclose()
            await self.chain.aclose()
        finally:
            if self._lock is not None:
                self._lock.close()

    async def confirmation(self, signature: Signature) -> object:
        """Wait until a transaction is confirmed and return its error in JSON form, None for success.

        Waits for ever for a transaction that is never executed: give it a time limit.
        """
        return await self.chain.confirmation(signature)

    # Faucet

    async def airdrop(self, address: Pubkey, lamports: int) -> Signature:
        """Send lamports from the faucet and wait for the confirmation.

        Raises RuntimeError: the transfer failed.
        """
        return await self._confirmed(self._airdrop(address, lamports))

    async def mint_usdc(self, token_account: Pubkey, amount: int) -> Signature:
        """Mint `amount` micro-USDC into an existing token account of the USDC mint and wait for the confirmation.

        Raises RuntimeError: the token program refused it.
        """
        accounts = [
            AccountMeta(self.usdc_mint, is_signer=False, is_writable=True),
            AccountMeta(token_account, is_signer=False, is_writable=True),
            AccountMeta(self.faucet.pubkey(), is_signer=True, is_writable=False),
        ]
        data = bytes([_MINT_TO]) + amount.to_bytes(8, "little")
        return await self._confirmed(self._send(Instruction(tokens.TOKEN_PROGRAM, data, accounts)))

    def _airdrop(self, address: Pubkey, lamports: int) -> Signature:
        parameters = TransferParams(from_pubkey=self.faucet.pubkey(), to_pubkey=address, lamports=lamports)
        return self._send(transfer(parameters))

    def _send(self, instruction: Instruction) -> Signature:
        # A compute limit that differs each time keeps two equal requests in one slot from being duplicates.
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
    async def serving(self, host: str, port: int) -> AsyncIterator[tuple[int, int]]:
        """Serve HTTP on `port` and WebSocket on the one above while the context lasts; yields both ports.

        Port 0 takes any free pair. Signal handlers are left to the caller. Raises OSError: a port is taken.
        """
        http_socket, ws_socket = _bind_pair(host, port)
        servers = [_RpcServer(_uvicorn(app)) for app in (self.rpc_app, self.ws_app)]
        tasks = [
            asyncio.create_task(one.serve(sockets=[bound]))
            for one, bound in zip(servers, (http_socket, ws_socket), strict=True)
        ]
        try:
            await asyncio.gather(*(one.ready.wait() for one in servers))
            yield http_socket.getsockname()[1], ws_socket.getsockname()[1]
        finally:
            for one in servers:
                one.should_exit = True
            await asyncio.gather(*tasks)


class _RpcServer(uvicorn.Server):
    """A server that tells when it listens and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _uvicorn(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="websockets-sansio",
        # Longer than clients keep a connection that they do not use, so that none sends into one being closed.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )


def _bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Bind `port` and the one above it; with port 0 try free ones until a pair is found."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        first = _bind(family, host, port)
        try:
            return first, _bind(family, host, first.getsockname()[1] + 1)
        except (OSError, OverflowError):
            first.close()
            if port:
                raise


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    # asyncio switches Nagle's delay off only on sockets that name their protocol; with it every answer takes 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound
