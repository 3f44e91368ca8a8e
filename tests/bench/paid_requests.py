"""Measures what a paid request costs beside the resource's and the facilitator's own answers.

By hand: `python -m tests.bench.paid_requests [--count N] [--plain]`. The service runs as a process of its own with
the embedded chain, the facilitator and the resource are those of the public packages (`npm ci --prefix
tests/clients/x402`). A proxy in front of the resource measures how long it takes to answer, with the facilitator
behind it; the rest of a request's time is the service's. The first request finds the facilitator out and is left out.
With `--plain` the facilitator takes plain transfers only, which an allowance pays: a grant before the payment, a
settlement after it.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import httpx
from solders.keypair import Keypair
from starlette.requests import Request
from starlette.responses import Response

from tests.bench.clients import made_agent
from tests.bench.load import percentile
from tests.bench.serving import Served, serving
from tests.bench.tables import table
from tests.support.http import site
from tests.x402.servers import facilitator, started

_SOL = 10**9


class Watch:
    """Passes requests on to a server, and measures how long it takes to answer."""

    def __init__(self, target: str) -> None:
        self._client = httpx.AsyncClient(base_url=target, timeout=60)
        self.seconds = 0.0
        self.requests = 0

    async def answer(self, request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in {"host", "connection"}}
        content, start = await request.body(), time.perf_counter()
        got = await self._client.request(request.method, request.url.path, content=content, headers=headers)
        self.seconds += time.perf_counter() - start
        self.requests += 1
        dropped = {"content-encoding", "content-length", "transfer-encoding", "connection"}
        kept = {name: value for name, value in got.headers.items() if name not in dropped}
        return Response(got.content, got.status_code, headers=kept)

    async def aclose(self) -> None:
        await self._client.aclose()


@asynccontextmanager
async def _watched(target: str) -> AsyncIterator[tuple[str, Watch]]:
    watch = Watch(target)
    async with site(watch.answer) as url:
        yield url, watch
    await watch.aclose()


async def run(served: Served, count: int, *, plain: bool) -> None:
    """Pay this often, one request after the other, and print the table."""
    headers = {"Authorization": f"Bearer {served.key}"}
    settler = Keypair()
    async with httpx.AsyncClient(base_url=served.api, headers=headers, timeout=60) as client:
        agent, wallet, seller = await made_agent(client, allowAllowances=True)
        organisation = (await client.get("/v1/organization")).raise_for_status().json()
        airdrop = {"jsonrpc": "2.0", "id": 1, "method": "requestAirdrop", "params": [str(settler.pubkey()), _SOL]}
        (await client.post(served.rpc, json=airdrop)).raise_for_status()
        network = f"solana:{organisation['genesis_hash'][:32]}"
        allowed = None if plain else organisation["program_id"]
        with tempfile.TemporaryDirectory() as folder:
            async with (
                facilitator(Path(folder), settler, rpc=served.rpc, network=network, allowed=allowed) as settling,
                started(
                    "resource.mjs",
                    FACILITATOR=settling,
                    NETWORK=network,
                    MINT=organisation["mint"],
                    PAY_TO=seller["chain_address"],
                ) as shop,
                _watched(shop) as (url, watch),
            ):
                body = {"walletId": wallet, "url": f"{url}/weather", "maxAmount": "1"}
                total, others = [], []
                for _ in range(count + 1):
                    watch.seconds, start = 0.0, time.perf_counter()
                    answer = await client.post("/v1/x402/fetch", json=body, headers=agent)
                    total.append(time.perf_counter() - start)
                    others.append(watch.seconds)
                    if answer.json()["payment"]["status"] != "confirmed":
                        raise RuntimeError(answer.text)
    added = sorted(whole - part for whole, part in zip(total[1:], others[1:], strict=True))
    rows = [
        [name, f"{percentile(sorted(values), 50):.0f}", f"{percentile(sorted(values), 99):.0f}"]
        for name, values in (
            ("whole request", total[1:]),
            ("resource and facilitator", others[1:]),
            ("added by the service", added),
        )
    ]
    sys.stdout.write(table(["", "p50 ms", "p99 ms"], rows))


@click.command()
@click.option("--count", default=100, show_default=True, help="Paid requests.")
@click.option("--plain", is_flag=True, help="A facilitator that takes plain transfers only.")
def main(count: int, *, plain: bool) -> None:
    """Measure and print."""
    with serving() as served:
        asyncio.run(run(served, count, plain=plain))


if __name__ == "__main__":
    main()
