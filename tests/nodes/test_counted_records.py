"""Refusals are counted exactly, whichever of three nodes refuses."""

import asyncio

import pytest

from app.payments.refusals import report_refusals
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SINGLY = 3


async def test_refusals_on_three_nodes_are_counted_once_each(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.daily_counts.MAX_RECORDS", _SINGLY)
    wallet, to = await first.wallet((await first.policy(maxPerTx="1"))["policy_id"]), await first.payee()
    async with first.node() as third:
        nodes = (first, second, third)
        answers = await asyncio.gather(*(node.pay(wallet, to, "2") for node in nodes * 5))
        for answer in answers:
            error_of(answer, 402, "policy_violation")

        path = f"/v1/transactions?walletId={wallet['wallet_id']}&status=blocked"
        rows = (await third.ok("GET", path))["data"]
        assert sorted(one["refusals"] for one in rows) == [*[1] * _SINGLY, 15 - _SINGLY]
        reported = [await node.service.db.write(lambda conn: report_refusals(conn, 2**60, most=10)) for node in nodes]
    assert sum(reported) == 1
