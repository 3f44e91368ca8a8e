"""A chain in memory with the built program and one organisation, driven by instructions without the HTTP service."""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.addresses import Addresses
from app.chain.client import ChainClient
from app.chain.transactions import sign
from app.chain.transport import AsgiTransport
from app.localnet import Localnet
from idl.codec import load
from idl.transactions import message_hash
from tests.support.present import on_localnet

PROGRAM = Path(__file__).parents[2] / "programs" / "agent_vault.so"
USDC = 1_000_000
LAMPORTS = 10 * 10**9


class Stage:
    """The embedded chain, a client of it, and an organisation with 1,000 USDC in its reserve."""

    def __init__(self, data_dir: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.codec = load()
        self.localnet = Localnet.open(data_dir, {self.codec.program_id: PROGRAM}, clock)
        self.transport = AsgiTransport(self.localnet.rpc_app)
        self.chain = ChainClient(self.transport, program_id=self.codec.program_id)
        self.addresses = Addresses(self.codec.program_id, self.localnet.usdc_mint)
        self.payer, self.authority, self.operator = Keypair(), Keypair(), Keypair()
        self.org_id = "acme"
        self.org = self.addresses.org(self.authority.pubkey(), self.org_id)
        self.build = on_localnet(self.localnet, self.codec, self.addresses, self.org)
        self.payee = Pubkey.new_unique()
        #: Hashes of the signed messages, by signature.
        self.messages: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        await self.localnet.airdrop(self.payer.pubkey(), 1000 * LAMPORTS)
        await self.send(
            self.build.initialize_org(
                payer=self.payer.pubkey(),
                creator=self.authority.pubkey(),
                org_id=self.org_id,
                genesis_hash=bytes(32),
                operator=self.operator.pubkey(),
                arbiter=Pubkey.new_unique(),
                verifier=Pubkey.new_unique(),
            ),
            signers=[self.authority],
        )
        await self.send(self.build.create_token_account(payer=self.payer.pubkey(), owner=self.payee))
        await self.deposit(self.build.reserve_tokens, 1000 * USDC)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.chain.aclose()
        await self.localnet.aclose()

    async def send(self, *instructions: Instruction, signers: Sequence[Keypair] = ()) -> str:
        """Send a transaction, wait for its confirmation and return its signature. Fails if the transaction fails."""
        signature = await self.submit(*instructions, signers=signers)
        status = await self.chain.confirm(signature, timeout=10)
        assert status is not None
        assert status.err is None, status.err
        return signature

    async def fields(self, address: Pubkey) -> dict[str, Any]:
        """Return the fields of an account of the program."""
        account = await self.chain.account(address)
        assert account is not None
        return account.decode(self.codec).data

    async def submit(self, *instructions: Instruction, signers: Sequence[Keypair] = ()) -> str:
        """Send a transaction without waiting."""
        blockhash = await self.chain.blockhash()
        signed = sign(instructions, payer=self.payer, signers=signers, blockhash=blockhash.hash)
        assert await self.chain.send(signed.raw) == signed.signature
        self.messages[signed.signature] = message_hash(signed.raw)
        return signed.signature

    async def deposit(self, token_account: Pubkey, amount: int) -> str:
        """Mint USDC into a token account. The effect equals a stranger's transfer."""
        signature = await self.localnet.mint_usdc(token_account, amount)
        return str(signature)

    async def wallet(self, agent_id: str, *, policy: str = "pol_permissive", funds: int = 0) -> Pubkey:
        """Create a vault, fund it, and return its address."""
        attached = self.addresses.preset(self.org, policy)
        create = self.build.create_wallet(
            payer=self.payer.pubkey(), operator=self.operator.pubkey(), agent_id=agent_id, policy=attached
        )
        await self.send(create, signers=[self.operator])
        vault = self.addresses.vault(self.org, agent_id)
        if funds:
            await self.fund(vault, funds)
        return vault

    async def fund(self, vault: Pubkey, amount: int) -> str:
        """Move micro-USDC from the reserve into a vault."""
        funding = self.build.fund_wallet(
            operator=self.operator.pubkey(), vault=vault, amount=amount, reference=secrets.token_bytes(16)
        )
        return await self.send(funding, signers=[self.operator])

    def payment(self, vault: Pubkey, amount: int, *, policy: str = "pol_permissive") -> Instruction:
        """Return a payment of micro-USDC to the payee. The operator must sign it."""
        return self.build.execute_payment(
            signer=self.operator.pubkey(),
            policy=self.addresses.preset(self.org, policy),
            vault=vault,
            destination=self.addresses.token_account(self.payee),
            amount=amount,
            reference=secrets.token_bytes(16),
        )

    async def pay(self, vault: Pubkey, amount: int, *, policy: str = "pol_permissive") -> str:
        """Pay micro-USDC to the payee."""
        return await self.send(self.payment(vault, amount, policy=policy), signers=[self.operator])


def altered(methods: Sequence[str], body: bytes, alter: Callable[[str, Any], Any]) -> bytes:
    """Return a node's answer to these calls with results changed by `alter(method, result)`. Errors are kept."""
    answer = json.loads(body)
    for method, told in zip(methods, answer if isinstance(answer, list) else [answer], strict=True):
        if "result" in told:
            told["result"] = alter(method, told["result"])
    return json.dumps(answer).encode()
