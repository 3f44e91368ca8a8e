"""The audit log: who did what, from where, in which request; and what is never in it."""

import ast
import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from click.testing import CliRunner, Result
from solders.pubkey import Pubkey
from sqlalchemy import Connection, delete, text, update
from starlette.applications import Starlette
from structlog.testing import capture_logs

from app.access.recorder import LONG_PERIOD, MAX_BY_MINUTE, PERIOD, Recorder
from app.audit.publisher import HeadPublisher
from app.commands.main import main
from app.core.settings import Settings
from app.core.timestamps import iso_ms, now_ms
from app.server.application import create_app
from app.store.attempts import attempt
from app.store.attempts import table as attempts
from app.store.audit import SERVICE, LogEntry, entries_after, heads, log_head, table
from app.store.audit_actions import ACTIONS
from app.store.brakes import BrakeRow, all_brakes, put_brake
from app.store.feed import FeedFilter, feed
from app.store.idempotency import table as idempotency
from app.store.keys import api_keys
from tests.support.escrows import agent, of
from tests.support.http import PATIENCE
from tests.support.service_world import Json, ServiceWorld, error_of
from tests.support.sqlite import sqlite_writer
from tests.support.webhooks import Receiver

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _entries(world: ServiceWorld, log: str | None = None) -> list[LogEntry]:
    return world.service.db.read_now(lambda conn: entries_after(conn, log or world.org, 0, limit=10_000))


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the recorder notifies nobody
            await asyncio.sleep(0.01)


async def _key(world: ServiceWorld, role: str = "operator") -> Json:
    return await world.ok("POST", "/v1/keys", {"role": role})


async def _listed(world: ServiceWorld, query: str = "") -> list[Json]:
    return list((await world.ok("GET", f"/v1/audit-log?limit=100{query}"))["data"])


async def _of(world: ServiceWorld, identifier: str) -> list[str]:
    """The actions recorded about an object, oldest first."""
    return [one["action"] for one in await _listed(world, f"&object={quote(identifier, safe='')}")][::-1]


@pytest.mark.proves("action key.create", "action key.revoke", "action key.rotate", "AuditLogEntry(details)")
async def test_life_of_a_key_is_on_record(world: ServiceWorld) -> None:
    made = await _key(world)
    rotated = await world.ok("POST", f"/v1/keys/{made['key_id']}/rotate", {"overlapSeconds": 5})
    await world.ok("DELETE", f"/v1/keys/{rotated['key_id']}", {})

    assert await _of(world, made["key_id"]) == ["key.create"]
    [replaced, revoked] = (await _listed(world, f"&object={rotated['key_id']}"))[::-1]
    assert (replaced["action"], revoked["action"]) == ("key.rotate", "key.revoke")
    assert replaced["details"] == {"replaces": made["key_id"], "overlap_seconds": 5}


@pytest.mark.proves("GET /v1/audit-log", "AuditLogEntry(log, timestamp, actor, request_id)", "Actor(type, id)")
async def test_entry_says_who_when_and_from_where(world: ServiceWorld) -> None:
    admin = await _key(world, "admin")
    before = now_ms()
    answer = await world.call("POST", "/v1/keys", {"role": "viewer"}, key=admin["key"])

    [entry] = await _listed(world, f"&object={answer.json()['key_id']}")

    assert entry["actor"] == {"type": "key", "id": admin["key_id"]}
    assert entry["request_id"] == answer.headers["request-id"]
    assert entry["address"] == "127.0.0.1"
    assert entry["log"] == world.org
    assert entry["details"] == {"role": "viewer", "wallet_id": None}
    [stored] = [one for one in _entries(world) if one.number == entry["number"]]
    assert before <= stored.timestamp <= now_ms()


@pytest.mark.proves("AuditLogEntry(address)")
async def test_address_is_the_clients_behind_a_trusted_proxy_only(world: ServiceWorld) -> None:
    async def make(proxies: str) -> str:
        app = create_app(Settings(**{**world.settings.model_dump(), "trusted_proxies": proxies}), world.service)
        transport = httpx.ASGITransport(app, client=("10.0.0.5", 50_000))
        headers = {"Authorization": f"Bearer {world.keys['admin']}", "X-Forwarded-For": "192.0.2.7"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post("/v1/keys", json={"role": "viewer"}, headers=headers)
        [entry] = await _listed(world, f"&object={answer.json()['key_id']}")
        return str(entry["address"])

    assert await make("10.0.0.5") == "192.0.2.7"
    assert await make("") == "10.0.0.5"


@pytest.mark.proves(
    "action alerts.set",
    "action approval.approve",
    "action approval.reject",
    "action export.create",
    "action organization.pause",
    "action organization.unpause",
    "action policy.clone",
    "action policy.create",
    "action policy.delete",
    "action policy.update",
    "action recipient.register",
    "action session.create",
    "action session.rotate",
    "action topup.set",
    "action wallet.archive",
    "action wallet.create",
    "action wallet.freeze",
    "action wallet.fund",
    "action wallet.unfreeze",
    "action wallet.update",
    "action wallet.withdraw",
    "action webhook.create",
    "action webhook.delete",
    "action webhook.rotate_secret",
    "action webhook.update",
    "AuditLogEntry(action, object, details)",
)
async def test_every_change_that_is_no_payment_is_on_record(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(maxPerTx="50", requireCoSign="20")
    policy_id, org = policy["policy_id"], world.org
    wallet = await world.wallet(policy_id, funds="100")
    wallet_id, to = wallet["wallet_id"], await world.payee()
    path, made = f"/v1/wallets/{wallet_id}", await _key(world)
    operator = made["key"]
    token = await world.session(wallet)
    token = await world.session(wallet)
    await world.ok("PATCH", path, {"label": "New", "tags": ["a"]})
    await world.ok("PATCH", path, {"status": "frozen"}, key=operator)
    await world.ok("PATCH", path, {"status": "active"})
    await world.ok("PATCH", path, {"status": "frozen", "policyId": "pol_moderate"})
    await world.ok("PATCH", path, {"status": "active", "policyId": policy_id})
    await world.ok("PUT", f"{path}/alerts", {"velocitySpike": {"threshold": 5}})
    await world.ok("PUT", f"{path}/auto-topup", {"enabled": False})
    await world.ok("POST", f"{path}/withdraw", {"amount": "1"})
    clone = await world.ok("POST", f"/v1/policies/{policy_id}/clone", {"name": "Copy"})
    await world.ok("PATCH", f"/v1/policies/{clone['policy_id']}", {"maxPerTx": "5", "name": "Renamed"})
    await world.ok("DELETE", f"/v1/policies/{clone['policy_id']}", {})
    await world.ok("POST", "/v1/organization/pause", {"paused": True}, key=operator)
    await world.ok("POST", "/v1/organization/pause", {"paused": False})
    await world.ok("PUT", "/v1/alerts", {"velocitySpike": {"threshold": 5}})
    await world.ok("PUT", f"/v1/recipients/{to}", {"category": "gambling"})
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://hooks.example.com/s3cret", "events": ["*"]})
    hooks = f"/v1/webhooks/{hook['webhook_id']}"
    await world.ok("PATCH", hooks, {"events": ["wallet.frozen"]})
    await world.ok("POST", f"{hooks}/rotate-secret", {})
    await world.ok("DELETE", hooks, {})
    export = await world.ok("POST", "/v1/transactions/export", {"format": "csv"})
    key = world.key("agent", wallet_id)
    asked = [(await world.pay(wallet, to, amount, session=token, key=key)).json() for amount in ("30", "31")]
    approvals = [one["error"]["approval_id"] for one in asked]
    await world.ok("POST", f"/v1/approvals/{approvals[0]}/approve", {})
    await world.ok("POST", f"/v1/approvals/{approvals[0]}/reject", {})
    await world.ok("POST", f"/v1/approvals/{approvals[1]}/reject", {})
    await world.ok("POST", f"{path}/withdraw", {"amount": "all"})
    await world.ok("DELETE", path, {})

    assert await _of(world, wallet_id) == [
        *("wallet.create", "wallet.fund", "session.create", "session.rotate", "wallet.update"),
        *("wallet.freeze", "wallet.unfreeze", "wallet.freeze", "wallet.update", "wallet.unfreeze"),
        *("alerts.set", "topup.set", "wallet.withdraw", "wallet.withdraw", "wallet.archive"),
    ]
    assert await _of(world, policy_id) == ["policy.create"]
    assert await _of(world, clone["policy_id"]) == ["policy.clone", "policy.update", "policy.update", "policy.delete"]
    assert await _of(world, org) == ["organization.pause", "organization.unpause", "alerts.set"]
    assert await _of(world, to) == ["recipient.register"]
    assert await _of(world, hook["webhook_id"]) == [
        *("webhook.create", "webhook.update", "webhook.rotate_secret", "webhook.delete")
    ]
    assert await _of(world, export["export_id"]) == ["export.create"]
    assert await _of(world, approvals[0]) == ["approval.approve", "approval.reject"]
    assert await _of(world, approvals[1]) == ["approval.reject"]
    *_, frozen = await _listed(world, "&action=wallet.freeze")
    assert frozen["actor"] == {"type": "key", "id": made["key_id"]}
    # What was sent to the chain names its transaction, so that anybody can look there
    [withdrawn] = [one for one in await _listed(world, "&action=wallet.withdraw") if one["details"]["amount"] == "1.00"]
    assert withdrawn["details"]["tx_signature"] in await world.signatures(wallet["chain_address"])
    # And no entry holds a secret, a token or the part of a URL that may hold one
    written = json.dumps([one.members() for one in _entries(world)])
    for secret in (world.keys["admin"], operator, key, token, hook["signing_secret"], "s3cret"):
        assert secret not in written
    assert not re.search(r"avk_|avs_|whsec_", written)


@pytest.mark.proves("action escrow.resolve")
async def test_decision_of_a_dispute_is_on_record(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await agent(world), await agent(world)
    escrow = await paying.lock(receiving)
    await paying.ok("POST", of(escrow, "dispute"), {"reason": "late"})
    await world.ok("POST", of(escrow, "resolve"), {"decision": "split", "releasedAmount": "4"})

    [entry] = await _listed(world, f"&object={escrow['escrow_id']}")

    assert entry["action"] == "escrow.resolve"
    assert (entry["details"]["decision"], entry["details"]["released_amount"]) == ("split", "4.00")


@pytest.mark.proves("action key.reissue")
async def test_key_whose_answer_was_lost_is_on_record_again(world: ServiceWorld) -> None:
    headers = {"Idempotency-Key": "lost-key"}
    made = await world.ok("POST", "/v1/keys", {"role": "viewer"}, headers=headers)
    mine = idempotency.c.key == "lost-key"
    await world.service.db.write(lambda conn: conn.execute(update(idempotency).where(mine).values(state="running")))

    await world.ok("POST", "/v1/keys", {"role": "viewer"}, headers=headers)

    assert await _of(world, made["key_id"]) == ["key.create", "key.reissue"]


async def test_repeated_request_is_on_record_once(world: ServiceWorld) -> None:
    wallet, headers = await world.wallet(), {"Idempotency-Key": "withdraw-once"}
    for _ in range(2):
        await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/withdraw", {"amount": "1"}, headers=headers)

    assert (await _of(world, wallet["wallet_id"])).count("wallet.withdraw") == 1


async def test_payments_and_escrows_write_no_entry(world: ServiceWorld) -> None:
    wallet, other, to = await world.wallet(), await world.wallet(), await world.payee()
    key, token = world.key("agent", wallet["wallet_id"]), await world.session(wallet)
    before = len(_entries(world))

    paid = await world.pay(wallet, to, "1", session=token, key=key, body={"memo": "secret memo"})
    refused = await world.pay(wallet, to, "1000000", session=token, key=key)
    escrow = {"fromWallet": wallet["wallet_id"], "toWallet": other["wallet_id"], "amount": "1", "currency": "USDC"}
    await world.ok("POST", "/v1/payments/a2a", {**escrow, "taskDescription": "work"})

    assert (paid.status_code, refused.status_code) == (200, 402)
    assert len(_entries(world)) == before


@pytest.mark.proves("action transaction.failed")
async def test_change_that_fails_on_the_chain_is_followed_by_its_failure(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    found = _entries(world)[-1]
    tx_id = found.details["tx_id"]
    await world.service.db.write(
        lambda conn: conn.execute(update(attempts).where(attempts.c.tx_id == tx_id).values(status="pending"))
    )
    pending = world.service.db.read_now(lambda conn: attempt(conn, tx_id))
    assert pending is not None

    await world.service.submitter.fail(pending, "expired")

    failed = _entries(world)[-1]
    assert (failed.action, failed.object, failed.actor.type) == ("transaction.failed", wallet["wallet_id"], "system")
    assert failed.details["tx_id"] == tx_id
    assert failed.details["error"] == "expired"


@pytest.mark.proves("GET /v1/audit-log")
async def test_only_admins_read_it_and_only_their_organisations(world: ServiceWorld) -> None:
    for role in ("viewer", "operator"):
        error_of(await world.call("GET", "/v1/audit-log", key=world.key(role)), 403, "insufficient_permissions")
    other = await world.organisation("audited-apart")
    theirs = world.key("admin", org=other)

    found = (await world.ok("GET", "/v1/audit-log", key=theirs))["data"]

    assert [one["log"] for one in found] == [other]
    assert found[0]["actor"] == {"type": "system", "id": "command_line"}


@pytest.mark.proves(
    "GET /v1/audit-log",
    "GET /v1/audit-log(actor, action, object, from, to, limit, cursor)",
    "AuditLogPage(has_more, next_cursor)",
)
async def test_log_is_narrowed_by_actor_action_object_and_time(world: ServiceWorld) -> None:
    admin = await _key(world, "admin")
    made = [await world.ok("POST", "/v1/keys", {"role": "viewer"}, key=admin["key"]) for _ in range(3)]
    await world.ok("DELETE", f"/v1/keys/{made[0]['key_id']}", {}, key=admin["key"])
    mine = f"&actor=key:{admin['key_id']}"

    assert [one["action"] for one in await _listed(world, mine)] == ["key.revoke", *["key.create"] * 3]
    assert len(await _listed(world, f"{mine}&action=key.create")) == 3
    assert len(await _listed(world, f"{mine}&object={made[0]['key_id']}")) == 2
    first = (await _listed(world, mine))[-1]
    assert (await _listed(world, f"&from={first['timestamp']}"))[-1]["number"] == first["number"]
    assert first["number"] not in {one["number"] for one in await _listed(world, f"&to={first['timestamp']}")}
    page = await world.ok("GET", f"/v1/audit-log?limit=3{mine}")
    rest = await world.ok("GET", f"/v1/audit-log?limit=3{mine}&cursor={page['next_cursor']}")
    assert [len(page["data"]), len(rest["data"]), rest["has_more"]] == [3, 1, False]
    elsewhere = await world.call("GET", f"/v1/audit-log?cursor={page['next_cursor']}")
    error_of(elsewhere, 400, "invalid_request")


@pytest.mark.proves("GET /v1/audit-log(actor, action, from, to)")
@pytest.mark.parametrize(
    "query",
    [
        *("actor=key", "actor=robot:1", "action=key.steal", "from=yesterday", "limit=0", "object=", "unknown=1"),
        "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
    ],
)
async def test_filter_that_is_not_understood_is_refused(world: ServiceWorld, query: str) -> None:
    error_of(await world.call("GET", f"/v1/audit-log?{query}"), 400, "invalid_request")


@pytest.mark.proves("AuditLogEntry(hash)")
async def test_answer_lets_anybody_recompute_the_hashes(world: ServiceWorld) -> None:
    await _key(world)

    rows = await _listed(world)

    for newer, older in pairwise(rows):
        content = {name: value for name, value in newer.items() if name != "hash"}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert newer["number"] == older["number"] + 1
        assert hashlib.sha256(f"{older['hash']}{canonical}".encode()).hexdigest() == newer["hash"]
    head = world.service.db.read_now(lambda conn: log_head(conn, world.org))
    assert head is not None
    assert head.hash == rows[0]["hash"]


# Refusals and failed authentications


def _quick(world: ServiceWorld) -> Any:
    """The service's recorder, whose minutes a test ends by moving its timer."""
    recorder: Any = world.service.part(Recorder)
    recorder._timer = _Timer()
    recorder._began = 0.0
    return recorder


class _Timer:
    """Seconds that only a test lets pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.proves("action access.refused")
async def test_refusal_for_lack_of_a_role_is_on_record_once_a_minute(own_world: ServiceWorld) -> None:
    world = own_world
    recorder, viewer = _quick(world), await _key(world, "viewer")
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"

    answers = [await world.call("PATCH", path, {"label": "mine"}, key=viewer["key"]) for _ in range(30)]
    await world.call("GET", "/v1/keys", key=viewer["key"])

    def refused() -> list[LogEntry]:
        return [one for one in _entries(world) if one.action == "access.refused"]

    await _until(lambda: len(refused()) == 2)
    first, other = refused()
    assert (first.actor.id, first.address) == (viewer["key_id"], "127.0.0.1")
    assert first.request_id == answers[0].headers["request-id"]
    assert first.details == {"operation": "PATCH /v1/wallets/{wallet_id}", "count": 1}
    assert other.details == {"operation": "GET /v1/keys", "count": 1}
    recorder._timer.now += PERIOD
    await _until(lambda: len(refused()) == 3)
    assert refused()[-1].details == {
        "operation": "PATCH /v1/wallets/{wallet_id}",
        "count": 29,
        "since": iso_ms(first.timestamp),
        "networks": [{"network": "127.0.0.1", "count": 29}],
    }


@pytest.mark.proves("Limits: Refusals of a caller that the audit log counts by the minute")
async def test_frequent_refusals_are_on_record_once_an_hour(own_world: ServiceWorld) -> None:
    world = own_world
    recorder, viewer = _quick(world), await _key(world, "viewer")

    def refused(operation: str) -> list[LogEntry]:
        return [one for one in _entries(world) if one.details.get("operation") == operation]

    async def ask(path: str) -> None:
        error_of(await world.call("GET", path, key=viewer["key"]), 403, "insufficient_permissions")

    for _ in range(MAX_BY_MINUTE + 30):
        await ask("/v1/keys")
        recorder._timer.now += PERIOD
        await recorder.tick()
    for _ in range(2):
        await ask("/v1/request-log")
        await recorder.tick()

    # The last 30 minutes have one row, and a new operation is visible at once.
    assert [one.details["count"] for one in refused("GET /v1/keys")] == [1] * (MAX_BY_MINUTE + 1)
    assert [one.details["count"] for one in refused("GET /v1/request-log")] == [1]
    recorder._timer.now += LONG_PERIOD
    await recorder.tick()
    assert refused("GET /v1/keys")[-1].details["count"] == 29
    assert [one.details["count"] for one in refused("GET /v1/request-log")] == [1, 1]


@pytest.mark.proves("action access.refused")
async def test_refusal_inside_an_operation_is_on_record(world: ServiceWorld) -> None:
    operator, wallet = await _key(world), await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"status": "frozen"})

    error_of(
        await world.call("PATCH", path, {"status": "active"}, key=operator["key"]), 403, "insufficient_permissions"
    )

    await _until(lambda: any(one.actor.id == operator["key_id"] for one in _entries(world)))


@pytest.mark.proves("action authentication.failed")
async def test_failed_authentications_are_one_row_a_minute(own_world: ServiceWorld) -> None:
    world = own_world
    recorder = _quick(world)
    transport = world.client._transport
    assert isinstance(transport, httpx.ASGITransport)
    app = transport.app
    assert isinstance(app, Starlette)
    before = len(_entries(world))
    for number in range(25):
        far = httpx.ASGITransport(app, client=(f"192.0.2.{number % 12}", 1))
        async with httpx.AsyncClient(transport=far, base_url="http://localhost") as client:
            answer = await client.get("/v1/wallets", headers={"Authorization": "Bearer avk_test_nonsense"})
        error_of(answer, 401, "authentication_failed")
    assert _entries(world, SERVICE) == []

    recorder._timer.now += PERIOD
    await _until(lambda: _entries(world, SERVICE))

    [entry] = _entries(world, SERVICE)
    assert (entry.action, entry.details["count"]) == ("authentication.failed", 25)
    assert entry.details["networks"][0] == {"network": "192.0.2.0", "count": 3}
    assert len(entry.details["networks"]) == 10
    # And it is no organisation's
    assert len(_entries(world)) == before
    recorder._timer.now += PERIOD
    await recorder.tick()
    assert len(_entries(world, SERVICE)) == 1


async def test_counted_failures_are_written_when_the_service_stops(own_world: ServiceWorld) -> None:
    world = own_world
    await world.call("GET", "/v1/wallets", key="nonsense")

    await world.restart()

    [entry] = _entries(world, SERVICE)
    assert entry.details["count"] == 1


# The brake


@pytest.mark.sqlite("fills the disk under the file")
async def test_freeze_on_a_full_disk_is_recorded_when_that_is_possible(own_world: ServiceWorld) -> None:
    world = own_world
    operator, wallet = await _key(world), await world.wallet()
    writer: Any = sqlite_writer(world.service.db)
    writer.execute("PRAGMA query_only=ON")

    answer = await world.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"}, key=operator["key"])

    error_of(answer, 503, "storage_unavailable")
    error_of(await world.call("GET", "/v1/keys", key=operator["key"]), 403, "insufficient_permissions")
    assert "wallet.freeze" not in await _of(world, wallet["wallet_id"])
    writer.execute("PRAGMA query_only=OFF")
    await _until(lambda: _entries(world)[-1].action in {"wallet.freeze", "access.refused"})
    [entry] = await _listed(world, "&action=wallet.freeze")
    assert entry["actor"]["id"] == operator["key_id"]
    assert entry["request_id"] == answer.headers["request-id"]
    assert len(await _listed(world, "&action=access.refused")) == 1


async def test_freeze_that_the_log_cannot_take_is_in_force(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()

    held: list[list[BrakeRow]] = []

    def fail(*_arguments: object) -> None:
        raise RuntimeError("no log")

    def put(conn: Connection, brake: BrakeRow) -> None:
        put_brake(conn, brake)
        held.append(all_brakes(conn))

    monkeypatch.setattr("app.submission.brake.put_brake", put)
    monkeypatch.setattr("app.submission.brake.append", fail)

    frozen = await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})

    assert frozen["status"] == "frozen"
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    await _until(lambda: _entries(world)[-1].action == "wallet.freeze")
    # And its row was stored without the entry.
    assert [[one.scope for one in rows] for rows in held] == [[wallet["wallet_id"]]] * 2


@pytest.mark.proves("action brake.refused")
async def test_brake_that_the_chain_refuses_is_on_record(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    found = world.wallet_record(wallet["wallet_id"])
    # Given a wallet that was archived without this service
    build, operator = world.build, world.service.signers.operator
    closing = build.close_wallet(
        operator=operator.pubkey(),
        vault=Pubkey.from_string(found.vault),
        policy=Pubkey.from_string(found.policy.address),
        rent_receiver=world.service.signers.fee_payer_address,
    )
    assert (await world.land([closing], operator)).err is None

    answer = await world.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})

    error_of(answer, 422, "wallet_archived")
    await _until(lambda: _entries(world)[-1].action == "brake.refused")
    asked, refused = _entries(world)[-2:]
    assert (asked.action, asked.object) == ("wallet.freeze", wallet["wallet_id"])
    assert (refused.object, refused.details) == (asked.object, {"kind": "freeze", "reason": "wallet_archived"})


# The head, and its verification


async def _publish(world: ServiceWorld, days: float, kept: int = 0) -> int:
    publisher = HeadPublisher(world.service.db, days=kept, clock=lambda: time.time() + days * 86_400)
    return await publisher.tick()


def _published(world: ServiceWorld) -> list[Json]:
    chosen = FeedFilter(types=["audit.head"])
    return [one.payload for one in world.service.db.read_now(lambda conn: feed(conn, world.org, chosen)).data]


@pytest.mark.proves("event audit.head")
async def test_head_goes_out_every_day_as_an_event(own_world: ServiceWorld) -> None:
    world = own_world
    async with Receiver() as receiver:
        await world.ok("POST", "/v1/webhooks", {"url": receiver.url, "events": ["audit.head"]})
        await _publish(world, 1.1)
        await receiver.wait_for(1)
    [head] = _published(world)
    assert json.loads(receiver.received[0].body) == {**head, "event": "audit.head", "event_id": receiver.events[0]}


async def test_head_goes_out_once_a_day(own_world: ServiceWorld) -> None:
    world = own_world
    assert await _publish(world, 0.9) == 0
    assert _published(world) == []

    assert await _publish(world, 1.1) == 1
    assert await _publish(world, 1.2) == 0
    head = world.service.db.read_now(lambda conn: log_head(conn, world.org))
    await _key(world)
    assert await _publish(world, 2.2) == 1

    assert head is not None
    newest, first = _published(world)
    assert (first["number"], first["hash"]) == (head.number, head.hash)
    assert newest["number"] == head.number + 1
    [event, _] = (await world.ok("GET", "/v1/events?type=audit.head"))["data"]
    assert (event["hash"], event["severity"]) == (newest["hash"], "info")


async def test_head_is_a_log_line_also_of_the_services_own_log(own_world: ServiceWorld) -> None:
    world = own_world
    await world.call("GET", "/v1/wallets", key="nonsense")
    await world.restart()

    with capture_logs() as lines:
        assert await _publish(world, 1.1) == 2

    logged = {line["log"]: line["hash"] for line in lines if line["event"] == "audit_head"}
    assert logged == {log: _entries(world, log)[-1].hash for log in (world.org, SERVICE)}
    assert {line["log_level"] for line in lines if line["event"] == "audit_head"} == {"info"}
    assert len(_published(world)) == 1


@pytest.mark.proves("action audit.checkpoint", "Limits: Entries of the audit log")
@pytest.mark.sqlite("runs a command on the data folder")
async def test_old_entries_are_deleted_and_the_rest_verifies(own_world: ServiceWorld) -> None:
    world = own_world
    for _ in range(3):
        await _key(world)
    count = len(_entries(world))

    assert await _publish(world, 31, kept=30) == 1

    [left] = _entries(world)
    assert (left.action, left.number) == ("audit.checkpoint", count + 1)
    [head] = _published(world)
    assert _run(world, head["hash"]).exit_code == 0


def _run(world: ServiceWorld, head: str, *options: str) -> Result:
    folder = str(world.settings.data_dir)
    return CliRunner().invoke(main, ["audit", "verify", "--head", head, "--data-dir", folder, *options])


def _cut(conn: Connection, org: str) -> None:
    """Remove the two newest entries, and make the head fit."""
    found = entries_after(conn, org, 0, limit=1_000)
    conn.execute(delete(table).where(table.c.log == org, table.c.number > found[-3].number))
    conn.execute(update(heads).where(heads.c.log == org).values(number=found[-3].number, hash=found[-3].hash))


_ATTACKS: dict[str, tuple[Callable[[Connection, str], object], str]] = {
    "rewritten": (
        lambda conn, org: conn.execute(
            update(table).where(table.c.log == org, table.c.number == 2).values(object="key_of_nobody")
        ),
        "entry 2 of",
    ),
    "removed": (
        lambda conn, org: conn.execute(delete(table).where(table.c.log == org, table.c.number == 2)),
        "entry 2 is missing",
    ),
    "shortened": (_cut, "none has the hash"),
}


@pytest.mark.sqlite("runs a command on the data folder")
@pytest.mark.parametrize("attack", list(_ATTACKS))
async def test_command_finds_what_was_done_to_the_log(own_world: ServiceWorld, attack: str) -> None:
    world = own_world
    for _ in range(4):
        await _key(world)
    await _publish(world, 1.1)
    [head] = _published(world)
    assert _run(world, head["hash"]).output == "Verified: entries up to number 5.\n"

    work, reason = _ATTACKS[attack]
    await world.service.db.write(lambda conn: work(conn, world.org))

    found = _run(world, head["hash"], "--org", "test")
    assert found.exit_code == 1
    assert reason in found.output
    assert len(found.output.splitlines()) == 1


@pytest.mark.sqlite("runs a command on the data folder")
async def test_command_refuses_what_it_cannot_check(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    _run_ok = _run(world, _entries(world)[-1].hash)
    assert _run_ok.exit_code == 0
    for options, code in ((("--org", "nobody"), 1), (("--org", "test", "--service"), 2)):
        found = _run(world, "0" * 64, *options)
        assert found.exit_code == code, found.output
        assert "Traceback" not in found.output
    empty = CliRunner().invoke(main, ["audit", "verify", "--head", "00", "--data-dir", str(tmp_path / "none")])
    assert (empty.exit_code, len(empty.output.splitlines())) == (1, 1)


@pytest.mark.sqlite("runs a command on the data folder")
async def test_command_lists_the_log_as_the_api_shows_it(own_world: ServiceWorld) -> None:
    world = own_world
    await _key(world)

    listed = CliRunner().invoke(main, ["audit", "list", "--data-dir", str(world.settings.data_dir)])

    assert [json.loads(line) for line in listed.output.splitlines()] == (await _listed(world))[::-1]


@pytest.mark.proves("AuditLogPage(data, unreadable)", "UnreadableAuditEntry(number, reason)")
@pytest.mark.sqlite("writes rows in SQLite's words")
@pytest.mark.parametrize(
    "altered",
    [
        *("details = 'garbage'", "details = x'ff'", "actor = 'garbage'", "timestamp = 99999999999999999"),
        "action = 'key.steal'",
    ],
)
async def test_altered_row_hides_no_other_entry(own_world: ServiceWorld, altered: str) -> None:
    world = own_world
    for _ in range(3):
        await _key(world)
    sound = _entries(world)
    await world.service.db.write(
        lambda conn: conn.execute(text(f"UPDATE audit_entries SET {altered} WHERE number = 2"))
    )

    page = await world.ok("GET", "/v1/audit-log")
    listed = CliRunner().invoke(main, ["audit", "list", "--data-dir", str(world.settings.data_dir)])
    found = _run(world, sound[-1].hash)

    [broken] = page["unreadable"]
    assert broken["number"] == 2
    assert altered.partition(" ")[0] in broken["reason"]
    assert [one["number"] for one in page["data"]] == [one.number for one in reversed(sound) if one.number != 2]
    lines = [json.loads(line) for line in listed.output.splitlines()]
    assert (listed.exit_code, [one["number"] for one in lines]) == (0, [one.number for one in sound])
    assert (found.exit_code, len(found.output.splitlines())) == (1, 1)
    assert "entry 2" in found.output


@pytest.mark.proves("action key.create", "AuditLogEntry(actor, address)", "Actor(id)")
@pytest.mark.sqlite("runs a command on the data folder")
async def test_commands_are_on_record_as_the_machines(own_world: ServiceWorld) -> None:
    world = own_world
    folder = ["--data-dir", str(world.settings.data_dir)]
    made = CliRunner().invoke(main, ["keys", "create", "--role", "viewer", *folder])
    assert made.exit_code == 0
    key = [
        one
        for one in world.service.db.read_now(lambda conn: api_keys(conn, world.org))
        if one.hint == made.output.strip()[-4:]
    ]

    [entry] = await _listed(world, f"&object={key[0].key_id}")

    assert entry["actor"] == {"type": "system", "id": "command_line"}
    assert (entry["address"], entry["request_id"]) == (None, None)


async def test_every_action_has_its_meaning() -> None:
    assert all(meaning.endswith((".", "`.")) for meaning in ACTIONS.values())


async def test_code_appends_only_declared_actions() -> None:
    named = _actions_in_the_code()

    assert "wallet.create" in named
    assert named <= ACTIONS.keys()


def _actions_in_the_code() -> set[str]:
    appending = {"entry", "NewLogEntry", "record_for_all"}
    return {
        given.value
        for file in Path("app").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in appending
        for given in call.args
        if isinstance(given, ast.Constant) and isinstance(given.value, str)
    }
