"""Helpers for tests of escrows through the API: agents, proofs, and the views of both sides."""

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

import httpx
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.access.auth import decode_token
from app.chain.escrow_instructions import PROOF_KINDS
from app.core.signers import Signer
from tests.support.service_world import Json, ServiceWorld

A2A = "/v1/payments/a2a"
TASK = "Summarise the report"
OUTPUT = hashlib.sha256(b"The summary").hexdigest()


@dataclass
class Agent:
    """A wallet, the agent's own API key and its session token."""

    world: ServiceWorld
    wallet: Json
    key: str
    session: str

    @property
    def id(self) -> str:
        return str(self.wallet["wallet_id"])

    @property
    def vault(self) -> str:
        return str(self.wallet["chain_address"])

    @property
    def session_key(self) -> Keypair:
        return decode_token(self.session)

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Send a request with the agent's key and token."""
        headers = {"Session-Token": self.session, **options.pop("headers", {})}
        return await self.world.call(method, path, body, key=self.key, headers=headers, **options)

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Json:
        response = await self.call(method, path, body, **options)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    async def lock(self, to: "Agent | str", amount: str = "10", **fields: Any) -> Json:
        return await self.ok("POST", A2A, terms(self, to, amount, **fields))

    async def balance(self) -> str:
        """Return the wallet's shown balance, after checking that the chain holds the same."""
        shown = (await self.world.ok("GET", f"/v1/wallets/{self.id}"))["usdc_balance"]
        assert round(float(shown) * 10**6) == await self.world.balance(self.vault)
        return str(shown)

    async def rows(self) -> list[tuple[str, str, str]]:
        """Return type, amount and status of the wallet's transactions except fundings, sorted."""
        page = await self.world.ok("GET", f"/v1/wallets/{self.id}/transactions?limit=100")
        return sorted((row["type"], row["amount"], row["status"]) for row in page["data"] if row["type"] != "funding")

    async def events(self) -> list[str]:
        """Return the names of the escrow events visible to the agent's key, oldest first."""
        page = await self.world.ok("GET", "/v1/events?limit=100", key=self.key)
        return [one["event"] for one in reversed(page["data"]) if one["event"].startswith("escrow.")]


async def agent(world: ServiceWorld, policy_id: str = "pol_permissive", funds: str | None = "100") -> Agent:
    """Create a funded wallet with a session."""
    wallet = await world.wallet(policy_id, funds=funds)
    return Agent(world, wallet, world.key("agent", wallet["wallet_id"]), await world.session(wallet))


def terms(paying: Agent, to: "Agent | str", amount: str = "10", **fields: Any) -> Json:
    """Return the body of a request that creates an escrow."""
    return {
        "fromWallet": paying.id,
        "toWallet": to.id if isinstance(to, Agent) else to,
        "amount": amount,
        "currency": "USDC",
        "taskDescription": TASK,
        **fields,
    }


def shows_output(output: str = OUTPUT) -> Json:
    """Return the body of a completion with only the output's hash."""
    return {"proofType": "output_hash", "proof": f"sha256:{output}"}


def signs_output(world: ServiceWorld, escrow: Json, kind: str, key: Signer, output: str = OUTPUT) -> Json:
    """Return the body of a completion signed with a key."""
    message = world.build.attested_message(
        world.service.identity.genesis_bytes,
        Pubkey.from_string(escrow["chain_address"]),
        PROOF_KINDS.index(kind),
        bytes.fromhex(escrow["task_hash"].removeprefix("sha256:")),
        bytes.fromhex(output),
    )
    signature = bytes(key.sign_message(message))
    return {"proofType": kind, "proof": base64.b64encode(signature + bytes.fromhex(output)).decode()}


def of(escrow: Json, step: str = "") -> str:
    """Return an escrow's API path, or the path of its operation `step`."""
    return f"{A2A}/{escrow['escrow_id']}" + (f"/{step}" if step else "")
