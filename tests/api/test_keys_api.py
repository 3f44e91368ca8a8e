"""API keys: created, listed, rotated with an overlap, revoked, and when they were last used."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, update

from app.access.keyring import KeyRing, system
from app.commands.main import main
from app.server.housekeeping import KeyUse
from app.store.idempotency import table as idempotency
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _make(world: ServiceWorld, role: str = "viewer", **fields: object) -> Json:
    return await world.ok("POST", "/v1/keys", {"role": role, **fields})


async def _works(world: ServiceWorld, key: str) -> bool:
    response = await world.call("GET", "/v1/wallets", key=key)
    assert response.status_code in {200, 401}
    return response.status_code == 200


async def _listed(world: ServiceWorld, key_id: str) -> Json:
    [found] = [one for one in (await world.ok("GET", "/v1/keys?limit=100"))["data"] if one["key_id"] == key_id]
    return dict(found)


@pytest.mark.proves(
    "POST /v1/keys",
    "CreateKey(role, name)",
    "Key(key_id, id, role, name, hint)",
    "NewKey(key_id, id, role, wallet_id, name, hint, status, created_at, last_used_at, revoked_at)",
    "NewKey(expires_at, allowed_addresses, created_by, key)",
)
async def test_key_is_shown_once_and_works(world: ServiceWorld) -> None:
    made = await _make(world, "operator", name="ops")

    assert re.fullmatch(r"avk_test_[0-9A-Za-z]{36}", made["key"])
    assert made["key"].endswith(made["hint"])
    assert (made["role"], made["name"], made["status"], made["revoked_at"]) == ("operator", "ops", "active", None)
    assert await _works(world, made["key"])
    shown = await _listed(world, made["key_id"])
    assert made["key"] not in str(shown)
    assert shown == {name: value for name, value in made.items() if name != "key"}


@pytest.mark.proves("CreateKey(walletId)", "Key(wallet_id)")
async def test_agents_key_belongs_to_its_wallet(world: ServiceWorld) -> None:
    wallet, other = await world.wallet(), await world.wallet()
    made = await _make(world, "agent", walletId=wallet["wallet_id"])

    assert made["wallet_id"] == wallet["wallet_id"]
    assert (await world.call("GET", f"/v1/wallets/{wallet['wallet_id']}", key=made["key"])).status_code == 200
    refused = await world.call("GET", f"/v1/wallets/{other['wallet_id']}", key=made["key"])
    error_of(refused, 403, "insufficient_permissions")


@pytest.mark.proves("CreateKey(role, walletId)")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"role": "root"},
        {"role": "agent"},
        {"role": "viewer", "walletId": "wal_x"},
        {"role": "viewer", "name": "x" * 129},
        {"role": "viewer", "name": "\x00"},
        {"role": "viewer", "key": "avk_test_mine"},
    ],
)
async def test_bad_key_is_refused(world: ServiceWorld, body: Json) -> None:
    error_of(await world.call("POST", "/v1/keys", body), 400, "invalid_request")


async def test_agents_key_for_an_unknown_wallet_is_refused(world: ServiceWorld) -> None:
    body = {"role": "agent", "walletId": "wal_unknown"}

    error_of(await world.call("POST", "/v1/keys", body), 404, "wallet_not_found")


@pytest.mark.proves("role admin")
async def test_only_admins_manage_keys(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    made = await _make(world)
    keys = [world.key("viewer"), world.key("operator"), world.key("agent", wallet["wallet_id"])]
    for method, path in (
        ("POST", "/v1/keys"),
        ("GET", "/v1/keys"),
        ("POST", f"/v1/keys/{made['key_id']}/rotate"),
        ("DELETE", f"/v1/keys/{made['key_id']}"),
    ):
        body = {"role": "admin"} if (method, path) == ("POST", "/v1/keys") else None
        for key in keys:
            error_of(await world.call(method, path, body, key=key), 403, "insufficient_permissions")
    assert await _works(world, made["key"])


@pytest.mark.proves("error key_not_found")
async def test_keys_of_another_organisation_are_not_there(world: ServiceWorld) -> None:
    elsewhere = await world.organisation("keys-elsewhere")
    admin = world.key("admin", org=elsewhere)
    made = await _make(world)

    rotated = await world.call("POST", f"/v1/keys/{made['key_id']}/rotate", {}, key=admin)
    revoked = await world.call("DELETE", f"/v1/keys/{made['key_id']}", key=admin)

    error_of(rotated, 404, "key_not_found")
    error_of(revoked, 404, "key_not_found")
    assert [one["role"] for one in (await world.ok("GET", "/v1/keys", key=admin))["data"]] == ["admin"]
    assert await _works(world, made["key"])


@pytest.mark.proves(
    "DELETE /v1/keys/{key_id}",
    "error key_not_active",
    "Authentication: Keys at rest",
    "Key(status, revoked_at)",
    "RevokedKey(key_id, id, role, wallet_id, name, hint, status, created_at, last_used_at, revoked_at)",
    "RevokedKey(expires_at, allowed_addresses, created_by)",
)
async def test_revoked_key_stops_at_once(world: ServiceWorld) -> None:
    made = await _make(world)
    assert await _works(world, made["key"])

    revoked = await world.ok("DELETE", f"/v1/keys/{made['key_id']}")

    assert revoked["status"] == "revoked"
    assert not await _works(world, made["key"])
    error_of(await world.call("DELETE", f"/v1/keys/{made['key_id']}"), 422, "key_not_active")
    error_of(await world.call("POST", f"/v1/keys/{made['key_id']}/rotate", {}), 422, "key_not_active")
    error_of(await world.call("DELETE", "/v1/keys/key_unknown"), 404, "key_not_found")


@pytest.mark.proves("POST /v1/keys/{key_id}/rotate", "RotateKey(overlapSeconds)", "Key(status, revoked_at)")
async def test_old_key_works_until_the_overlap_is_over(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a key that was rotated
    old = await _make(world, "operator", name="ops")
    new = await world.ok("POST", f"/v1/keys/{old['key_id']}/rotate", {"overlapSeconds": 3600})

    # Then both work, and the new one has the same role and name
    assert new["key_id"] != old["key_id"]
    assert [new[name] for name in ("role", "name", "status")] == ["operator", "ops", "active"]
    assert await _works(world, old["key"])
    assert await _works(world, new["key"])
    assert (await _listed(world, old["key_id"]))["status"] == "rotated"
    error_of(await world.call("POST", f"/v1/keys/{old['key_id']}/rotate", {}), 422, "key_not_active")

    # When the overlap is over, the old one stops working, even from the cache
    ring = world.service.part(KeyRing)
    now = ring._clock()
    monkeypatch.setattr(ring, "_clock", lambda: now + 3_599)
    assert await _works(world, old["key"])
    monkeypatch.setattr(ring, "_clock", lambda: now + 3_601)
    assert not await _works(world, old["key"])
    assert await _works(world, new["key"])


@pytest.mark.proves("RotateKey(overlapSeconds)")
async def test_rotation_without_overlap_and_a_leaked_key_end_the_old_one_at_once(world: ServiceWorld) -> None:
    first, second = await _make(world), await _make(world)

    await world.ok("POST", f"/v1/keys/{first['key_id']}/rotate")
    await world.ok("POST", f"/v1/keys/{second['key_id']}/rotate", {"overlapSeconds": 3600})
    assert await _works(world, second["key"])
    await world.ok("DELETE", f"/v1/keys/{second['key_id']}")

    assert not await _works(world, first["key"])
    assert not await _works(world, second["key"])
    for seconds in (-1, 2_592_001, "60", 1.5):
        bad = await world.call("POST", f"/v1/keys/{first['key_id']}/rotate", {"overlapSeconds": seconds})
        error_of(bad, 400, "invalid_request")


@pytest.mark.proves("error last_admin_key", "Authentication: Last admin key")
@pytest.mark.sqlite("runs a command on the data folder")
async def test_organisation_keeps_its_last_admin_key(world: ServiceWorld) -> None:
    # Given an organisation whose only admin key was rotated
    other = await world.organisation("last-admin")
    old = world.key("admin", org=other)
    [key_id] = [one["key_id"] for one in (await world.ok("GET", "/v1/keys", key=old))["data"]]
    await world.ok("POST", "/v1/keys", {"role": "operator"}, key=old)
    last = await world.ok("POST", f"/v1/keys/{key_id}/rotate", {"overlapSeconds": 3600}, key=old)

    # Then the new one stays, because the old one works only for a while; the old one may be revoked
    path, options = f"/v1/keys/{last['key_id']}", ["--data-dir", str(world.settings.data_dir), "--org", "last-admin"]
    error_of(await world.call("DELETE", path, key=old), 422, "last_admin_key")
    refused = CliRunner().invoke(main, ["keys", "revoke", last["key_id"], *options])
    assert (refused.exit_code, "last active admin key" in refused.output) == (1, True)
    await world.ok("DELETE", f"/v1/keys/{key_id}", key=last["key"])

    # When there is another, it may be revoked; then that one stays
    another = await world.ok("POST", "/v1/keys", {"role": "admin"}, key=last["key"])
    assert (await world.ok("DELETE", path, key=last["key"]))["status"] == "revoked"
    error_of(await world.call("DELETE", f"/v1/keys/{another['key_id']}", key=another["key"]), 422, "last_admin_key")


@pytest.mark.proves("NewKey(key)")
async def test_repetition_gets_the_same_key_which_is_stored_encrypted_only(world: ServiceWorld) -> None:
    body = {"role": "viewer", "idempotencyKey": "make-a-key"}

    first, again = await world.ok("POST", "/v1/keys", body), await world.ok("POST", "/v1/keys", body)

    assert first == again
    stored = b"".join(file.read_bytes() for file in world.settings.data_dir.rglob("*.db*"))
    assert first["key"].encode() not in stored


async def _set_claim(world: ServiceWorld, key: str, **values: Any) -> None:
    """Change the stored record of an idempotency key."""

    def work(connection: Connection) -> None:
        connection.execute(update(idempotency).where(idempotency.c.key == key).values(values))

    await world.service.db.write(work)


async def _ask_and_lose(world: ServiceWorld, method: str, path: str, body: Json, key: str) -> Json:
    """Make a request, and leave the database as a process that dies before it stores the answer."""
    answer = await world.ok(method, path, body, headers={"Idempotency-Key": key})
    lost: Json = {"state": "running", "response": None, "status_code": None}
    await _set_claim(world, key, **lost)
    return answer


async def test_creation_whose_answer_got_lost_replaces_the_key_of_its_record(world: ServiceWorld) -> None:
    body = {"role": "viewer", "name": "lost-create"}
    unseen = await _ask_and_lose(world, "POST", "/v1/keys", body, "lost-create")

    made = await world.ok("POST", "/v1/keys", body, headers={"Idempotency-Key": "lost-create"})

    assert await world.ok("POST", "/v1/keys", body, headers={"Idempotency-Key": "lost-create"}) == made
    named = [one for one in (await world.ok("GET", "/v1/keys?limit=100"))["data"] if one["name"] == "lost-create"]
    assert [one["key_id"] for one in named] == [made["key_id"]] == [unseen["key_id"]]
    assert named[0]["hint"] == made["hint"] == made["key"][-4:]
    assert await _works(world, made["key"])
    assert not await _works(world, unseen["key"])


async def test_rotation_whose_answer_got_lost_returns_a_working_key(world: ServiceWorld) -> None:
    old = await _make(world, "operator", name="lost-rotate")
    path, body = f"/v1/keys/{old['key_id']}/rotate", {"overlapSeconds": 0}
    unseen = await _ask_and_lose(world, "POST", path, body, "lost-rotate")

    new = await world.ok("POST", path, body, headers={"Idempotency-Key": "lost-rotate"})

    assert (new["key_id"], new["role"], new["status"]) == (unseen["key_id"], "operator", "active")
    assert [await _works(world, one["key"]) for one in (new, unseen, old)] == [True, False, False]


async def test_revocation_whose_answer_got_lost_is_answered_as_done(world: ServiceWorld) -> None:
    made = await _make(world)
    path = f"/v1/keys/{made['key_id']}"
    revoked = await _ask_and_lose(world, "DELETE", path, {}, "lost-revoke")

    assert await world.ok("DELETE", path, headers={"Idempotency-Key": "lost-revoke"}) == revoked
    error_of(await world.call("DELETE", path, headers={"Idempotency-Key": "another"}), 422, "key_not_active")


async def test_expired_idempotency_key_makes_another_key(world: ServiceWorld) -> None:
    headers, body = {"Idempotency-Key": "used-anew"}, {"role": "viewer", "name": "used-anew"}
    first = await world.ok("POST", "/v1/keys", body, headers=headers)
    await _set_claim(world, "used-anew", expires_at=1)

    await _ask_and_lose(world, "POST", "/v1/keys", body, "used-anew")
    second = await world.ok("POST", "/v1/keys", body, headers=headers)

    assert second["key_id"] != first["key_id"]
    assert await _works(world, first["key"])
    assert await _works(world, second["key"])


@pytest.mark.proves("GET /v1/keys", "GET /v1/keys(limit, cursor)", "Key(created_at)")
async def test_list_is_paged_newest_first(world: ServiceWorld) -> None:
    made = [(await _make(world))["key_id"] for _ in range(3)]
    first = await world.ok("GET", "/v1/keys?limit=2")
    await _make(world)
    second = await world.ok("GET", f"/v1/keys?limit=2&cursor={first['next_cursor']}")

    seen = [one["key_id"] for one in (*first["data"], *second["data"])]
    assert len(set(seen)) == 4
    assert set(made) <= set(seen)


@pytest.mark.proves("Key(last_used_at)")
async def test_last_use_is_stored_in_rounds_and_not_by_the_request(world: ServiceWorld) -> None:
    made = await _make(world)
    ring = world.service.part(KeyRing)
    rounds = KeyUse(ring, interval=60)
    await rounds.tick()
    assert (await _listed(world, made["key_id"]))["last_used_at"] is None

    for _ in range(3):
        assert await _works(world, made["key"])
    assert (await _listed(world, made["key_id"]))["last_used_at"] is None
    used = ring._used[made["key_id"]]
    await rounds.tick()

    shown = (await _listed(world, made["key_id"]))["last_used_at"]
    assert shown is not None
    assert shown.endswith(f".{used % 1000:03}Z")


async def test_last_use_is_kept_over_a_restart(own_world: ServiceWorld) -> None:
    made = await _make(own_world)
    assert await _works(own_world, made["key"])

    await own_world.restart()

    assert (await _listed(own_world, made["key_id"]))["last_used_at"] is not None


@pytest.mark.sqlite("runs a command on the data folder")
async def test_command_line_rotates_and_lists_the_same_keys(world: ServiceWorld) -> None:
    made = await _make(world)
    folder: Path = world.settings.data_dir
    options = ["--data-dir", str(folder), "--org", "test"]

    rotated = CliRunner().invoke(main, ["keys", "rotate", made["key_id"], "--overlap", "60", *options])
    again = CliRunner().invoke(main, ["keys", "rotate", made["key_id"], *options])
    listed = CliRunner().invoke(main, ["keys", "list", *options])

    assert rotated.exit_code == 0, rotated.output
    assert await _works(world, rotated.output.strip())
    assert again.exit_code == 1
    assert "already revoked, or it was rotated" in again.output
    [line] = [line for line in listed.output.splitlines() if made["key_id"] in line]
    assert "rotated" in line


async def test_key_revoked_while_it_is_read_is_not_kept(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    db = world.service.db
    ring = KeyRing(db, bytes(32), cache_seconds=60)
    key = ring.create(org=world.org, role="viewer", wallet_id=None, name="", live=False)
    read = db.read

    async def late(work: Any, **options: Any) -> Any:
        found = await read(work, **options)
        db.write_now(lambda conn: ring.revoke(conn, system(world.org, "test"), found.key_id))
        ring.forget()
        return found

    monkeypatch.setattr(db, "read", late)
    await ring.recognise(key, None)
    monkeypatch.undo()

    assert await ring.recognise(key, None) is None


async def test_requests_at_the_same_time_share_the_reading_of_a_key(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = world.service.db
    ring = KeyRing(db, bytes(32), cache_seconds=60)
    key = ring.create(org=world.org, role="viewer", wallet_id=None, name="", live=False)
    read, go_on, readings = db.read, asyncio.Event(), asyncio.Queue[str]()

    async def late(work: Any, **options: Any) -> Any:
        found = await read(work, **options)
        readings.put_nowait(found.key_id)
        await go_on.wait()
        return found

    # Given requests that wait for one reading
    monkeypatch.setattr(db, "read", late)
    early = [asyncio.create_task(ring.recognise(key, None)) for _ in range(5)]
    key_id = await readings.get()
    # When the key is revoked
    db.write_now(lambda conn: ring.revoke(conn, system(world.org, "test"), key_id))
    ring.forget()
    # Then who asks after that does not take the old one
    after = asyncio.create_task(ring.recognise(key, None))
    early[0].cancel()
    await readings.get()
    go_on.set()
    assert await after is None
    assert all(await asyncio.gather(*early[1:]))
    assert readings.empty()
    assert await ring.recognise(key, None) is None
