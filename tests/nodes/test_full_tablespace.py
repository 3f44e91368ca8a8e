"""A tablespace that is full under two serving nodes: they say so, lose nothing, and go on once there is room."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from app.core.errors import ApiError
from app.core.money import parse_usdc
from app.submission.recovery import Recovery
from tests.nodes.volume import Volume, small_volume
from tests.support.chain import USDC
from tests.support.postgres import Cluster
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CLIENTS = 6
_MENDED = 30.0
"""Seconds in which everything goes on once there is room."""


@pytest.fixture(scope="module", name="volume")
def _volume(cluster: Cluster, template: str) -> Iterator[Volume]:
    with small_volume(cluster, template) as volume:
        yield volume


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="nodes")
async def _nodes(
    cluster: Cluster, volume: Volume, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[ServiceWorld]]:
    """Two nodes; the first holds the leases as long as it can renew them."""
    folder, url = tmp_path_factory.mktemp("service"), cluster.url(volume.database)
    async with ServiceWorld(folder, database_url=url, confirm_timeout=2.0) as first, first.node() as second:
        yield [first, second]
        volume.make_room()


class Orders:
    """Payments of 0.01 USDC from one wallet to one payee, each under a key of its own."""

    def __init__(self, nodes: list[ServiceWorld], wallet: Json, to: str) -> None:
        self._nodes = nodes
        self._wallet = wallet
        self._to = to
        self.keys: list[str] = []

    async def until_refused(self) -> None:
        """Pay until nothing can be stored any more; an answer is a payment or 503 in the contract's envelope."""
        refused = 0
        async with asyncio.timeout(120):
            while refused < 4:
                keys = [f"{self._to} {len(self.keys) + number}" for number in range(_CLIENTS)]
                self.keys += keys
                answers = await asyncio.gather(*(self._pay(key, at) for at, key in enumerate(keys)))
                full = [one for one in answers if one.status_code != 200]
                for one in full:
                    error_of(one, 503, "storage_unavailable")
                    assert one.headers["retry-after"] == "1"
                refused = refused + 1 if len(full) == _CLIENTS else 0

    async def settle(self) -> set[str]:
        """Repeat each on the other node until it is confirmed, and return their ids."""
        async with asyncio.timeout(_MENDED):
            return set(await asyncio.gather(*(self._settled(key, at + 1) for at, key in enumerate(self.keys))))

    async def _settled(self, key: str, at: int) -> str:
        """Repeat a payment until it is made; then an answer that says `pending` stays the same under the key."""
        while (answer := await self._pay(key, at)).status_code != 200:
            assert answer.status_code in {409, 503}, answer.text
            await asyncio.sleep(0.1)
        made = answer.json()
        while made["status"] == "pending":
            await asyncio.sleep(0.1)
            made = await self._nodes[at % len(self._nodes)].ok("GET", f"/v1/transactions/{made['tx_id']}")
        assert made["status"] == "confirmed"
        return str(made["tx_id"])

    async def _pay(self, key: str, at: int) -> httpx.Response:
        node = self._nodes[at % len(self._nodes)]
        return await node.pay(
            self._wallet, self._to, "0.01", headers={"Idempotency-Key": key}, body={"memo": "x" * 200}
        )


async def test_payments_of_a_full_tablespace_are_made_once_under_their_keys(
    nodes: list[ServiceWorld], volume: Volume
) -> None:
    first, second = nodes
    wallet, to = await first.wallet(), await first.payee()
    orders, path = Orders(nodes, wallet, to), f"/v1/wallets/{wallet['wallet_id']}"
    volume.fill()
    await orders.until_refused()

    # What is stored can be read
    for node in nodes:
        await node.ok("GET", path)
        await node.ok("GET", f"{path}/transactions")
        await node.ok("GET", "/v1/events")

    volume.make_room()
    ids = await orders.settle()

    # Each was paid once, which the list, the balances and the chain agree on
    count = len(orders.keys)
    assert len(ids) == count
    assert await first.balance(to) == count * USDC // 100
    await second.catch_up()
    for node in nodes:
        assert {one["tx_id"] for one in await _listed(node, path)} == ids
        balance = (await node.ok("GET", path))["usdc_balance"]
        assert parse_usdc(balance) == await first.balance(wallet["chain_address"]) == 100 * USDC - count * USDC // 100


async def _listed(node: ServiceWorld, path: str) -> list[Json]:
    found: list[Json] = []
    cursor = ""
    while True:
        page = await node.ok("GET", f"{path}/transactions?type=payment&limit=100{cursor}")
        found += page["data"]
        if not page["has_more"]:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def test_freeze_of_a_full_tablespace_lands_and_stops_what_waits(
    nodes: list[ServiceWorld], volume: Volume
) -> None:
    # Given a payment that has not reached the chain, and a tablespace in which nothing can be stored
    first, second = nodes
    wallet, other, to = await first.wallet(), await first.wallet(), await first.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    first.line.lose_requests = lambda method: method == "sendTransaction"
    lost = error_of(await first.pay(wallet, to, "1"), 503, "chain_unavailable")["tx_id"]
    first.line.mend()
    volume.fill()
    orders = Orders(nodes, other, await first.payee())
    await orders.until_refused()

    # When the wallet is frozen
    frozen = await first.call("PATCH", path, {"status": "frozen"})

    # Then the chain has it, and no node pays, not even what waits
    if frozen.status_code != 200:
        assert "is confirmed there" in error_of(frozen, 503, "storage_unavailable")["message"]
    assert (await first.fields(wallet["chain_address"]))["frozen"] == 1
    for node in nodes:
        # The chain refuses, unless its refusal cannot be made sense of without the database
        refused = await node.pay(wallet, to, "1")
        assert refused.json()["error"]["code"] in {"wallet_frozen", "storage_unavailable"}
        with contextlib.suppress(ApiError):
            await node.service.part(Recovery).recover()
    assert await first.balance(to) == 0

    # And once there is room, everything goes on
    volume.make_room()
    async with asyncio.timeout(_MENDED):
        while any(node.service.brake.without_request() for node in nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert len(await orders.settle()) == len(orders.keys)
    for node in nodes:
        assert (await node.ok("GET", path))["status"] == "frozen"
        error_of(await node.pay(wallet, to, "1"), 422, "wallet_frozen")
        await node.service.part(Recovery).recover()
    assert await first.balance(to) == 0
    # The node that could not see the brake may have sent it again, and then the chain has refused it
    assert (await first.ok("GET", f"/v1/transactions/{lost}"))["status"] in {"pending", "failed"}
    await second.ok("PATCH", path, {"status": "active"})
    assert (await first.pay(wallet, to, "1")).status_code == 200
    await second.service.part(Recovery).recover()
    assert await first.balance(to) == USDC
