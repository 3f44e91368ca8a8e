"""A repetition on another node waits for the first request, and goes on with it once that is over."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, text, update

from app.store.idempotency import table as idempotency
from app.submission.claim import Claim
from app.submission.plan import Outcome
from tests.support.sends import Sends
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _node_of(node: ServiceWorld, key: str) -> str | None:
    found: str | None = node.service.db.read_now(
        lambda conn: conn.scalar(select(idempotency.c.node).where(idempotency.c.key == key))
    )
    return found


def held_back(node: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Keep the node's payments from ending after they were sent; returns what says so and what lets them go on."""
    sent, go = asyncio.Event(), asyncio.Event()
    wait = node.service.submitter.wait

    async def slow(outcome: Outcome, claim: Claim) -> Outcome:
        sent.set()
        await go.wait()
        return await wait(outcome, claim)

    monkeypatch.setattr(node.service.submitter, "wait", slow)
    return sent, go


async def test_repetition_on_another_node_waits_for_the_first(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await first.wallet(), await first.payee()
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "both"}}
    sent, go = held_back(first, monkeypatch)
    paying = asyncio.create_task(first.pay(wallet, to, "1", **options))
    await sent.wait()
    sends = Sends(second)
    error_of(await second.pay(wallet, to, "1", **options), 409, "idempotency_in_progress")
    error_of(await second.pay(wallet, to, "2", **options), 409, "idempotency_conflict")
    repeating = asyncio.create_task(second.pay(wallet, to, "1", **options))
    go.set()

    assert (await repeating).json() == (await paying).json()
    assert not sends.payments()
    assert await first.balance(to) == 1_000_000


async def test_request_that_ended_without_an_outcome_is_continued_elsewhere(
    first: ServiceWorld, second: ServiceWorld
) -> None:
    wallet, to = await first.wallet(), await first.payee()
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "open"}}
    first.line.lose_requests = lambda method: method == "sendTransaction"
    lost = error_of(await first.pay(wallet, to, "1", **options), 503, "chain_unavailable")
    first.line.mend()
    assert _node_of(first, "open") is None

    again = (await second.pay(wallet, to, "1", **options)).json()
    assert (again["status"], again["tx_id"]) == ("confirmed", lost["tx_id"])
    assert await first.balance(to) == 1_000_000


_FULL = """
CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END$$;
CREATE TRIGGER no_answers BEFORE UPDATE ON idempotency
FOR EACH ROW WHEN (NEW.state = 'done' AND NEW.key = 'full') EXECUTE FUNCTION no_space()
"""


async def test_request_whose_answer_could_not_be_stored_is_continued_elsewhere(
    first: ServiceWorld, second: ServiceWorld
) -> None:
    wallet, to = await first.wallet(), await first.payee()
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "full"}}
    first.service.db.write_now(lambda conn: conn.execute(text(_FULL)))
    error_of(await first.pay(wallet, to, "1", **options), 503, "storage_unavailable")
    first.service.db.write_now(lambda conn: conn.execute(text("DROP FUNCTION no_space CASCADE")))

    async with asyncio.timeout(30):
        while (again := await second.pay(wallet, to, "1", **options)).status_code != 200:
            error_of(again, 409, "idempotency_in_progress")
    assert again.json()["status"] == "confirmed"
    assert await first.balance(to) == 1_000_000


async def test_node_taken_for_dead_stores_nothing_more_under_the_key(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await first.wallet(), await first.payee()
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "dead"}}
    sent, go = held_back(first, monkeypatch)
    paying = asyncio.create_task(first.pay(wallet, to, "1", **options))
    await sent.wait()
    # When the first is taken for dead
    second.service.db.write_now(
        lambda conn: conn.execute(update(idempotency).where(idempotency.c.key == "dead").values(node="gone"))
    )
    again = (await second.pay(wallet, to, "1", **options)).json()
    go.set()

    error_of(await paying, 409, "idempotency_in_progress")
    assert again["status"] == "confirmed"
    assert (await first.pay(wallet, to, "1", **options)).json() == again
    assert await first.balance(to) == 1_000_000
