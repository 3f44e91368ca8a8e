"""The SOL of a wallet and its organisation is limited across all nodes."""

import asyncio

import pytest

from app.chain.fees import SIGNATURE
from app.core.money import format_sol
from app.core.timestamps import DAY
from app.store.fee_payer_use import charge, use_of
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PAYMENT = 2 * SIGNATURE


async def _used(node: ServiceWorld, scope: str) -> int:
    day = await node.service.clock.moment_ms() // DAY
    return node.service.db.read_now(lambda conn: use_of(conn, scope, day))[0]


@pytest.mark.proves(
    "Limits: SOL for a wallet's fees, and rent that does not return",
    "Limits: SOL for fees and such rent of all wallets of an organisation",
)
@pytest.mark.parametrize("field", ["solPerWalletDay", "solPerDay"])
async def test_three_nodes_keep_one_limit(first: ServiceWorld, second: ServiceWorld, field: str) -> None:
    wallets, to = [await first.wallet() for _ in range(3)], await first.payee()
    if field == "solPerWalletDay":
        wallets = [wallets[0]] * 3
    scope = first.org if field == "solPerDay" else wallets[0]["wallet_id"]
    limit = await _used(first, scope) + 4 * _PAYMENT
    async with first.node() as third:
        # Only one node hears of the limit by a request.
        await third.ok("PATCH", "/v1/organization", {field: format_sol(limit)})

        async def pay(node: ServiceWorld, wallet: Json) -> int:
            return (await node.pay(wallet, to, "0.01")).status_code

        nodes = (first, second, third)
        codes = await asyncio.gather(*(pay(*one) for _ in range(4) for one in zip(nodes, wallets, strict=True)))

        await third.ok("PATCH", "/v1/organization", {field: None})
    assert sorted(codes) == [200] * 4 + [429] * 8
    assert await _used(second, scope) == limit


async def test_day_goes_on_after_a_nodes_clock_stepped_back(first: ServiceWorld, second: ServiceWorld) -> None:
    today = await first.service.clock.moment_ms() // DAY + 1

    async def spend(node: ServiceWorld, day: int) -> int:
        row = ("org_of_clocks", "wal_of_clocks", day)
        used, _, _ = await node.service.db.write(lambda conn: charge(conn, *row, lamports=7, accounts=0))
        return used

    async with first.node() as third:
        nodes = (first, second, third)
        await asyncio.gather(*(spend(node, today) for node in nodes * 2))
        await asyncio.gather(*(spend(node, today - 1) for node in nodes))
        assert await spend(third, today) == 7 * 7
