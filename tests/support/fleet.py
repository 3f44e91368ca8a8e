"""Agents that pay, lock escrows, freeze and read concurrently, and record every wrong answer."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from solders.keypair import Keypair

from tests.support.service_world import Json

_A2A = "/v1/payments/a2a"
_HASH = f"sha256:{'0' * 64}"
#: Status codes that make the client repeat the same request.
_NOT_YET = frozenset({408, 429, 503})
_IN_PROGRESS = "idempotency_in_progress"


@dataclass
class Order:
    """A request under an idempotency key, repeated until its answer is final. Each order has a different amount."""

    key: str
    path: str
    body: Json
    headers: dict[str, str]
    method: str = "POST"
    micro: int = 0
    answer: httpx.Response | None = None

    @property
    def accepted(self) -> bool:
        return self.answer is not None and self.answer.status_code == 200

    def __str__(self) -> str:
        told = None if self.answer is None else (self.answer.status_code, self.answer.text)
        return f"{self.key} {self.method} {self.path} {self.body}: {told}"


@dataclass
class AgentClient:
    """An agent with a wallet, an API key and a session, and the escrows that it has locked."""

    wallet: Json
    headers: dict[str, str]
    escrows: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.wallet["wallet_id"])


class Fleet:
    """Agents at work until `stop` is called, and a record of all the answers that they got."""

    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._numbers: Iterator[int] = itertools.count(1)
        self._payees = [str(Keypair().pubkey()) for _ in range(4)]
        self._working = True
        self.policy = ""
        self.agents: list[AgentClient] = []
        self.orders: list[Order] = []
        #: Addresses, by id, of the escrows that the service reported as locked.
        self.escrows: dict[str, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.requests = 0
        #: Times of the answers with status 200, and the duration of the slowest request in seconds.
        self.succeeded: list[float] = []
        self.slowest = 0.0

    async def recruit(self, count: int) -> None:
        """Make the agents' wallets, keys and sessions. Call it before the faults begin."""
        self.policy = (await self._made("/v1/policies", {"name": "Fleet", "maxPerTx": "1"}))["policy_id"]
        for number in range(count):
            body = {"agentId": f"agent-{number}", "label": "Agent", "policyId": self.policy}
            wallet = await self._made("/v1/wallets", body)
            path = f"/v1/wallets/{wallet['wallet_id']}"
            await self._made(f"{path}/fund", {"amount": "10000"})
            key = (await self._made("/v1/keys", {"role": "agent", "walletId": wallet["wallet_id"]}))["key"]
            token = (await self._made(f"{path}/rotate-token", {}))["session_token"]
            self.agents.append(AgentClient(wallet, {"Authorization": f"Bearer {key}", "Session-Token": token}))

    async def _made(self, path: str, body: Json) -> Json:
        answered = await self._client.post(path, json=body)
        assert answered.status_code == 200, answered.text
        made: Json = answered.json()
        return made

    async def work(self) -> None:
        """Run all the agents' work until `stop` is called."""
        workers = [self._pay, self._pay, self._lock, self._manage]
        jobs = [asyncio.create_task(self._repeat(worker, one)) for one in self.agents for worker in workers]
        await asyncio.gather(*jobs)

    def stop(self) -> None:
        """End the work. Some requests remain without a final answer."""
        self._working = False

    async def finish(self) -> None:
        """Repeat the requests without a final answer until they have one."""
        self._working = True
        await asyncio.gather(*(self._settle(order) for order in self.orders if order.answer is None))

    async def _repeat(self, worker: Any, one: AgentClient) -> None:
        while self._working:
            await worker(one)
            await asyncio.sleep(self._random.uniform(0.0, 0.5))

    async def _pay(self, one: AgentClient) -> None:
        number = next(self._numbers)
        body = {"walletId": one.id, "to": self._random.choice(self._payees), "currency": "USDC"}
        await self._order("/v1/payments", body, one.headers, number)

    async def _lock(self, one: AgentClient) -> None:
        other = self._random.choice([agent for agent in self.agents if agent is not one])
        body = {"fromWallet": one.id, "toWallet": other.id, "currency": "USDC", "taskDescription": "Work"}
        order = await self._order(_A2A, body, one.headers, next(self._numbers))
        if order.accepted and order.answer is not None:
            made = order.answer.json()
            if made["status"] == "pending":
                return  # it does not exist yet, and perhaps never will
            escrow = made["escrow_id"]
            one.escrows.append(escrow)
            self.escrows[escrow] = made["chain_address"]
            end = self._random.random()
            if end < 0.5:
                proof = {"proofType": "output_hash", "proof": _HASH}
                await self._order(f"{_A2A}/{escrow}/complete", proof, other.headers)
            elif end < 0.7:
                await self._order(f"{_A2A}/{escrow}/dispute", {"reason": "Late"}, one.headers)
        await asyncio.sleep(self._random.uniform(0.0, 2.0))

    async def _manage(self, one: AgentClient) -> None:
        """Read existing objects, and occasionally freeze and unfreeze."""
        path = f"/v1/wallets/{one.id}"
        for place in (path, f"/v1/policies/{self.policy}", f"{path}/transactions?limit=5"):
            await self._ask("GET", place)
        for escrow in one.escrows[-2:]:
            await self._ask("GET", f"{_A2A}/{escrow}", headers=one.headers)
        for order in self.orders[-3:]:
            if order.accepted and order.path == "/v1/payments" and order.answer is not None:
                await self._ask("GET", f"/v1/payments/{order.answer.json()['tx_id']}")
        if self._random.random() < 0.15:
            for status in ("frozen", "active"):
                await self._order(path, {"status": status}, {}, method="PATCH")
                await asyncio.sleep(self._random.uniform(0.0, 1.0))
        await asyncio.sleep(self._random.uniform(0.5, 1.5))

    async def _order(
        self, path: str, body: Json, headers: dict[str, str], micro: int = 0, *, method: str = "POST"
    ) -> Order:
        key = f"order-{len(self.orders) + 1}"
        amount = {"amount": f"0.{micro:06}"} if micro else {}
        order = Order(key, path, body | amount, {**headers, "Idempotency-Key": key}, method, micro)
        self.orders.append(order)
        await self._settle(order)
        return order

    async def _settle(self, order: Order) -> None:
        while self._working and order.answer is None:
            answered = await self._ask(order.method, order.path, order.body, order.headers)
            if answered is not None and answered.status_code not in _NOT_YET and _code(answered) != _IN_PROGRESS:
                order.answer = answered
            else:
                await asyncio.sleep(self._random.uniform(0.2, 1.0))

    async def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response | None:
        """Send a request and return the response.

        Return None if the service is being killed or does not answer in time.
        """
        self.requests += 1
        began = time.monotonic()
        try:
            answered = await self._client.request(method, path, json=body, headers=headers)
        except httpx.TimeoutException:
            self.wrong.append(f"{method} {path}: no answer")
            return None
        except httpx.HTTPError:
            self.outcomes["killed"] += 1
            return None
        finally:
            self.slowest = max(self.slowest, time.monotonic() - began)
        if answered.status_code == 200:
            self.succeeded.append(time.monotonic())
        self.outcomes[f"{answered.status_code} {_code(answered) or answered.reason_phrase}"] += 1
        status = answered.status_code
        # A request can be in progress only if the service was killed during it and it is repeated immediately.
        expected = status in {200, 402, 422, 503} or _code(answered) == _IN_PROGRESS
        if not expected or (status == 503 and "retry-after" not in answered.headers):
            self.wrong.append(f"{method} {path} {body}: {status} {answered.text}")
        return answered

    async def read(self, path: str) -> Any:
        """Return the service's answer to a read, retrying until the read succeeds."""
        while True:
            answered = await self._ask("GET", path)
            if answered is not None and answered.status_code == 200:
                return answered.json()
            await asyncio.sleep(0.2)

    async def listed(self, path: str) -> list[Json]:
        """Return all pages of a list."""
        found: list[Json] = []
        cursor = ""
        while True:
            page = await self.read(f"{path}&limit=100{cursor}")
            found += page["data"]
            if not page["has_more"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"


def _code(answered: httpx.Response) -> str | None:
    return None if answered.status_code < 400 else str(answered.json()["error"]["code"])
