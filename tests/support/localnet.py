"""Support for the embedded chain's tests: a manual clock, a JSON-RPC client and instructions."""

import base64
import itertools
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction
from spl.token.instructions import (
    TransferCheckedParams,
    create_idempotent_associated_token_account,
    get_associated_token_address,
    transfer_checked,
)

from app.localnet import Localnet
from app.localnet.tokens import TOKEN_PROGRAM

SOL = 10**9
CONFIRMED = {"commitment": "confirmed"}


class ManualClock:
    """Unix time that changes only if a test advances it."""

    def __init__(self, now: float = 1_760_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def advance_slots(self, slots: int) -> None:
        self.now += slots * 0.4


class RpcFailure(Exception):  # noqa: N818 - a failure that the test expects
    """The `error` object of an answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


@dataclass
class Client:
    """JSON-RPC over the in-process HTTP application."""

    localnet: Localnet
    http: httpx.AsyncClient

    async def __call__(self, method: str, *params: Any) -> Any:
        answer = (
            await self.http.post("/", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)})
        ).json()
        if "error" in answer:
            raise RpcFailure(answer["error"])
        return answer["result"]

    async def failure(self, method: str, *params: Any) -> RpcFailure:
        """Call a method that must fail and return the error."""
        with pytest.raises(RpcFailure) as caught:
            await self(method, *params)
        return caught.value

    def blockhash(self) -> Hash:
        return self.localnet.chain.timeline.blockhash(self.localnet.chain.slot())

    async def send(self, transaction: VersionedTransaction, **config: Any) -> str:
        """Send a transaction and wait for its confirmation. Returns immediately if it does not land."""
        signature: str = await self("sendTransaction", encoded(transaction), {"encoding": "base64", **config})
        await self.localnet.chain.flush()
        return signature

    async def wallet(self, lamports: int = SOL) -> Keypair:
        """Return a new key that owns lamports."""
        keypair = Keypair()
        await self.localnet.airdrop(keypair.pubkey(), lamports)
        return keypair

    def signed(
        self, signer: Keypair, *instructions: Instruction, blockhash: Hash | None = None
    ) -> VersionedTransaction:
        """Return a version 0 transaction paid by `signer`."""
        message = MessageV0.try_compile(signer.pubkey(), instructions, [], blockhash or self.blockhash())
        return VersionedTransaction(message, [signer])

    def legacy(self, signer: Keypair, *instructions: Instruction) -> VersionedTransaction:
        message = Message.new_with_blockhash(instructions, signer.pubkey(), self.blockhash())
        return VersionedTransaction(message, [signer])

    async def usdc_wallet(self, amount: int) -> tuple[Keypair, Pubkey]:
        """Return a wallet with lamports, and its token account with `amount` micro-USDC."""
        wallet = await self.wallet()
        mint = self.localnet.usdc_mint
        create = create_idempotent_associated_token_account(wallet.pubkey(), wallet.pubkey(), mint)
        await self.send(self.signed(wallet, create))
        account = get_associated_token_address(wallet.pubkey(), mint)
        if amount:
            await self.localnet.mint_usdc(account, amount)
        return wallet, account


def encoded(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode()


def client(localnet: Localnet) -> Client:
    """Return a client of the in-process HTTP application."""
    transport = httpx.ASGITransport(localnet.rpc_app)
    return Client(localnet, httpx.AsyncClient(transport=transport, base_url="http://localnet"))


_units = itertools.count(1)


def pay(sender: Keypair, recipient: Pubkey, lamports: int) -> Instruction:
    return transfer(TransferParams(from_pubkey=sender.pubkey(), to_pubkey=recipient, lamports=lamports))


def distinct() -> Instruction:
    """Return an instruction that makes otherwise equal transactions differ."""
    return set_compute_unit_limit(200_000 + next(_units))


def pay_usdc(mint: Pubkey, source: Pubkey, target: Pubkey, owner: Pubkey, amount: int) -> Instruction:
    return transfer_checked(
        TransferCheckedParams(
            program_id=TOKEN_PROGRAM, source=source, mint=mint, dest=target, owner=owner, amount=amount, decimals=6
        )
    )
