"""Delivery of events to real HTTP receivers, with a clock that the test moves."""

import asyncio
import base64
import gzip
import hashlib
import hmac
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from standardwebhooks import Webhook as StandardWebhook
from standardwebhooks.webhooks import WebhookVerificationError
from structlog.testing import capture_logs

from app.database.records import columns_of
from app.store.deliveries import LIFETIME, deliveries, queue_again, restart, table
from app.store.delivery_attempts import table as attempts
from app.store.delivery_retention import purge
from app.store.feed import append_event, feed_after
from app.store.feed import table as feed
from app.store.retention import delete_events
from app.store.webhooks import WebhookRecord, change_webhook
from app.webhooks import dispatcher
from app.webhooks._signing import ROTATION_OVERLAP, new_secret, signature_headers
from app.webhooks.dispatcher import Dispatcher
from tests.support.alerts import Scene
from tests.support.http import PATIENCE
from tests.support.warm import programs
from tests.support.webhooks import (
    MINUTE,
    Behaviour,
    Post,
    Received,
    Receiver,
    Slow,
    answer,
    broken,
    dripping,
    endless,
    hang,
    ok,
    reset,
)

_SCHEDULE = [0, 1 * MINUTE, 5 * MINUTE, 30 * MINUTE, 120 * MINUTE]
_DAY = 24 * 60 * MINUTE


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    opened = Post(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Post]:
    """A dispatcher that gives receivers little time."""
    opened = Post(tmp_path, timeout=1.0)
    yield opened
    opened.close()


def _enable(post: Post, made: WebhookRecord) -> None:
    def change(conn: Any) -> None:
        change_webhook(conn, made.webhook_id, status="enabled")
        while restart(conn, made.webhook_id, post.now, limit=100):
            pass

    post.db.write_now(change)


# What is sent


@pytest.mark.proves("Authentication: Webhooks")
async def test_event_arrives_with_its_fields_and_both_kinds_of_signature(post: Post) -> None:
    async with Receiver() as receiver:
        _, secret = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()

    [request] = receiver.received
    assert request.line == "POST /hook HTTP/1.1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.json.items() >= {"event": "wallet.funded", "event_id": event_id, "wallet_id": "wal_1"}.items()
    assert request.json["amount"] == "1.00"
    assert request.json["timestamp"].endswith("Z")
    expected = hmac.new(secret.encode(), request.body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(request.headers["service-signature"], expected)
    assert request.headers["webhook-id"] == event_id
    assert StandardWebhook(secret).verify(request.body, request.headers) == request.json
    assert "service-signature-previous" not in request.headers


async def test_both_secrets_sign_for_a_day_after_a_rotation(post: Post) -> None:
    async with Receiver() as receiver:
        made, old = post.register(receiver.url)
        new = new_secret()
        post.db.write_now(
            lambda conn: change_webhook(
                conn,
                made.webhook_id,
                secret=post.delivery_client.hide(new),
                old_secret=post.shown(made).secret,
                old_secret_until=post.now + ROTATION_OVERLAP,
            )
        )
        post.happen()
        await post.drain()
        post.now += ROTATION_OVERLAP
        post.happen()
        await post.drain()

    during, after = receiver.received
    for secret, header in ((new, "service-signature"), (old, "service-signature-previous")):
        StandardWebhook(secret).verify(during.body, during.headers)
        assert during.headers[header] == hmac.new(secret.encode(), during.body, hashlib.sha256).hexdigest()
    assert after.headers["service-signature"] == hmac.new(new.encode(), after.body, hashlib.sha256).hexdigest()
    assert "service-signature-previous" not in after.headers
    assert len(after.headers["webhook-signature"].split(" ")) == 1


def test_signature_of_another_body_time_or_secret_is_not_accepted() -> None:
    secret, body = new_secret(), b'{"event":"ping"}'
    found = dict(signature_headers(body, message_id="evt_1", timestamp=1_700_000_000, keys=[secret]))
    signed = b"evt_1.1700000000." + body
    key = base64.b64decode(secret.removeprefix("whsec_"))

    assert (
        found["webhook-signature"] == "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    )
    with pytest.raises(WebhookVerificationError):
        StandardWebhook(secret).verify(body, found)  # The timestamp is years old.


async def test_webhook_gets_new_events_of_its_organisation_and_types(post: Post) -> None:
    post.happen(event="wallet.created")
    async with Receiver() as all_of_it, Receiver() as some, Receiver() as foreign:
        post.register(all_of_it.url)
        post.register(some.url, events=("wallet.frozen", "wallet.created"))
        post.register(foreign.url, org="other")
        [created], [funded], [frozen] = (
            post.happen(event=f"wallet.{name}") for name in ("created", "funded", "frozen")
        )
        await post.drain()

    assert all_of_it.events == [created, funded, frozen]
    assert some.events == [created, frozen]
    assert foreign.events == []


# What acknowledges


@pytest.mark.proves("Limits: Answer of a webhook's receiver", "DeliveryAttempt(status_code, error)")
@pytest.mark.parametrize(
    ("behave", "status_code", "error", "excerpt"),
    [
        (answer("200 OK"), 200, None, ""),
        (answer("204 No Content"), 204, None, ""),
        (answer("299 Whatever", b"fine"), 299, None, "fine"),
        (endless, 200, None, ("more and more " * 100)[:1024]),
        (broken, 500, None, "sorry"),
        (answer("400 Bad Request", b"\xff\x00no"), 400, None, "\ufffd\ufffdno"),
        (answer("304 Not Modified"), 304, None, ""),
        (answer("400 Bad Request", gzip.compress(b"no key"), "Content-Encoding: gzip\r\n"), 400, None, "no key"),
        (hang, None, "timeout", ""),
        (dripping, None, "timeout", ""),
        (reset, None, "connection_failed", ""),
    ],
)
async def test_only_an_answer_2xx_in_time_acknowledges(
    hasty: Post, behave: Behaviour, status_code: int | None, error: str | None, excerpt: str
) -> None:
    post = hasty
    async with Receiver(behave) as receiver:
        made, _ = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()

    [attempt] = post.log(made, event_id)
    assert (attempt.attempt, attempt.status_code, attempt.error) == (1, status_code, error)
    assert attempt.excerpt == excerpt
    assert (attempt.duration >= 990) == (error == "timeout")
    acknowledged = status_code is not None and status_code < 300
    assert post.statuses(made) == {event_id: "delivered" if acknowledged else "pending"}


@pytest.mark.proves("Limits: Answer of a webhook's receiver")
async def test_receiver_has_five_seconds(post: Post) -> None:
    async with Receiver(hang) as receiver:
        made, _ = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()

    [attempt] = post.log(made, event_id)
    assert attempt.error == "timeout"
    assert 4_990 <= attempt.duration < 6_500


async def test_redirect_is_a_failure_and_not_followed(post: Post) -> None:
    async with Receiver() as target:
        for status in ("301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"):
            async with Receiver(answer(status, extra=f"Location: {target.url}\r\n")) as receiver:
                made, _ = post.register(receiver.url, org=status)
                [event_id] = post.happen(org=status)
                await post.drain()
            assert post.statuses(made) == {event_id: "pending"}
    assert target.received == []


async def test_unreachable_receiver_is_a_failure(post: Post) -> None:
    async with Receiver() as receiver:
        pass
    made, _ = post.register(receiver.url)
    [event_id] = post.happen()
    await post.drain()

    assert [one.error for one in post.log(made, event_id)] == ["connection_failed"]


# Attempts, pauses, order


@pytest.mark.proves(
    "event webhook.degraded",
    "Webhooks: enabled to degraded",
    "Limits: Attempts of a delivery",
    "Authentication: Repeated deliveries",
)
async def test_five_attempts_by_the_schedule_then_a_pause_that_keeps_the_queue(post: Post) -> None:
    async with Receiver(broken) as receiver:
        made, _ = post.register(receiver.url)
        [first] = post.happen()
        await post.drain()
        for number, delay in enumerate(_SCHEDULE[1:], 1):
            assert len(receiver.received) == number
            post.now += delay - 1
            await post.drain()
            assert len(receiver.received) == number
            post.now += 1
            await post.drain()
        assert receiver.events == [first] * 5
        assert len({one.body for one in receiver.received}) == 1
        assert [one.attempt for one in post.log(made, first)] == [1, 2, 3, 4, 5]
        assert post.shown(made).status == "degraded"
        events = post.db.read_now(lambda conn: feed_after(conn, 0, 100))
        [told] = [one for one in events if one.type == "webhook.degraded"]
        assert told.payload | {"timestamp": ""} == {
            "webhook_id": made.webhook_id,
            "failed_event_id": first,
            "timestamp": "",
        }

        later = post.happen(3)
        post.now += 30 * _DAY
        await post.drain()
        assert len(receiver.received) == 5
        assert post.statuses(made) == dict.fromkeys([first, told.event_id, *later], "pending")

        receiver.behave = ok
        _enable(post, made)
        await post.drain()
        assert receiver.events[5:] == [first, told.event_id, *later]
        assert post.statuses(made) == dict.fromkeys([first, told.event_id, *later], "delivered")
        assert [one.attempt for one in post.log(made, first)] == [1, 2, 3, 4, 5, 1]


async def test_events_of_a_round_are_sent_in_order_whatever_the_clock_does(post: Post) -> None:
    refused: set[str] = set()

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        await (broken if request.headers["webhook-id"] in refused else ok)(request, writer)

    async with Receiver(behave) as receiver:
        made, _ = post.register(receiver.url)
        ids = post.happen(3)
        refused |= {ids[0], ids[2]}
        await post.drain()
        # Given a clock that steps back before further events fail
        post.now -= 60 * MINUTE
        more = post.happen(2)
        refused |= {more[0]}
        await post.drain()
        assert receiver.events == [*ids, *more]

        post.now += 10 * MINUTE
        await post.drain()
        assert receiver.events[5:] == []
        post.now += 51 * MINUTE
        await post.drain()

    assert receiver.events[5:] == [ids[0], ids[2], more[0]]
    assert [one.attempt for one in post.log(made, more[0])] == [1, 2]


async def test_failing_event_does_not_delay_those_after_it(post: Post) -> None:
    async with Receiver(broken) as receiver:
        made, _ = post.register(receiver.url)
        [poisoned] = post.happen()
        await post.drain()
        receiver.behave = ok
        following = post.happen(2)
        await post.drain()

    assert receiver.events == [poisoned, *following]
    assert list(post.statuses(made).values()) == ["pending", "delivered", "delivered"]


async def test_slow_receiver_delays_no_other_and_gets_one_request_at_a_time(tmp_path: Path) -> None:
    post, slow = Post(tmp_path, timeout=60), Slow()
    async with Receiver(slow) as first, Receiver() as second:
        post.register(first.url)
        post.register(second.url)
        ids = post.happen(20)
        draining = asyncio.create_task(post.drain())
        async with asyncio.timeout(PATIENCE):
            while len(second.received) < len(ids):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert first.events == ids[:1]
        slow.release.set()
        await draining

    assert first.events == second.events == ids
    assert first.most_open == second.most_open == 1
    post.close()


async def test_limited_number_of_receivers_is_sent_to_at_once(tmp_path: Path) -> None:
    post, slow = Post(tmp_path, timeout=60, at_once=2), Slow()
    async with Receiver(slow) as first, Receiver() as second:
        for _ in range(3):
            post.register(first.url)
        free, _ = post.register(second.url)
        ids = post.happen()
        draining = asyncio.create_task(post.drain())
        await first.wait_for(2)
        # A ping needs no slot; when it has arrived, no third request has been sent
        ping = post.delivery(free)
        await post.delivery_client.ping(free, ping, "key_one")
        assert len(first.received) == 2
        slow.release.set()
        await draining

    assert (first.most_open, first.events) == (2, ids * 3)
    assert sorted(second.events) == sorted([ping.event_id, *ids])
    post.close()


@pytest.mark.proves("Limits: Webhooks called at once")
async def test_last_quarter_of_the_slots_is_for_organisations_without_one(tmp_path: Path) -> None:
    post, slow = Post(tmp_path, timeout=60, at_once=4), Slow()
    async with Receiver(slow) as first, Receiver() as second:
        for _ in range(6):
            post.register(first.url)
        post.register(second.url, org="other")
        post.happen()
        ids = post.happen(20, org="other")
        draining = asyncio.create_task(post.drain())
        async with asyncio.timeout(PATIENCE):
            while len(second.received) < len(ids):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert first.most_open == 3
        slow.release.set()
        await draining

    assert (len(first.events), second.most_open) == (6, 1)
    post.close()


# Nothing is lost


@pytest.mark.parametrize("behave", [ok, broken])
async def test_event_is_not_sent_again_while_its_outcome_cannot_be_stored(
    post: Post, monkeypatch: pytest.MonkeyPatch, behave: Behaviour
) -> None:
    def refuse(conn: Any) -> None:
        conn.exec_driver_sql(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON webhook_deliveries WHEN old.webhook_id = '{full.webhook_id}'"
            " BEGIN SELECT RAISE(ABORT, 'no space'); END"
        )

    monkeypatch.setattr(dispatcher, "_RETRY_PAUSE", 0.001)
    post.dispatcher = Dispatcher(post.db, post.delivery_client, interval=0.01, at_once=1)
    async with Receiver(behave) as receiver, Receiver() as other:
        full, _ = post.register(receiver.url)
        post.register(other.url)
        post.db.write_now(refuse)
        first, second = post.happen(2)
        with capture_logs() as logs:
            await post.dispatcher.start()
            async with asyncio.timeout(30):
                while len(logs) < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        # Given that nothing else was sent to this webhook, but the other one got its events
        assert receiver.events == [first]
        await other.wait_for(2)
        post.db.write_now(lambda conn: conn.exec_driver_sql("DROP TRIGGER refuse"))
        await receiver.wait_for(2)
        await post.dispatcher.stop()

    assert receiver.events == [first, second]
    assert [one.attempt for one in post.log(full, first)] == [1]
    assert {one["event"] for one in logs} == {"webhook_outcome_not_stored"}


async def test_dispatcher_stops_even_if_an_outcome_cannot_be_stored(post: Post) -> None:
    slow = Slow()
    async with Receiver(slow) as receiver:
        made, _ = post.register(receiver.url)
        await post.dispatcher.start()
        [event_id] = post.happen()
        await asyncio.wait_for(slow.arrived.wait(), 5)
        post.db.write_now(
            lambda conn: conn.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE UPDATE ON webhook_deliveries BEGIN SELECT RAISE(ABORT, 'no space'); END"
            )
        )
        stopping = asyncio.create_task(post.dispatcher.stop())
        await asyncio.sleep(0)
        slow.release.set()
        await asyncio.wait_for(stopping, 4)

    assert post.statuses(made) == {event_id: "pending"}


@pytest.mark.proves("Event(event_id)")
async def test_event_restored_by_a_reorganisation_is_sent_once(post: Post) -> None:
    async with Receiver() as receiver:
        post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()
        post.db.write_now(lambda conn: conn.execute(feed.delete()))
        post.db.write_now(
            lambda conn: append_event(
                conn, event_id=event_id, org="org", type="wallet.funded", timestamp=post.now, payload={}
            )
        )
        [following] = post.happen()
        await post.drain()

    assert receiver.events == [event_id, following]


async def test_old_events_that_a_rebuild_adds_again_are_not_sent(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    post = Post(tmp_path, db=scene.db)
    org = scene.organisation()
    async with Receiver() as old, Receiver() as new:
        # Given an event older than the retention, a webhook as old as the event and a new one
        post.now = scene.now
        wallet = await scene.wallet(org)
        post.register(old.url, org=org)
        await scene.pay(wallet, 5)
        await post.drain()
        assert len(old.received) == 1
        post.now = scene.now = scene.now + LIFETIME + _DAY
        scene.db.write_now(lambda conn: delete_events(conn, scene.now - LIFETIME, most=500))
        scene.db.write_now(lambda conn: purge(conn, scene.now, limit=500))
        post.register(new.url, org=org)
        # When a transaction is rolled back and everything is applied again
        await scene.pay(wallet, 1)
        await post.drain()
        scene.revert_last()
        await scene.settled()
        await scene.pay(wallet, 2)
        await post.drain()

    assert [one.json["amount"] for one in old.received] == ["5.00", "1.00", "2.00"]
    assert [one.json["amount"] for one in new.received] == ["1.00", "2.00"]
    post.delivery_client.close()
    await scene.close()


async def test_webhook_gets_events_indexed_late_or_dated_by_a_slow_clock(post: Post) -> None:
    async with Receiver() as receiver:
        post.register(receiver.url)
        # The chain's clock is behind, or gives no time; an event is indexed two days late
        wanted = post.happen(at=post.now - 30 * MINUTE) + post.happen(at=0) + post.happen(at=post.now + MINUTE)
        registered = post.now
        post.now += 2 * _DAY
        wanted += post.happen(at=registered + MINUTE)
        await post.drain()
        # An event older than the webhook, and one older than the feed's retention
        post.happen(at=registered - _DAY - 1)
        post.now += LIFETIME
        post.happen(at=post.now - LIFETIME - 1)
        wanted += post.happen(at=post.now - LIFETIME)
        await post.drain()

    assert receiver.events == wanted


@pytest.mark.proves("Authentication: Repeated deliveries")
async def test_delivery_that_is_queued_again_is_sent_with_the_same_body(post: Post) -> None:
    async with Receiver() as receiver:
        made, _ = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()
        [attempt] = post.log(made, event_id)
        post.db.write_now(lambda conn: queue_again(conn, attempt.delivery_id, post.now))
        await post.drain()

    first, second = receiver.received
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])


async def test_event_acknowledged_while_its_webhook_is_enabled_is_sent_once(post: Post) -> None:
    async def enable(request: Received, writer: asyncio.StreamWriter) -> None:
        _enable(post, made)
        await ok(request, writer)

    async with Receiver(broken) as receiver:
        made, _ = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()
        receiver.behave = enable
        post.now += MINUTE
        await post.drain()

    assert receiver.events == [event_id] * 2
    assert post.statuses(made) == {event_id: "delivered"}


async def test_failure_while_the_webhook_is_enabled_leaves_all_attempts(post: Post) -> None:
    async def enable(request: Received, writer: asyncio.StreamWriter) -> None:
        if len(receiver.received) == 2:
            _enable(post, made)
        await broken(request, writer)

    async with Receiver(enable) as receiver:
        made, _ = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()
        post.now += MINUTE
        await post.drain()

    assert [one.attempt for one in post.log(made, event_id)] == [1, 2, 1]


@pytest.mark.parametrize("behave", [ok, broken])
async def test_event_queued_again_while_being_sent_is_sent_again(post: Post, behave: Behaviour) -> None:
    async def resend(request: Received, writer: asyncio.StreamWriter) -> None:
        if len(receiver.received) == 2:
            post.now += 1
            [one] = post.db.read_now(lambda conn: deliveries(conn, made.webhook_id)).data
            post.db.write_now(lambda conn: queue_again(conn, one.delivery_id, post.now))
        await (broken if len(receiver.received) == 1 else behave)(request, writer)

    async with Receiver(resend) as receiver:
        made, _ = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()
        post.now += MINUTE
        await post.drain()

    assert [one.attempt for one in post.log(made, event_id)] == [1, 2, 1]


@pytest.mark.proves("Limits: Attempts in a delivery's log")
async def test_log_of_a_delivery_has_its_newest_twenty_attempts(post: Post) -> None:
    async def numbered(request: Received, writer: asyncio.StreamWriter) -> None:
        await answer(f"{200 + len(receiver.received)} Taken")(request, writer)

    async with Receiver(numbered) as receiver:
        made, _ = post.register(receiver.url)
        [event_id] = post.happen()
        await post.drain()
        [delivery] = post.db.read_now(lambda conn: deliveries(conn, made.webhook_id)).data
        for _ in range(24):
            post.db.write_now(lambda conn: queue_again(conn, delivery.delivery_id, post.now))
            await post.drain()

    assert [one.status_code for one in post.log(made, event_id)] == list(range(206, 226))
    assert post.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(attempts))) == 20


async def test_longer_log_is_read_and_cut_to_the_newest_twenty_attempts(post: Post) -> None:
    async with Receiver() as receiver:
        made, _ = post.register(receiver.url)
        long, short = post.happen(2)
        await post.drain()
        [attempt] = post.log(made, long)
        older = [columns_of(attempt) | {"status_code": 500 + number} for number in range(30)]
        post.db.write_now(lambda conn: conn.execute(attempts.insert(), older))
        assert [one.status_code for one in post.log(made, long)] == list(range(510, 530))
        assert [one.status_code for one in post.log(made, short)] == [200]

        post.db.write_now(lambda conn: queue_again(conn, attempt.delivery_id, post.now))
        await post.drain()

    assert [one.status_code for one in post.log(made, long)] == [*range(511, 530), 200]
    assert post.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(attempts))) == 21


@pytest.mark.proves("Limits: Deliveries")
async def test_log_and_queue_are_kept_for_90_days(post: Post) -> None:
    async with Receiver(broken) as receiver:
        made, _ = post.register(receiver.url)
        [waiting] = post.happen()
        await post.drain()
        receiver.behave = ok
        post.happen(3)
        await post.drain()
        post.db.write_now(lambda conn: change_webhook(conn, made.webhook_id, status="degraded"))
        post.now += 90 * _DAY
        [fresh] = post.happen()
        await post.drain()
        assert list(post.statuses(made).values()) == ["pending", "delivered", "delivered", "delivered", "pending"]
        # The first one became due a minute later
        post.now += 1
        post.db.write_now(lambda conn: purge(conn, post.now, limit=10))
        assert post.statuses(made) == {waiting: "pending", fresh: "pending"}
        assert post.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(attempts))) == 1
        post.now += MINUTE
        post.db.write_now(lambda conn: purge(conn, post.now, limit=10))
        assert post.statuses(made) == {fresh: "pending"}
        assert post.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(attempts))) == 0

        post.db.write_now(lambda conn: change_webhook(conn, made.webhook_id, status="deleted", updated_at=post.now))
        assert post.db.write_now(lambda conn: purge(conn, post.now, limit=1))
        assert not post.db.write_now(lambda conn: purge(conn, post.now, limit=1))
        assert post.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(table))) == 0


async def test_events_are_sent_while_a_long_log_is_deleted(post: Post) -> None:
    def fill(conn: Any) -> None:
        deliveries_of = [post.delivery(deleted) for _ in range(1000)]
        conn.execute(table.insert(), [columns_of(one) for one in deliveries_of])
        # One delivery has more attempts than are kept
        row = {"attempt": 1, "started_at": 0, "duration": 1, "excerpt": ""}
        log = [{**row, "delivery_id": one.delivery_id} for one in deliveries_of for _ in range(2)]
        conn.execute(attempts.insert(), log + [{**row, "delivery_id": deliveries_of[0].delivery_id}] * 1000)
        change_webhook(conn, deleted.webhook_id, status="deleted", updated_at=post.now)

    def left() -> int:
        counts = [select(func.count()).select_from(one) for one in (table, attempts)]
        return post.db.read_now(lambda conn: sum(conn.scalar(one) or 0 for one in counts))

    async with Receiver() as receiver:
        deleted, _ = post.register("https://gone.example.com/")
        post.db.write_now(fill)
        post.register(receiver.url)
        expected: list[str] = []
        remaining = [left()]
        # When events happen between ticks, each is sent at the next one, while the log is deleted in batches
        while remaining[-1]:
            expected += post.happen()
            await post.dispatcher.tick()
            await post.dispatcher.idle()
            assert receiver.events == expected
            remaining.append(left() - 2 * len(expected))

    assert all(0 < before - after <= 400 for before, after in pairwise(remaining))


async def test_delivery_deleted_while_being_sent_leaves_no_log(post: Post) -> None:
    async def delete_it(request: Received, writer: asyncio.StreamWriter) -> None:
        def delete(conn: Any) -> None:
            change_webhook(conn, made.webhook_id, status="deleted", updated_at=post.now)
            purge(conn, post.now, limit=10)

        await post.db.write(delete)
        await ok(request, writer)

    async with Receiver(delete_it) as receiver:
        made, _ = post.register(receiver.url)
        post.happen()
        await post.drain()

    assert len(receiver.received) == 1
    counts = [select(func.count()).select_from(one) for one in (table, attempts)]
    assert post.db.read_now(lambda conn: [conn.scalar(one) for one in counts]) == [0, 0]


async def test_running_dispatcher_sends_events_and_stops_after_the_last_response(post: Post) -> None:
    slow = Slow()
    async with Receiver(slow) as receiver:
        made, _ = post.register(receiver.url)
        await post.dispatcher.start()
        first, second = post.happen(2)
        await asyncio.wait_for(slow.arrived.wait(), 5)
        stopping = asyncio.create_task(post.dispatcher.stop())
        await asyncio.sleep(0)
        slow.release.set()
        await asyncio.wait_for(stopping, 5)

    assert post.statuses(made) == {first: "delivered", second: "pending"}
    assert "webhooks" not in {task.get_name() for task in asyncio.all_tasks()}


_DEADLY = """
import asyncio, os, signal, sys
from pathlib import Path
from app.webhooks import dispatcher
from tests.support.webhooks import Post
folder, moment, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
name, kills_before = {
    "sent": ("record_attempt", True), "recorded": ("record_attempt", False), "queued": ("queue_new_events", False)
}[moment]
work, calls = getattr(dispatcher, name), 0
def deadly(*args, **options):
    global calls
    calls += 1
    if kills_before and calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    result = work(*args, **options)
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(dispatcher, name, deadly)
asyncio.run(Post(folder).drain())
"""


@pytest.mark.parametrize(("moment", "count"), [("sent", 3), ("recorded", 2), ("queued", 1)])
async def test_killed_dispatcher_loses_nothing_and_sends_at_least_once(tmp_path: Path, moment: str, count: int) -> None:
    async with Receiver() as receiver:
        post = Post(tmp_path)
        made, _ = post.register(receiver.url)
        ids = post.happen(5)
        post.close()
        process = await asyncio.create_subprocess_exec(
            *(programs() / "interpreter", "-c", _DEADLY, str(tmp_path), moment, str(count)),
            stderr=subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
        assert process.returncode == -signal.SIGKILL, errors.decode()
        sent_before = list(receiver.received)

        post = Post(tmp_path)
        await post.drain()

        assert post.statuses(made) == dict.fromkeys(ids, "delivered")
        post.close()
    # What was sent but not recorded is sent again unchanged, everything else once and in order.
    again = sent_before[-1:]
    assert receiver.received[: len(sent_before)] == sent_before
    assert receiver.events[len(sent_before) :] == [one.headers["webhook-id"] for one in again] + ids[len(sent_before) :]
    assert [one.body for one in again] == [one.body for one in receiver.received[len(sent_before) :][: len(again)]]


async def test_many_events_and_a_third_of_receivers_failing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every event is delivered or queued, and each round is in order; 10,000 events with `--full`."""
    total = 10_000 if request.config.getoption("--full") else 60
    behaviours = [ok, ok, broken, ok, ok, reset]
    post = Post(tmp_path, timeout=60)
    async with AsyncExitStack() as stack:
        receivers = [await stack.enter_async_context(Receiver(behave)) for behave in behaviours]
        made = [post.register(one.url, org=f"org-{number}")[0] for number, one in enumerate(receivers)]
        happened: list[list[str]] = [[] for _ in made]
        # Given bursts of events, a minute and a restart apart, until the failing receivers have had all attempts
        for delay in [*[MINUTE] * 10, 30 * MINUTE, 120 * MINUTE]:
            for number in range(len(made)) if delay == MINUTE else ():
                happened[number] += post.happen(-(-total // (10 * len(made))), org=f"org-{number}")
            await post.drain()
            now = post.now
            post.close()
            post = Post(tmp_path, timeout=60)
            post.now = now + delay
        await post.drain()

        for one, receiver, ids in zip(made, receivers, happened, strict=True):
            works = receiver.behave is ok
            statuses = post.statuses(one)
            assert {each: statuses.pop(each) for each in ids} == dict.fromkeys(ids, "delivered" if works else "pending")
            # The event about the degraded webhook itself waits as well.
            assert list(statuses.values()) == ([] if works else ["pending"])
            ids.extend(statuses)
            assert post.shown(one).status == ("enabled" if works else "degraded")
            if works:
                assert receiver.events == ids
            for positions in _rounds(post, one):
                assert positions == sorted(positions)

        # When they work again, the queue is sent in order
        for one, receiver in zip(made, receivers, strict=True):
            if receiver.behave is not ok:
                receiver.behave = ok
                receiver.received.clear()
                _enable(post, one)
        await post.drain()
        assert [receiver.events for receiver in receivers] == happened
        assert all(set(post.statuses(one).values()) == {"delivered"} for one in made)
    post.close()


def _rounds(post: Post, made: WebhookRecord) -> list[list[int]]:
    """The positions of the events of all first attempts, all second ones and so on, in the order of the attempts."""
    query = select(attempts.c.attempt, table.c.position).join(table, table.c.delivery_id == attempts.c.delivery_id)
    query = query.where(table.c.webhook_id == made.webhook_id).order_by(attempts.c.id)
    rounds: dict[int, list[int]] = {}
    for attempt, position in post.db.read_now(lambda conn: list(conn.execute(query))):
        rounds.setdefault(attempt, []).append(position)
    return list(rounds.values())
