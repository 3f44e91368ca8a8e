"""Clients of the benchmarks: they pay from vaults over HTTP, or send plain transfers with solana-py."""

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import httpx
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import TransferCheckedParams, get_associated_token_address, transfer_checked

from app.localnet.genesis import USDC_MINT
from tests.bench.serving import Served

MOST_CLIENTS = 32
VAULTS = 20
_FUNDS = "5000"
_PAYMENT = "0.001"
_BLOCKHASH_SECONDS = 10.0
_AMOUNTS = 50_000
"""Plain transfers differ in their amounts, so that none is a duplicate while a blockhash is valid."""


async def made_agent(admin: httpx.AsyncClient, **rules: Any) -> tuple[dict[str, str], str, Any]:
    """Make an agent's wallet with money and one that is paid; return the agent's headers, its wallet's id, the other.

    Both wallets have a policy with these rules.
    """

    async def post(path: str, **body: Any) -> Any:
        return (await admin.post(path, json=body)).raise_for_status().json()

    policy = (await post("/v1/policies", name="Bench", **rules))["policy_id"]
    payer, payee = [
        await post("/v1/wallets", agentId=f"bench-{name}", label=name, policyId=policy) for name in ("payer", "payee")
    ]
    wallet: str = payer["wallet_id"]
    await post(f"/v1/wallets/{wallet}/fund", amount="100")
    key = (await post("/v1/keys", role="agent", walletId=wallet))["key"]
    token = (await post(f"/v1/wallets/{wallet}/rotate-token"))["session_token"]
    return {"Authorization": f"Bearer {key}", "Session-Token": token}, wallet, payee


class Payers:
    """Agents that pay from vaults with a policy, money and a session."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._clients: list[httpx.AsyncClient] = []
        self._stack = AsyncExitStack()
        self._names = itertools.count()
        self._policy = ""
        self._vaults: list[tuple[str, str]] = []
        self.payees = [Keypair().pubkey() for _ in range(VAULTS)]

    async def __aenter__(self) -> Self:
        for _ in range(MOST_CLIENTS):
            headers = {"Authorization": f"Bearer {self._served.key}"}
            client = httpx.AsyncClient(base_url=self._served.api, headers=headers, timeout=30)
            self._clients.append(await self._stack.enter_async_context(client))
        rules = {"maxPerTx": "1000", "maxPerDay": "100000", "maxPerMonth": "1000000", "velocityCap": 1_000_000}
        self._policy = (await self._post("/v1/policies", {"name": "load", **rules}))["policy_id"]
        for payee in self.payees:
            wallet = (await self._post("/v1/wallets", self._wallet()))["wallet_id"]
            await self._post(f"/v1/wallets/{wallet}/fund", {"amount": _FUNDS})
            token = (await self._post(f"/v1/wallets/{wallet}/rotate-token", {}))["session_token"]
            self._vaults.append((wallet, token))
            await self.give(len(self._vaults) - 1, payee, "0.01")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def pay(self, client: int, number: int) -> None:
        """Pay as an agent does, with its session and an idempotency key, until the payment is confirmed."""
        await self.give(number % VAULTS, self.payees[number % VAULTS], _PAYMENT, client=client)

    async def give(self, vault: int, to: Pubkey, amount: str, *, client: int = 0) -> None:
        """Pay from a vault. Raises RuntimeError unless the payment is confirmed."""
        wallet, token = self._vaults[vault]
        key = f"payment-{next(self._names)}"
        body = {"walletId": wallet, "to": str(to), "amount": amount, "currency": "USDC", "idempotencyKey": key}
        answer = await self._post("/v1/payments", body, client=client, headers={"Session-Token": token})
        if answer["status"] != "confirmed":
            raise RuntimeError(f"a payment is {answer['status']}")

    async def lock(self, vault: int) -> None:
        """Lock a vault's money in an escrow for the next vault."""
        (wallet, token), (to, _) = self._vaults[vault], self._vaults[(vault + 1) % VAULTS]
        body = {"fromWallet": wallet, "toWallet": to, "amount": _PAYMENT, "currency": "USDC", "taskDescription": "work"}
        await self._post("/v1/payments/a2a", body, headers={"Session-Token": token})

    async def create(self, client: int, _number: int) -> None:
        """Create a wallet."""
        await self._post("/v1/wallets", self._wallet(), client=client)

    def _wallet(self) -> dict[str, Any]:
        return {"agentId": f"agent-{next(self._names)}", "label": "Load", "policyId": self._policy}

    async def _post(self, path: str, body: dict[str, Any], *, client: int = 0, headers: Any = None) -> Any:
        response = await self._clients[client].post(path, json=body, headers=headers)
        if response.status_code != 200:
            raise RuntimeError(f"{path} answered {response.status_code}: {response.text}")
        return response.json()


class Senders:
    """Owners of token accounts who send plain TransferChecked transactions with solana-py."""

    def __init__(self, served: Served, payers: Payers) -> None:
        self._payers = payers
        self._clients = [AsyncClient(served.rpc, Confirmed) for _ in range(MOST_CLIENTS)]
        self._owners = [Keypair() for _ in range(VAULTS)]
        self._accounts = [get_associated_token_address(one.pubkey(), USDC_MINT) for one in self._owners]
        self._targets = [get_associated_token_address(one, USDC_MINT) for one in payers.payees]
        self._amounts = itertools.cycle(range(1, _AMOUNTS))
        self._blockhash = Hash.default()
        self._blockhash_at = 0.0
        self._refreshing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        for number, owner in enumerate(self._owners):
            await self._payers.give(number, owner.pubkey(), "1000")
            signature = (await self._clients[0].request_airdrop(owner.pubkey(), 10**9)).value
            await self._clients[0].confirm_transaction(signature, Confirmed, 0.005)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.close()

    async def send(self, client: int, number: int) -> None:
        """Send a transfer, and wait until the node has answered."""
        await self._clients[client].send_raw_transaction(await self._transfer(number))

    async def send_and_confirm(self, client: int, number: int, *, pause: float) -> None:
        """Send a transfer, and poll its status every `pause` seconds until it is confirmed."""
        rpc = self._clients[client]
        signature = (await rpc.send_raw_transaction(await self._transfer(number))).value
        answer = await rpc.confirm_transaction(signature, Confirmed, pause)
        if answer.value[0] is None or answer.value[0].err is not None:
            raise RuntimeError(f"a transfer failed: {answer}")

    async def _transfer(self, number: int) -> bytes:
        if time.monotonic() - self._blockhash_at > _BLOCKHASH_SECONDS:
            async with self._refreshing:
                if time.monotonic() - self._blockhash_at > _BLOCKHASH_SECONDS:
                    self._blockhash = (await self._clients[0].get_latest_blockhash()).value.blockhash
                    self._blockhash_at = time.monotonic()
        one = number % VAULTS
        owner = self._owners[one]
        instruction = transfer_checked(
            TransferCheckedParams(
                program_id=TOKEN_PROGRAM_ID,
                source=self._accounts[one],
                mint=USDC_MINT,
                dest=self._targets[one],
                owner=owner.pubkey(),
                amount=next(self._amounts),
                decimals=6,
            )
        )
        message = Message.new_with_blockhash([instruction], owner.pubkey(), self._blockhash)
        return bytes(Transaction([owner], message, self._blockhash))
