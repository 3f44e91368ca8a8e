"""A world whose chain has sockets, with facilitators and paid resources of the public packages in front of it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from solders.keypair import Keypair

from tests.support.service_world import Json, ServiceWorld
from tests.x402.servers import facilitator, started

SOL = 10**9


@dataclass
class Market:
    """Where agents buy: the chain's address and network, a payee, and the facilitator's key."""

    world: ServiceWorld
    rpc: str
    folder: Path
    payee: str
    facilitator: Keypair = field(default_factory=Keypair)
    paths: str = "paid-requests"

    @property
    def network(self) -> str:
        return f"solana:{self.world.service.identity.genesis_hash[:32]}"

    @contextlib.asynccontextmanager
    async def shop(self, *, takes_us: bool = True, v1: bool = False, **environment: str) -> AsyncIterator[str]:
        """A paid resource, which asks for 0.01 USDC, behind a facilitator; yields its address."""
        allowed = str(self.world.service.codec.program_id) if takes_us else None
        async with (
            facilitator(
                self.folder,
                self.facilitator,
                rpc=self.rpc,
                network=self.network,
                allowed=allowed,
                v1="solana" if v1 else "",
            ) as settling,
            started(
                "resource.mjs",
                FACILITATOR=settling,
                NETWORK=self.network,
                MINT=str(self.world.localnet.usdc_mint),
                PAY_TO=self.payee,
                **environment,
            ) as url,
        ):
            yield url

    async def buyer(self, **policy: Any) -> "Buyer":
        """An agent with 100 USDC under a policy of its own."""
        attached = await self.world.policy(**policy)
        wallet = await self.world.wallet(attached["policy_id"])
        key, session = self.world.key("agent", wallet["wallet_id"]), await self.world.session(wallet)
        return Buyer(self.world, wallet, key, session, self.paths)

    async def received(self) -> int:
        """Micro-USDC that the payee has."""
        return await self.world.balance(self.payee)


@dataclass
class Buyer:
    """An agent that buys, by the service's paths for all protocols or by the older ones."""

    world: ServiceWorld
    wallet: Json
    key: str
    session: str
    paths: str = "paid-requests"

    async def post(self, path: str, **body: Any) -> httpx.Response:
        headers = {"Session-Token": self.session}
        body = {"walletId": self.wallet["wallet_id"], **body}
        return await self.world.call("POST", f"/v1/{self.paths}/{path}", body, key=self.key, headers=headers)

    async def fetch(self, url: str, most: str = "0.05", **body: Any) -> Json:
        answer = await self.post("fetch", url=url, maxAmount=most, **body)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With `--full`, run each test of a market by the older paths as well."""
    if "paths" in metafunc.fixturenames and metafunc.config.getoption("--full"):
        metafunc.parametrize("paths", ["paid-requests", "x402"], scope="module")


@pytest.fixture(scope="module")
def paths() -> str:
    """The paths that a market's agents use."""
    return "paid-requests"


@contextlib.asynccontextmanager
async def opened(folder: Path, paths: str = "paid-requests", **settings: Any) -> AsyncIterator[Market]:
    async with (
        ServiceWorld(folder / "service", **settings) as world,
        world.localnet.serving("127.0.0.1", 0) as (port, _),
    ):
        found = Market(world, f"http://127.0.0.1:{port}", folder, await world.payee(), paths=paths)
        await world.localnet.airdrop(found.facilitator.pubkey(), SOL)
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def own_market(tmp_path: Path, paths: str) -> AsyncIterator[Market]:
    """A market for one test, which may move its clock; resources have half a second."""
    async with opened(tmp_path, paths, x402_timeout=0.5) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory, paths: str) -> AsyncIterator[Market]:
    """A market shared by the tests of a module; each makes its own buyers."""
    async with opened(tmp_path_factory.mktemp("market"), paths) as found:
        yield found
