"""Webhooks, e-mails and exports: several nodes share the work, and none is done twice while they live."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from app.alerts.mailer import Mailer
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.database import claims, leases
from app.database.postgres.database import PostgresDatabase
from app.database.records import columns_of
from app.server.node import ServingNode
from app.store.alert_mails import Mail, claim_mails
from app.store.alert_mails import table as mails
from tests.support.alerts import Mailbox
from tests.support.service_world import ServiceWorld
from tests.support.webhooks import Post, Receiver, Slow

_FROM = "vault@example.com"


@pytest.fixture(name="nodes")
def _nodes(postgres_url: str) -> Iterator[list[PostgresDatabase]]:
    """Two connections that live as nodes for the time of a test."""
    with closing(PostgresDatabase(postgres_url)) as one, closing(PostgresDatabase(postgres_url)) as two:
        for db in (one, two):
            db.write_now(lambda conn, db=db: leases.take(conn, leases.NODE + db.node, db.node, lifetime=60_000))  # type: ignore[misc]
        yield [one, two]


async def _die(db: PostgresDatabase) -> None:
    await db.write_unordered(lambda conn: leases.renew(conn, db.node, lifetime=-1))


def _mails(count: int) -> list[Mail]:
    moment = now_ms() - 1000
    return [
        Mail(
            mail_id=f"mail_{n:03}",
            event_id=f"evt_{n}",
            org="org",
            type="balance_low",
            recipient=f"{n}@example.com",
            subject="Low",
            body="It is low.",
            status="pending",
            attempts=0,
            due_at=moment,
            created_at=moment,
        )
        for n in range(count)
    ]


# Rows


async def test_each_row_is_claimed_by_one(nodes: list[PostgresDatabase]) -> None:
    nodes[0].write_now(lambda conn: conn.execute(insert(mails), [columns_of(one) for one in _mails(60)]))
    found = await asyncio.gather(
        *(
            db.write_unordered(lambda conn, db=db: claim_mails(conn, now_ms(), 60, db.node))  # type: ignore[misc]
            for _ in range(3)
            for db in nodes
        )
    )
    mine, theirs = ({one for some in found[at::2] for one in some} for at in (0, 1))
    assert len(mine | theirs) == 60
    assert not mine & theirs

    await _die(nodes[0])
    assert await nodes[1].write_unordered(lambda conn: claim_mails(conn, now_ms(), 60, nodes[1].node)) == sorted(
        mine | theirs
    )
    node = ServingNode(nodes[1], {})
    await node.tick()
    assert nodes[1].read_now(lambda conn: conn.scalar(select(func.count()).select_from(claims.table))) == 60


async def test_claim_of_a_dead_node_passes_to_one_that_has_others(nodes: list[PostgresDatabase]) -> None:
    nodes[0].write_now(lambda conn: conn.execute(insert(mails), [columns_of(one) for one in _mails(2)]))
    dead, living = nodes
    assert len(await dead.write_unordered(lambda conn: claim_mails(conn, now_ms(), 1, dead.node))) == 1
    assert len(await living.write_unordered(lambda conn: claim_mails(conn, now_ms(), 2, living.node))) == 1
    await _die(dead)
    assert len(await living.write_unordered(lambda conn: claim_mails(conn, now_ms(), 2, living.node))) == 2


# Webhooks


async def test_webhook_gets_each_event_once_and_in_order(nodes: list[PostgresDatabase], tmp_path: Path) -> None:
    posts = [Post(tmp_path, db=db) for db in nodes]
    async with Receiver() as receiver, Receiver() as other:
        posts[0].register(receiver.url)
        posts[1].register(other.url)
        for post in posts:
            await post.dispatcher.start()
        ids: list[str] = []
        for number in range(10):
            ids += posts[number % 2].happen(3)
            await asyncio.sleep(0.02)
        await receiver.wait_for(30)
        await other.wait_for(30)
        for post in posts:
            await post.dispatcher.stop()

        assert receiver.events == other.events == ids
        assert (receiver.most_open, other.most_open) == (1, 1)
    for post in posts:
        post.delivery_client.close()
    assert nodes[0].read_now(lambda conn: conn.scalar(select(func.count()).select_from(claims.table))) == 0


async def test_node_taken_for_dead_stores_no_outcome(nodes: list[PostgresDatabase], tmp_path: Path) -> None:
    late, post = (Post(tmp_path, db=db) for db in nodes)
    slow = Slow()
    async with Receiver(slow) as receiver:
        made, _ = post.register(receiver.url)
        [event] = post.happen()
        await late.dispatcher.tick()
        await slow.arrived.wait()
        await post.drain()
        assert len(receiver.received) == 1

        await _die(nodes[0])
        await post.dispatcher.tick()
        await receiver.wait_for(2)
        slow.release.set()
        await asyncio.gather(late.dispatcher.idle(), post.dispatcher.idle())

        assert receiver.events == [event, event]
        assert len(post.log(made, event)) == 1
        assert post.statuses(made) == {event: "delivered"}
    for one in (late, post):
        one.delivery_client.close()


# E-mails


async def test_mail_is_sent_once_by_several_nodes(nodes: list[PostgresDatabase]) -> None:
    async with Mailbox() as mailbox:
        settings = Settings(smtp_host="127.0.0.1", smtp_port=mailbox.port, smtp_from=_FROM, smtp_tls="none")
        nodes[0].write_now(lambda conn: conn.execute(insert(mails), [columns_of(one) for one in _mails(12)]))
        await asyncio.gather(*(Mailer(db, settings).tick() for db in nodes))

        assert sorted(str(one["To"]) for one in mailbox.received) == sorted(f"{n}@example.com" for n in range(12))
    assert nodes[0].read_now(lambda conn: conn.scalar(select(func.count()).where(mails.c.status == "sent"))) == 12


# Exports


@pytest.mark.asyncio(loop_scope="module")
async def test_export_of_one_node_is_served_by_the_other(first: ServiceWorld, second: ServiceWorld) -> None:
    wallet = await first.wallet()
    for node in (first, second):
        await node.pay(wallet, await first.payee(), "1")
    made = [await node.ok("POST", "/v1/transactions/export", {"format": "csv"}) for node in (first, second)]
    for one in made:
        path = f"/v1/transactions/exports/{one['export_id']}"
        async with asyncio.timeout(30):
            while (found := await second.ok("GET", path))["status"] == "processing":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert found["status"] == "ready"
        files = [await node.client.get(found["download_url"]) for node in (first, second, second)]
        assert [one.status_code for one in files] == [200] * 3
        assert files[0].content == files[1].content == files[2].content
        assert wallet["wallet_id"].encode() in files[0].content
