"""Refusals and kept responses are counted together, whichever of three nodes adds them."""

import asyncio

import pytest
from sqlalchemy import Connection

from app.payments.refusals import report_refusals
from app.store.idempotency import IdempotencyRecord, Reducible, claim, find, finish, keep_within
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SINGLY = 3
_LATER = 2**60


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


async def test_three_nodes_keep_one_quota_of_responses(first: ServiceWorld, second: ServiceWorld) -> None:
    org, wallet_id, size, quota = first.org, "wal_of_quota", 10, 25

    async def keep(node: ServiceWorld, number: int) -> None:
        key = f"kept {number}"
        held = IdempotencyRecord(
            org=org,
            key=key,
            method="POST",
            path="/v1/x402/fetch",
            body_hash="hash",
            state="running",
            created_at=number,
            expires_at=_LATER,
        )

        def add(conn: Connection) -> None:
            claim(conn, held)
            finish(conn, org, key, 200, "whole", _LATER)
            keep_within(conn, org, key, size, Reducible(wallet_id, "short", quota))

        await node.service.db.write(add)

    async with first.node() as third:
        nodes = (first, second, third)
        await asyncio.gather(*(keep(node, number) for number, node in enumerate(nodes * 4)))
        # Concurrent ones may not see each other. The next one does.
        await keep(third, 12)
    kept = second.service.db.read_now(lambda conn: [find(conn, org, f"kept {number}", 0) for number in range(13)])
    assert [one and one.response for one in kept] == [*["short"] * 11, "whole", "whole"]
