"""Runs the whole service on a validator of which it knows only the address, WebSocket included."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import httpx
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from spl.token.instructions import MintToParams, mint_to

from app.chain.addresses import TOKEN_PROGRAM
from app.organisations import service as organisations
from app.server.application import create_app
from app.server.bootstrap import running
from tests.support.service_world import ServiceWorld
from tests.support.vm_tokens import mint_data
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node


class Faucet:
    """Gives out the treasury's lamports, and USDC of a mint of which the treasury is the authority."""

    def __init__(self, node: Node) -> None:
        self._vm = ValidatorVm(node)
        self.usdc_mint = self._vm.put(Pubkey.default(), mint_data(), TOKEN_PROGRAM)
        self._vm.prepare()

    async def airdrop(self, address: Pubkey, lamports: int) -> None:
        """Send lamports."""
        giver = self._vm.fee_payer
        await self._send(transfer(TransferParams(from_pubkey=giver, to_pubkey=address, lamports=lamports)))

    async def mint_usdc(self, token_account: Pubkey, amount: int) -> None:
        """Mint micro-USDC into an existing token account."""
        giver = self._vm.fee_payer
        await self._send(mint_to(MintToParams(TOKEN_PROGRAM, self.usdc_mint, token_account, giver, amount)))

    async def _send(self, instruction: Instruction) -> None:
        await asyncio.to_thread(self._vm.succeed, instruction)


class ValidatorWorld(ServiceWorld):
    """A service as `serve --rpc-url` runs it, with a new organisation."""

    localnet: Faucet  # type: ignore[assignment] # the part of the embedded chain used besides its RPC

    def __init__(self, folder: Path, node: Node) -> None:
        self.localnet = Faucet(node)
        super().__init__(folder, rpc_url=node.url, usdc_mint=str(self.localnet.usdc_mint))

    async def __aenter__(self) -> Self:
        await self.start()
        await organisations.ensure_fees(self.service)
        self.org = await self.organisation("test")
        self.keys["admin"] = self.key("admin")
        return self

    async def start(self, *, lose_requests: Callable[[str], bool] | None = None, **settings: Any) -> None:
        """Start the service on the chain, which outlives restarts."""
        assert lose_requests is None, "the connection to a validator cannot be cut"
        self.settings = self.settings.model_copy(update=settings)
        self._stack = AsyncExitStack()
        self.service = await self._stack.enter_async_context(running(self.settings))
        app = create_app(self.settings, self.service)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = await self._stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
        )
