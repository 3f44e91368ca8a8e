"""A service behind a proxy that drops the first answer to each request with an idempotency key, and may kill it."""

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import httpx

from tests.recovery.deployment import Deployment, deployed
from tests.support.faults import Faults
from tests.support.processes import free_ports

PRICE = Decimal("0.01")
"""USDC of every order: all are equal but for their keys."""
_KEY = re.compile(rb'(?:(?i:\r\nidempotency-key: )|"idempotency_?[kK]ey": ?")([^"\r]+)')
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_KILLED_WITHIN = 0.06
"""Seconds after the arrival of a request in which the service is killed: before, while and after it pays."""
_PASSED_BACK = {"content-type", "mcp-session-id", "retry-after", "www-authenticate"}


@dataclass
class Shop:
    """The service behind the proxy, a wallet with an agent's credentials, and who is paid."""

    deployment: Deployment
    url: str
    wallet_id: str
    payee_id: str
    to: str
    headers: dict[str, str]
    #: Arrivals of each key; the first answer to it is dropped.
    arrivals: Counter[str] = field(default_factory=Counter)
    #: The service's answers by status.
    statuses: Counter[int] = field(default_factory=Counter)
    #: The service is killed while it works on the first request with one of these keys.
    deadly: set[str] = field(default_factory=set)
    _gateway: bool = False
    _up: asyncio.Event = field(default_factory=asyncio.Event)
    _random: random.Random = field(default_factory=lambda: random.Random(31))

    def order(self, key: str) -> dict[str, str]:
        """The arguments of the tool `pay`."""
        return {"to": self.to, "amount": str(PRICE), "idempotency_key": key}

    async def received(self) -> int:
        """Return for how many orders the payee has the money, on the chain and in the list of payments."""
        client = self.deployment.client
        async with asyncio.timeout(60):
            while (await client.get("/v1/transactions?status=pending")).json()["data"]:  # noqa: ASYNC110 - asks over HTTP
                await asyncio.sleep(0.2)
        balance = Decimal((await client.get(f"/v1/wallets/{self.payee_id}")).json()["usdc_balance"])
        rows, cursor, paid = 0, "", f"type=payment&status=confirmed&walletId={self.wallet_id}"
        while True:
            page = (await client.get(f"/v1/transactions?{paid}&limit=100{cursor}")).json()
            rows += len(page["data"])
            cursor = f"&cursor={page['next_cursor']}"
            if not page["has_more"]:
                break
        assert balance == rows * PRICE
        return rows

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on the request of one connection; without an answer, the connection is reset."""
        answer = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, httpx.HTTPError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            answer = await self._answer(head, await reader.readexactly(int(length[1])) if length else b"")
            if answer is not None:
                kept = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items() if name in _PASSED_BACK)
                start = f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}\r\n{kept}connection: close\r\n"
                writer.write(f"{start}content-length: {len(answer.content)}\r\n\r\n".encode() + answer.content)
                await writer.drain()
        if answer is None:
            writer.transport.abort()
        writer.close()

    async def _answer(self, head: bytes, body: bytes) -> httpx.Response | None:
        """Return the service's answer, a gateway's error, or None if the connection is to be reset."""
        await self._up.wait()
        found = _KEY.search(head + body)
        key = found[1].decode() if found else None
        self.arrivals[key or ""] += 1
        sending = asyncio.create_task(self._forward(head, body))
        if key is None or self.arrivals[key] > 1:
            return await sending
        if key in self.deadly:
            await asyncio.sleep(self._random.uniform(0, _KILLED_WITHIN))
            self._up.clear()
            try:
                await self.deployment.restart()
            finally:
                self._up.set()
            sending.cancel()
        await asyncio.wait([sending])
        # A gateway that gives up, or a connection that is reset
        self._gateway = not self._gateway
        return httpx.Response(502) if self._gateway else None

    async def _forward(self, head: bytes, body: bytes) -> httpx.Response:
        line, *fields = head.decode().strip().split("\r\n")
        method, path, _ = line.split(" ")
        headers = dict(one.split(": ", 1) for one in fields)
        headers = {
            name: value for name, value in headers.items() if name.lower() not in {"content-length", "connection"}
        }
        async with httpx.AsyncClient(base_url=self.deployment.url, timeout=60) as client:
            answer = await client.request(method, path, content=body, headers=headers)
        self.statuses[answer.status_code] += 1
        return answer


@contextlib.asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[Shop]:
    """Run chain, service and proxy, with a wallet that has 100 USDC."""
    async with deployed(folder, Faults(1), slot_ms=200) as deployment:
        made = []
        for name in ("payer", "payee"):
            body = {"agentId": name, "label": name, "policyId": "pol_permissive", "idempotencyKey": f"wallet {name}"}
            made.append((await deployment.client.post("/v1/wallets", json=body)).json())
        path = f"/v1/wallets/{made[0]['wallet_id']}"
        funding = {"amount": "100", "idempotencyKey": "first funds"}
        assert (await deployment.client.post(f"{path}/fund", json=funding)).status_code == 200
        token = (await deployment.client.post(f"{path}/rotate-token", json={})).json()["session_token"]
        bound = {"role": "agent", "walletId": made[0]["wallet_id"], "name": "agent"}
        key = (await deployment.client.post("/v1/keys", json=bound)).json()["key"]
        port, _ = free_ports()
        headers = {"Authorization": f"Bearer {key}", "Session-Token": token}
        wallets = (made[0]["wallet_id"], made[1]["wallet_id"], made[1]["chain_address"])
        one = Shop(deployment, f"http://127.0.0.1:{port}", *wallets, headers)
        one._up.set()
        async with await asyncio.start_server(one.serve, "127.0.0.1", port):
            yield one
