"""Webhooks over HTTP: registration, secrets, pauses, the log of deliveries, pings, resends and replays."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import func, select, update
from standardwebhooks import Webhook as StandardWebhook

from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.store.deliveries import table as deliveries
from app.store.delivery_attempts import table as attempts
from app.store.feed import append_event
from app.webhooks.delivery_client import DeliveryClient
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.service import MAX_WEBHOOKS
from tests.support.lost_answers import lose_answer
from tests.support.service_world import GENESIS_HASHES, Json, ServiceWorld, error_of
from tests.support.webhooks import Receiver, SilentNames, broken, ok

pytestmark = pytest.mark.asyncio(loop_scope="module")

_URL = "https://hooks.example.com/agent-vault"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    """A service that sends events only when a test calls `_deliver`."""
    async with ServiceWorld(tmp_path_factory.mktemp("webhooks"), webhooks=False) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as opened:
        yield opened


async def _make(world: ServiceWorld, url: str = _URL, *events: str, **options: Any) -> Json:
    return await world.ok("POST", "/v1/webhooks", {"url": url, "events": list(events or ("*",))}, **options)


def _path(made: Json) -> str:
    return f"/v1/webhooks/{made['webhook_id']}"


async def _deliver(world: ServiceWorld) -> None:
    """Send everything that is due."""
    await world.catch_up()
    dispatcher = Dispatcher(world.service.db, world.service.part(DeliveryClient), interval=1, at_once=8)
    await dispatcher.tick()
    await dispatcher.idle()


async def _log(world: ServiceWorld, made: Json, key: str | None = None, **query: str) -> list[Json]:
    query_string = "&".join(f"{name}={value}" for name, value in query.items())
    found: list[Json] = (await world.ok("GET", f"{_path(made)}/deliveries?{query_string}", key=key))["data"]
    return found


# Registration


@pytest.mark.proves(
    "POST /v1/webhooks",
    "GET /v1/webhooks/{webhook_id}",
    "Webhooks: new to enabled",
    "CreateWebhook(events)",
    "Webhook(webhook_id, id, created_at, updated_at)",
    "WebhookWithSecret(webhook_id, id, url, events, status, created_at, updated_at)",
    "WebhookWithSecret(previous_secret_expires_at, signing_secret)",
)
async def test_registration_answers_the_secret_this_once(world: ServiceWorld) -> None:
    made = await _make(world, _URL, "wallet.created", "wallet.funded", "wallet.created")

    assert made["webhook_id"].startswith("wh_")
    assert made["signing_secret"].startswith("whsec_")
    assert (made["url"], made["events"], made["status"]) == (_URL, ["wallet.created", "wallet.funded"], "enabled")
    shown = {name: value for name, value in made.items() if name != "signing_secret"}
    assert await world.ok("GET", _path(made), key=world.key("viewer")) == shown
    assert (await world.ok("GET", "/v1/webhooks", key=world.key("viewer")))["data"][0] == shown


@pytest.mark.proves("WebhookWithSecret(signing_secret)")
async def test_secrets_are_not_readable_in_the_database(world: ServiceWorld) -> None:
    made = await _make(world, headers={"Idempotency-Key": "secret-webhook"})
    rotated = await world.ok("POST", f"{_path(made)}/rotate-secret", {}, headers={"Idempotency-Key": "secret-rotation"})

    folder = world.service.settings.data_dir
    stored = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())

    for answer in (made, rotated):
        assert answer["signing_secret"].encode() not in stored
        assert answer["signing_secret"].removeprefix("whsec_").encode() not in stored


@pytest.mark.proves("GET /v1/webhooks", "GET /v1/webhooks(limit, cursor)")
async def test_list_is_paged_newest_first(world: ServiceWorld) -> None:
    org = await world.organisation("paged-webhooks")
    key = world.key("admin", org=org)
    made = [(await _make(world, key=key))["webhook_id"] for _ in range(3)]

    first = await world.ok("GET", "/v1/webhooks?limit=2", key=key)
    second = await world.ok("GET", f"/v1/webhooks?limit=2&cursor={first['next_cursor']}", key=key)

    assert {one["webhook_id"] for one in first["data"] + second["data"]} == set(made)
    assert (len(first["data"]), first["has_more"], second["has_more"]) == (2, True, False)
    assert all("signing_secret" not in one for one in first["data"])


@pytest.mark.proves("error too_many_webhooks")
async def test_organisation_has_a_limited_number_of_webhooks(world: ServiceWorld) -> None:
    key = world.key("admin", org=await world.organisation("many-webhooks"))
    made = [await _make(world, key=key) for _ in range(MAX_WEBHOOKS)]
    body = {"url": _URL, "events": ["*"]}

    error_of(await world.call("POST", "/v1/webhooks", body, key=key), 422, "too_many_webhooks")

    await world.ok("DELETE", _path(made[0]), key=key)
    await _make(world, key=key)


@pytest.mark.proves("Limits: url", "CreateWebhook(url, events)")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": _URL},
        {"url": _URL, "events": []},
        {"url": _URL, "events": "*"},
        {"url": _URL, "events": ["wallet.exploded"]},
        {"url": _URL, "events": ["*"] * 65},
        {"url": _URL, "events": ["*"], "secret": "mine"},
        {"events": ["*"]},
        {"url": "", "events": ["*"]},
        {"url": "https://example.com/" + "x" * 2029, "events": ["*"]},
        {"url": "ftp://example.com/", "events": ["*"]},
        {"url": "https://user:password@example.com/", "events": ["*"]},
        {"url": "https://example.com/#there", "events": ["*"]},
        {"url": "https://10.0.0.1/", "events": ["*"]},
        {"url": "https://printer/", "events": ["*"]},
        {"url": "example.com", "events": ["*"]},
    ],
)
async def test_registration_that_is_not_understood_is_refused(world: ServiceWorld, body: Json) -> None:
    error_of(await world.call("POST", "/v1/webhooks", body), 400, "invalid_request")


async def test_refusal_of_an_event_lists_those_there_are(world: ServiceWorld) -> None:
    refused = await world.call("POST", "/v1/webhooks", {"url": _URL, "events": ["wallet.exploded"]})

    message = error_of(refused, 400, "invalid_request")["message"]
    assert "transaction.completed" in message
    assert "exploded" not in message


@pytest.mark.proves("Limits: url")
async def test_longest_url_is_taken(world: ServiceWorld) -> None:
    url = "https://example.com/" + "x" * 2028

    assert (await _make(world, url))["url"] == url


# Changes


@pytest.mark.proves("PATCH /v1/webhooks/{webhook_id}", "UpdateWebhook(url, events)", "Webhook(url, events)")
async def test_update_changes_what_it_names(world: ServiceWorld) -> None:
    made = await _make(world)
    other = "https://other.example.com/"

    await world.ok("PATCH", _path(made), {"url": other})
    changed = await world.ok("PATCH", _path(made), {"events": ["policy.updated"]})

    assert (changed["url"], changed["events"], changed["status"]) == (other, ["policy.updated"], "enabled")
    assert await world.ok("GET", _path(made)) == changed
    for body in ({}, {"url": None}, {"status": "degraded"}, {"url": "http://10.0.0.1/"}, {"events": ["nonsense"]}):
        error_of(await world.call("PATCH", _path(made), body), 400, "invalid_request")


async def test_change_of_events_holds_from_the_moment_of_its_answer(world: ServiceWorld, receiver: Receiver) -> None:
    made = await _make(world, receiver.url, "wallet.created")
    before = await world.wallet(funds=None)
    await world.catch_up()
    await world.ok("PATCH", _path(made), {"events": ["wallet.funded"]})
    await world.wallet(funds="1")
    await _deliver(world)

    assert [one.json["event"] for one in receiver.received] == ["wallet.created", "wallet.funded"]
    assert receiver.received[0].json["wallet_id"] == before["wallet_id"]


async def test_change_of_a_webhook_with_a_long_queue_blocks_nobody(world: ServiceWorld) -> None:
    org, count = await world.organisation("long-queue"), 1000
    key = world.key("admin", org=org)
    made = await _make(world, _URL, "policy.updated", key=key)
    mine = deliveries.c.webhook_id == made["webhook_id"]
    queued = select(func.count()).select_from(deliveries).where(mine, deliveries.c.attempts == 0)

    def append(conn: Any) -> None:
        for _ in range(count):
            append_event(
                conn, event_id=random_id("evt_"), org=org, type="policy.updated", timestamp=now_ms(), payload={}
            )

    def counted(conn: Any) -> int:
        found: int = conn.scalar(queued)
        return found

    async def most_at_once(body: Json) -> int:
        """The most deliveries that a change processed while another write had to wait."""
        changing = asyncio.create_task(world.ok("PATCH", _path(made), body, key=key))
        seen = [0]
        while not changing.done():
            seen.append(await world.service.db.write(counted))
        await changing
        seen.append(await world.service.db.write(counted))
        assert seen[-1] == count
        return max(after - before for before, after in pairwise(seen))

    await world.service.db.write(append)
    assert await most_at_once({"events": ["wallet.funded"]}) <= 400
    # Given that all of them failed, some more often than others
    failing = update(deliveries).where(mine).values(attempts=1 + deliveries.c.position % 5)
    await world.service.db.write(lambda conn: conn.execute(failing))
    assert await most_at_once({"status": "enabled"}) <= 400
    await world.ok("DELETE", _path(made), key=key)


@pytest.mark.proves("DELETE /v1/webhooks/{webhook_id}", "Webhooks: any to deleted")
async def test_deleted_webhook_is_gone_and_gets_nothing(world: ServiceWorld, receiver: Receiver) -> None:
    made = await _make(world, receiver.url)
    await world.wallet(funds=None)

    assert (await world.ok("DELETE", _path(made)))["status"] == "deleted"

    await _deliver(world)
    assert receiver.received == []
    assert made["webhook_id"] not in str(await world.ok("GET", "/v1/webhooks?limit=100"))
    for method, suffix in (
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/test"),
        ("POST", "/rotate-secret"),
        ("GET", "/deliveries"),
        ("POST", "/deliveries/replay"),
        ("POST", "/deliveries/dlv_1/resend"),
    ):
        body = {"PATCH": {"url": _URL}}.get(method, {"from": "2026-01-01"} if suffix == "/deliveries/replay" else None)
        error_of(await world.call(method, _path(made) + suffix, body), 404, "webhook_not_found")


@pytest.mark.proves("error webhook_not_found", "Authentication: Organisations")
async def test_webhooks_of_others_are_not_found(world: ServiceWorld) -> None:
    made = await _make(world)
    stranger = world.key("admin", org=await world.organisation("webhook-stranger"))

    for method, suffix in (("GET", ""), ("DELETE", ""), ("POST", "/test"), ("POST", "/rotate-secret")):
        error_of(await world.call(method, _path(made) + suffix, key=stranger), 404, "webhook_not_found")
    assert (await world.ok("GET", "/v1/webhooks", key=stranger))["data"] == []


async def test_viewers_may_only_read_and_agents_do_nothing(world: ServiceWorld) -> None:
    made, wallet = await _make(world), await world.wallet(funds=None)
    viewer, agent = world.key("viewer"), world.key("agent", wallet["wallet_id"])
    reads = [("GET", "/v1/webhooks"), ("GET", _path(made)), ("GET", f"{_path(made)}/deliveries")]
    writes: list[tuple[str, str, Json]] = [
        ("POST", "/v1/webhooks", {"url": _URL, "events": ["*"]}),
        ("PATCH", _path(made), {"url": _URL}),
        ("DELETE", _path(made), {}),
        ("POST", f"{_path(made)}/test", {}),
        ("POST", f"{_path(made)}/rotate-secret", {}),
        ("POST", f"{_path(made)}/deliveries/replay", {"from": "2026-01-01"}),
        ("POST", f"{_path(made)}/deliveries/dlv_1/resend", {}),
    ]

    for method, path in reads:
        await world.ok(method, path, key=viewer)
        error_of(await world.call(method, path, key=agent), 403, "insufficient_permissions")
    for method, path, body in writes:
        for key in (viewer, agent):
            error_of(await world.call(method, path, body, key=key), 403, "insufficient_permissions")
    await world.ok("PATCH", _path(made), {"url": _URL}, key=world.key("operator"))


# Idempotency


async def test_repeated_requests_answer_the_same_and_do_nothing_twice(world: ServiceWorld) -> None:
    made = await _make(world, headers={"Idempotency-Key": "wh-make"})
    assert await _make(world, headers={"Idempotency-Key": "wh-make"}) == made
    headers = {"Idempotency-Key": "wh-rotate"}
    rotated = await world.ok("POST", f"{_path(made)}/rotate-secret", {}, headers=headers)
    assert await world.ok("POST", f"{_path(made)}/rotate-secret", {}, headers=headers) == rotated
    headers = {"Idempotency-Key": "wh-delete"}
    deleted = await world.ok("DELETE", _path(made), headers=headers)
    assert await world.ok("DELETE", _path(made), headers=headers) == deleted


async def test_request_whose_answer_a_crash_lost_is_not_done_again(world: ServiceWorld) -> None:
    async def twice(method: str, path: str, body: Json, key: str) -> tuple[Json, Json]:
        headers = {"Idempotency-Key": key}
        first = await world.ok(method, path, body, headers=headers)
        await lose_answer(world, key)
        return first, await world.ok(method, path, body, headers=headers)

    made, again = await twice("POST", "/v1/webhooks", {"url": _URL, "events": ["*"]}, "lost-make")
    assert again == made
    rotated, again = await twice("POST", f"{_path(made)}/rotate-secret", {}, "lost-rotate")
    assert again == rotated
    deleted, again = await twice("DELETE", _path(made), {}, "lost-delete")
    assert again == deleted


async def test_change_whose_answer_a_crash_lost_does_not_undo_a_later_one(world: ServiceWorld) -> None:
    made = await _make(world)
    change, headers = {"url": "https://first.example.com/"}, {"Idempotency-Key": "lost-change"}
    await world.ok("PATCH", _path(made), change, headers=headers)
    await lose_answer(world, "lost-change")
    later = await world.ok("PATCH", _path(made), {"url": "https://second.example.com/"})

    again = await world.ok("PATCH", _path(made), change, headers=headers)

    assert again == later
    assert await world.ok("GET", _path(made)) == later


# Deliveries


@pytest.mark.proves(
    "event transaction.completed",
    "event transaction.blocked",
    "CreateWebhook(events)",
    "Delivery(delivery_id, id, webhook_id, event_id, event, status, queued_at)",
    "DeliveryAttempt(attempt, timestamp, duration_ms, response_excerpt)",
    "Event(event_id)",
)
async def test_every_kind_of_event_of_a_wallets_life_arrives_and_is_logged(
    world: ServiceWorld, receiver: Receiver
) -> None:
    made = await _make(world, receiver.url)
    wallet, to = await world.wallet("pol_conservative"), await world.payee()
    await world.pay(wallet, to, "1.5")
    await world.pay(wallet, to, "99")
    await _deliver(world)

    sent = [one.json for one in receiver.received]
    assert {one["event"] for one in sent} == {
        "wallet.created",
        "wallet.funded",
        "transaction.pending",
        "transaction.completed",
        "transaction.blocked",
    }
    [completed] = [one for one in sent if one["event"] == "transaction.completed"]
    fields = {
        "wallet_id",
        "tx_id",
        "tx_signature",
        "amount",
        "recipient",
        "policy_triggered",
        "on_chain_slot",
        "timestamp",
    }
    assert fields | {"event", "event_id"} == set(completed)
    [blocked] = [one for one in sent if one["event"] == "transaction.blocked"]
    assert {"wallet_id", "attempted_amount", "recipient", "violation", "timestamp"} <= set(blocked)
    events = (await world.ok("GET", f"/v1/events?walletId={wallet['wallet_id']}"))["data"]
    assert {one["event_id"]: one["timestamp"] for one in events} == {one["event_id"]: one["timestamp"] for one in sent}
    log = await _log(world, made)
    assert [one["event_id"] for one in reversed(log)] == [one["event_id"] for one in sent]
    [attempt] = log[0]["attempts"]
    assert attempt.items() >= {"attempt": 1, "status_code": 200, "error": None, "response_excerpt": "thanks"}.items()
    assert attempt["duration_ms"] >= 0
    assert (log[0]["status"], log[0]["next_attempt_at"]) == ("delivered", None)
    for one, request in zip(sent, receiver.received, strict=True):
        assert StandardWebhook(made["signing_secret"]).verify(request.body, request.headers) == one


@pytest.mark.proves(
    "GET /v1/webhooks/{webhook_id}/deliveries",
    "GET /v1/webhooks/{webhook_id}/deliveries(status, limit, cursor)",
    "Delivery(status)",
)
async def test_log_is_filtered_and_paged(world: ServiceWorld, receiver: Receiver) -> None:
    made = await _make(world, receiver.url)
    await world.wallet()
    await _deliver(world)
    receiver.behave = broken
    await world.wallet(funds=None)
    await _deliver(world)

    [waiting] = await _log(world, made, status="pending")
    assert [one["status_code"] for one in waiting["attempts"]] == [500]
    assert waiting["next_attempt_at"] > waiting["queued_at"]
    page = await world.ok("GET", f"{_path(made)}/deliveries?limit=1")
    assert page["data"] == [waiting]
    rest = await _log(world, made, cursor=page["next_cursor"])
    assert rest == await _log(world, made, status="delivered")
    assert len(rest) == 2
    error_of(await world.call("GET", f"{_path(made)}/deliveries?status=lost"), 400, "invalid_request")


@pytest.mark.proves("Limits: Attempts in a delivery's log", "Delivery(attempts)")
async def test_page_of_the_log_has_the_newest_twenty_attempts_of_each_delivery(
    world: ServiceWorld, receiver: Receiver
) -> None:
    made = await _make(world, receiver.url)
    await world.wallet()
    await _deliver(world)

    def add(conn: Any) -> None:
        for delivery_id, count in ((long["delivery_id"], 30), (short["delivery_id"], 3)):
            row = {"delivery_id": delivery_id, "attempt": 1, "duration": 1, "excerpt": ""}
            conn.execute(attempts.insert(), [{**row, "started_at": number} for number in range(count)])

    long, short = await _log(world, made)
    await world.service.db.write(add)

    shown = [[one["timestamp"][-4:-1] for one in delivery["attempts"]] for delivery in await _log(world, made)]
    assert shown[0] == [f"{number:03}" for number in range(10, 30)]
    assert shown[1][1:] == ["000", "001", "002"]


@pytest.mark.proves(
    "PATCH /v1/webhooks/{webhook_id}",
    "Webhooks: enabled to degraded",
    "Webhooks: degraded to enabled",
    "UpdateWebhook(status)",
    "Webhook(status)",
    "Delivery(next_attempt_at)",
)
async def test_degraded_webhook_is_sent_its_queue_in_order_once_it_is_enabled(
    world: ServiceWorld, receiver: Receiver
) -> None:
    receiver.behave = broken
    made = await _make(world, receiver.url)
    await world.wallet(funds=None)
    for _ in range(5):
        await _deliver(world)
        await world.service.db.write(
            lambda conn: conn.execute(
                update(deliveries).where(deliveries.c.webhook_id == made["webhook_id"]).values(due_at=now_ms())
            )
        )
    assert (await world.ok("GET", _path(made)))["status"] == "degraded"
    await world.wallet()
    await _deliver(world)
    assert len(receiver.received) == 5
    [*_, failed] = queued = await _log(world, made, status="pending")
    # One of them is `webhook.degraded`.
    assert (len(queued), failed["next_attempt_at"]) == (4, None)

    receiver.behave = ok
    assert (await world.ok("PATCH", _path(made), {"status": "enabled"}))["status"] == "enabled"
    await _deliver(world)

    assert receiver.events[5:] == [one["event_id"] for one in reversed(queued)]
    assert await _log(world, made, status="pending") == []


@pytest.mark.proves("POST /v1/webhooks/{webhook_id}/test", "event ping", "Authentication: Webhooks")
async def test_ping_is_sent_at_once_and_its_outcome_answered(world: ServiceWorld, receiver: Receiver) -> None:
    made = await _make(world, receiver.url, "policy.updated")

    answer = await world.ok("POST", f"{_path(made)}/test", {})

    [request] = receiver.received
    assert request.json.items() >= {"event": "ping", "webhook_id": made["webhook_id"]}.items()
    assert (answer["event"], answer["status"], answer["event_id"]) == ("ping", "delivered", request.json["event_id"])
    assert [one["status_code"] for one in answer["attempts"]] == [200]
    expected = hmac.new(made["signing_secret"].encode(), request.body, hashlib.sha256).hexdigest()
    assert request.headers["service-signature"] == expected
    assert await _log(world, made) == [answer]
    receiver.behave = broken
    assert (await world.ok("POST", f"{_path(made)}/test"))["status"] == "failed"
    assert (await world.ok("GET", _path(made)))["status"] == "enabled"
    await _deliver(world)
    assert len(receiver.received) == 2


@pytest.mark.proves("Limits: Test deliveries at once")
async def test_webhook_is_sent_one_ping_at_a_time_and_an_organisation_a_few(
    world: ServiceWorld, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = SilentNames(monkeypatch)
    key = world.key("admin", org=(org := await world.organisation("pinging")))
    made = [await _make(world, f"https://{number}.silent.example.com/", key=key) for number in range(5)]

    async def ping(number: int) -> Json:
        found: Json = await world.ok("POST", f"{_path(made[number])}/test", key=key)
        return found

    first = asyncio.create_task(ping(0))
    await names.wait_for(1)
    # Given a new name in place of the one being looked up
    await world.ok("PATCH", _path(made[0]), {"url": "https://other.silent.example.com/"}, key=key)
    again = await world.call("POST", f"{_path(made[0])}/test", key=key)
    error_of(again, 429, "rate_limited")
    assert again.headers["retry-after"] == "1"
    others = [asyncio.create_task(ping(number)) for number in (1, 2)]
    await names.wait_for(3)
    error_of(await world.call("POST", f"{_path(made[3])}/test", key=key), 429, "rate_limited")
    # The last one is for keys that send none
    colleague = world.key("admin", org=org)
    last = asyncio.create_task(world.ok("POST", f"{_path(made[3])}/test", key=colleague))
    await names.wait_for(4)
    third = world.key("admin", org=org)
    error_of(await world.call("POST", f"{_path(made[4])}/test", key=third), 429, "rate_limited")
    # Other organisations are not affected
    assert (await world.ok("POST", f"{_path(await _make(world, receiver.url))}/test"))["status"] == "delivered"

    names.end()
    for one in await asyncio.gather(first, *others, last):
        assert [attempt["error"] for attempt in one["attempts"]] == ["connection_failed"]
    assert (await ping(3))["status"] == "failed"


@pytest.mark.proves("POST /v1/webhooks/{webhook_id}/rotate-secret", "Webhook(previous_secret_expires_at)")
async def test_both_secrets_sign_after_a_rotation(world: ServiceWorld, receiver: Receiver) -> None:
    made = await _make(world, receiver.url)
    rotated = await world.ok("POST", f"{_path(made)}/rotate-secret", {})

    await world.ok("POST", f"{_path(made)}/test")

    assert rotated["signing_secret"] != made["signing_secret"]
    assert rotated["previous_secret_expires_at"] > rotated["updated_at"]
    [request] = receiver.received
    for answer in (made, rotated):
        StandardWebhook(answer["signing_secret"]).verify(request.body, request.headers)
    expected = hmac.new(rotated["signing_secret"].encode(), request.body, hashlib.sha256).hexdigest()
    assert request.headers["service-signature"] == expected


@pytest.mark.proves("POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/resend", "error delivery_not_found")
async def test_delivery_is_sent_again_on_request(world: ServiceWorld, receiver: Receiver) -> None:
    made = await _make(world, receiver.url)
    await world.wallet(funds=None)
    await _deliver(world)
    [delivered] = await _log(world, made)
    path = f"{_path(made)}/deliveries/{delivered['delivery_id']}/resend"

    assert (await world.ok("POST", path))["status"] == "pending"
    await _deliver(world)

    first, second = receiver.received
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])
    [again] = await _log(world, made)
    assert (again["status"], [one["attempt"] for one in again["attempts"]]) == ("delivered", [1, 1])
    unknown = await world.call("POST", f"{_path(made)}/deliveries/dlv_unknown/resend")
    error_of(unknown, 404, "delivery_not_found")


@pytest.mark.proves("action webhook.ping", "action webhook.resend")
async def test_ping_and_resending_are_on_record(own_world: ServiceWorld, receiver: Receiver) -> None:
    world = own_world
    made = await _make(world, receiver.url)
    await world.ok("POST", f"{_path(made)}/test", {})
    [sent] = await _log(world, made)
    await world.ok("POST", f"{_path(made)}/deliveries/{sent['delivery_id']}/resend")
    entries = (await world.ok("GET", f"/v1/audit-log?object={made['webhook_id']}&limit=2"))["data"]
    assert [(one["action"], one["details"]) for one in entries] == [
        ("webhook.resend", {"delivery_id": sent["delivery_id"]}),
        ("webhook.ping", {"status": "delivered"}),
    ]
    assert {one["actor"]["type"] for one in entries} == {"key"}


@pytest.mark.proves(
    "POST /v1/webhooks/{webhook_id}/deliveries/replay", "ReplayEvents(from, to)", "Replay(webhook_id, queued)"
)
async def test_replay_sends_a_period_in_order_even_before_the_registration(
    world: ServiceWorld, receiver: Receiver
) -> None:
    before = await world.wallet()
    await world.catch_up()
    made = await _make(world, receiver.url, "wallet.created", "wallet.funded")
    after = await world.wallet()
    await _deliver(world)
    assert [one.json["wallet_id"] for one in receiver.received] == [after["wallet_id"]] * 2
    receiver.received.clear()
    start = min(before["created_at"], after["created_at"])[:19] + "Z"

    replayed = await world.ok("POST", f"{_path(made)}/deliveries/replay", {"from": start})
    await _deliver(world)

    mine = [one.json for one in receiver.received if one.json["wallet_id"] in {before["wallet_id"], after["wallet_id"]}]
    assert replayed == {"webhook_id": made["webhook_id"], "queued": len(receiver.received)}
    assert [one["wallet_id"] for one in mine] == [before["wallet_id"]] * 2 + [after["wallet_id"]] * 2
    assert len({one["event_id"] for one in mine}) == 4
    empty = {"from": "2020-01-01", "to": "2020-01-02"}
    assert (await world.ok("POST", f"{_path(made)}/deliveries/replay", empty))["queued"] == 0
    for body in ({}, {"to": "2026-01-01"}, {"from": "yesterday"}):
        error_of(await world.call("POST", f"{_path(made)}/deliveries/replay", body), 400, "invalid_request")


@pytest.mark.sqlite("makes a trigger in SQLite's words")
async def test_replay_resumes_after_an_error_or_a_crash_without_duplicates(
    world: ServiceWorld, receiver: Receiver
) -> None:
    org = await world.organisation("replaying")
    key, count = world.key("admin", org=org), 250

    def append(conn: Any) -> None:
        for number in range(count):
            append_event(conn, event_id=f"evt_{number}", org=org, type="policy.updated", timestamp=now_ms(), payload={})

    async def replay(found: list[Any]) -> None:
        headers = {"Idempotency-Key": "replay"}
        found.append(await world.call("POST", path, {"from": "2026-01-01"}, key=key, headers=headers))

    async def run(statement: str) -> None:
        await world.service.db.write(lambda conn: conn.exec_driver_sql(statement))

    await world.service.db.write(append)
    made = await _make(world, receiver.url, "policy.updated", key=key)
    path = f"{_path(made)}/deliveries/replay"
    answers: list[Any] = []
    # Given a database that refuses a row of the second batch
    await run(
        "CREATE TRIGGER refuse BEFORE INSERT ON webhook_deliveries WHEN new.event_id = 'evt_220'"
        " BEGIN SELECT RAISE(ABORT, 'no space'); END"
    )
    await replay(answers)
    await run("DROP TRIGGER refuse")
    await _deliver(world)
    assert receiver.events == [f"evt_{number}" for number in range(200)]
    await replay(answers)
    await _deliver(world)
    # Given an answer that a crash lost
    await run("UPDATE idempotency SET state = 'running', response = NULL WHERE key = 'replay'")
    await replay(answers)
    await _deliver(world)

    error_of(answers[0], 500, "internal_error")
    assert [one.json() for one in answers[1:]] == [{"webhook_id": made["webhook_id"], "queued": count}] * 2
    assert receiver.events == [f"evt_{number}" for number in range(count)]
    # A new request sends them again
    assert (await world.ok("POST", path, {"from": "2026-01-01"}, key=key))["queued"] == count
    assert await _log(world, made, key=key, status="delivered") == []


async def test_running_service_sends_events_across_a_restart(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world, Receiver() as receiver:
        await _make(world, receiver.url, "wallet.created")
        first = await world.wallet(funds=None)
        await receiver.wait_for(1)
        await world.restart()
        second = await world.wallet(funds=None)
        await receiver.wait_for(2)

    assert [one.json["wallet_id"] for one in receiver.received] == [first["wallet_id"], second["wallet_id"]]


@pytest.mark.parametrize("genesis_hash", GENESIS_HASHES.values(), ids=GENESIS_HASHES)
async def test_only_a_localnet_sends_to_this_machine(tmp_path: Path, genesis_hash: str) -> None:
    async with ServiceWorld(tmp_path, genesis_hash=genesis_hash, webhooks=False) as world:
        for url in ("http://hooks.example.com/", "https://127.0.0.1/", "https://localhost/", "https://[::1]/"):
            refused = await world.call("POST", "/v1/webhooks", {"url": url, "events": ["*"]})
            error_of(refused, 400, "invalid_request")
        await _make(world, "https://hooks.example.com/")
