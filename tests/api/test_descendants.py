"""People over the API, and the end of a key or person together with all that it created."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from app.access.auth import count
from app.access.keyring import KeyRing, Principal
from app.core.actors import Actor, Role
from app.core.errors import AuthenticationError
from app.core.event_catalogue import EVENTS
from app.core.timestamps import now_ms
from app.exports.exporter import Exporter
from app.people.service import invitation_of, invite
from app.people.sessions import digest, open_session, recognise
from app.store.feed import feed
from app.store.keys import table as api_keys
from app.store.people import remove_person
from tests.dashboard.browsing import Crafted, add_person, sign_in
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _make(world: ServiceWorld, key: str, role: str = "viewer") -> Json:
    return await world.ok("POST", "/v1/keys", {"role": role}, key=key)


async def _works(world: ServiceWorld, key: Json) -> bool:
    return (await world.call("GET", "/v1/wallets", key=key["key"])).status_code == 200


def _person(world: ServiceWorld, role: Role, org: str, name: str = "Ada", created_by: Actor | None = None) -> str:
    return add_person(world, role, name, org, created_by).actor.id


def _ids(answer: Json) -> list[str]:
    return [one["actor"]["id"] for one in answer["descendants"]]


async def _org(world: ServiceWorld, name: str) -> tuple[str, str]:
    org = await world.organisation(name)
    return org, world.key("admin", org=org)


@pytest.mark.proves("GET /v1/people", "ListedPerson(person_id, name, role, created_at, created_by)")
async def test_people_are_listed_to_admins_with_their_creator(world: ServiceWorld) -> None:
    org, admin = await _org(world, "listed")
    inviter = Actor("system", "command_line")
    person = _person(world, "viewer", org=org, name="Ada", created_by=inviter)

    [shown] = (await world.ok("GET", "/v1/people", key=admin))["data"]

    assert shown.pop("created_at").endswith("Z")
    created_by = {"type": "system", "id": "command_line"}
    assert shown == {"person_id": person, "name": "Ada", "role": "viewer", "created_by": created_by}
    operator = await _make(world, admin, "operator")
    refused = await world.call("GET", "/v1/people", key=operator["key"])
    error_of(refused, 403, "insufficient_permissions")
    assert (await world.ok("GET", "/v1/people"))["data"] == []


@pytest.mark.proves(
    "DELETE /v1/people/{person_id}",
    "event person.removed",
    "RemovedPerson(person_id, name, role, created_at, created_by)",
)
async def test_person_is_removed_but_never_the_last_admin(world: ServiceWorld) -> None:
    org, admin = await _org(world, "removed")
    first, second = _person(world, "admin", org=org), _person(world, "viewer", org=org)
    error_of(await world.call("DELETE", f"/v1/people/{first}", key=admin), 422, "last_admin_key")
    error_of(await world.call("DELETE", f"/v1/people/{second}"), 404, "not_found")

    removed = await world.ok("DELETE", f"/v1/people/{second}", key=admin)

    assert (removed["person_id"], removed["descendants"]) == (second, [])
    error_of(await world.call("DELETE", f"/v1/people/{second}", key=admin), 404, "not_found")
    events = world.service.db.read_now(lambda conn: feed(conn, org, limit=1000)).data
    [event] = [one.payload for one in events if one.type == "person.removed"]
    assert set(event) - {"timestamp"} == set(EVENTS["person.removed"].fields)
    assert (event["person_id"], event["actor"]["type"]) == (second, "key")


@pytest.mark.proves(
    "EndCredential(endDescendants)", "RevokedKey(descendants)", "Descendant(actor, role, name, created_at, created_by)"
)
async def test_revocation_lists_and_ends_descendants(world: ServiceWorld) -> None:
    # Given a leaked admin key that created keys and a person, some of them through others
    _, admin = await _org(world, "leaked")
    leaked = await _make(world, admin, "admin")
    child = await _make(world, leaked["key"], "admin")
    grandchild = await _make(world, child["key"])
    other = await _make(world, admin)
    await world.ok("DELETE", f"/v1/keys/{child['key_id']}", key=admin)

    # When it is revoked, those in force are listed and keep working
    revoked = await world.ok("DELETE", f"/v1/keys/{leaked['key_id']}", key=admin)
    assert _ids(revoked) == [grandchild["key_id"]]
    assert await _works(world, grandchild)

    # With `endDescendants`, they end, too
    again = await _make(world, admin, "admin")
    below = await _make(world, again["key"])
    path = f"/v1/keys/{again['key_id']}"
    ended = await world.ok("DELETE", path, {"endDescendants": True}, key=admin)
    assert _ids(ended) == [below["key_id"]]
    assert [await _works(world, one) for one in (again, below, grandchild, other)] == [False, False, True, True]


@pytest.mark.proves("RevokedKey(descendants)")
async def test_person_a_key_created_ends_with_it(world: ServiceWorld) -> None:
    org, admin = await _org(world, "first-person")
    leaked = await _make(world, admin, "admin")
    planted = _person(world, "admin", org=org, created_by=Actor("key", leaked["key_id"]))
    invited = _person(world, "viewer", org=org, created_by=Actor("person", planted))
    path, body = f"/v1/keys/{leaked['key_id']}", {"endDescendants": True}
    error_of(await world.call("DELETE", path, body, key=admin), 422, "last_admin_key")
    assert await _works(world, leaked)
    kept = _person(world, "admin", org=org)

    ended = await world.ok("DELETE", path, body, key=admin)

    assert set(_ids(ended)) == {planted, invited}
    assert [one["person_id"] for one in (await world.ok("GET", "/v1/people", key=admin))["data"]] == [kept]


@pytest.mark.proves("DELETE /v1/people/{person_id}", "RemovedPerson(descendants)")
async def test_keys_of_a_removed_person_end_on_request(world: ServiceWorld) -> None:
    org, admin = await _org(world, "keys-of-a-person")
    _person(world, "admin", org=org)
    gone = _person(world, "admin", org=org)
    planted = _person(world, "viewer", org=org, created_by=Actor("person", gone))

    removed = await world.ok("DELETE", f"/v1/people/{gone}", {"endDescendants": True}, key=admin)

    assert _ids(removed) == [planted]
    assert gone not in str((await world.ok("GET", "/v1/people", key=admin))["data"])


@pytest.mark.proves("EndCredential(endDescendants)")
async def test_caller_never_ends_itself(world: ServiceWorld) -> None:
    _, admin = await _org(world, "descended")
    leaked = await _make(world, admin, "admin")
    caller = await _make(world, leaked["key"], "admin")
    own = await _make(world, caller["key"])

    ended = await world.ok("DELETE", f"/v1/keys/{leaked['key_id']}", {"endDescendants": True}, key=caller["key"])

    assert _ids(ended) == []
    assert [await _works(world, one) for one in (leaked, caller, own)] == [False, True, True]


@pytest.mark.proves("EndCredential(endDescendants)")
@pytest.mark.parametrize("value", ["true", 1, None])
async def test_end_of_descendants_is_a_boolean(world: ServiceWorld, value: object) -> None:
    made = await _make(world, world.keys["admin"])

    refused = await world.call("DELETE", f"/v1/keys/{made['key_id']}", {"endDescendants": value})

    error_of(refused, 400, "invalid_request")


async def test_download_link_ends_with_its_author(world: ServiceWorld) -> None:
    made = await _make(world, world.keys["admin"])
    export = await world.ok("POST", "/v1/transactions/export", {"format": "csv"}, key=made["key"])
    await world.service.part(Exporter).tick()
    shown = await world.ok("GET", f"/v1/transactions/exports/{export['export_id']}", key=made["key"])
    link = httpx.URL(shown["download_url"]).raw_path.decode()
    assert (await world.client.get(link)).status_code == 200
    # The signature covers the author
    forged = await world.client.get(link.replace("by=key", "by=person"))
    error_of(forged, 403, "download_link_invalid")

    await world.ok("DELETE", f"/v1/keys/{made['key_id']}")

    error_of(await world.client.get(link), 403, "download_link_invalid")


async def test_revoked_key_is_signed_out(own_world: ServiceWorld) -> None:
    world = own_world
    made = await _make(world, world.keys["admin"], "admin")
    by = await world.service.part(KeyRing).recognise(made["key"], None)
    assert by is not None
    db = world.service.db
    token = db.write_now(lambda conn: open_session(conn, by, "test", now_ms(), way="admin_key"))
    assert db.read_now(lambda conn: recognise(conn, token, now_ms())) is not None

    await world.ok("DELETE", f"/v1/keys/{made['key_id']}")

    assert db.read_now(lambda conn: recognise(conn, token, now_ms())) is None


@pytest.mark.parametrize("inviter", ["key", "person"])
async def test_invitation_of_an_ended_inviter_is_refused(world: ServiceWorld, inviter: str) -> None:
    org, admin = await _org(world, f"inviting-{inviter}")
    _person(world, "admin", org=org)
    if inviter == "key":
        made = await _make(world, admin, "admin")
        actor, path = Actor("key", made["key_id"]), f"/v1/keys/{made['key_id']}"
    else:
        person = _person(world, "admin", org=org)
        actor, path = Actor("person", person), f"/v1/people/{person}"
    by, db = Principal(actor, org, "admin", None), world.service.db
    made_invitation = db.write_now(lambda conn: invite(conn, by, "Eve", "admin", now_ms()))
    token = digest(made_invitation.token)
    db.read_now(lambda conn: invitation_of(conn, token, now_ms()))

    await world.ok("DELETE", path, key=admin)

    with pytest.raises(AuthenticationError):
        db.read_now(lambda conn: invitation_of(conn, token, now_ms()))


@pytest.mark.proves("EndCredential(endDescendants)")
async def test_descendants_include_those_of_the_whole_rotation_chain(world: ServiceWorld) -> None:
    # Given a thief who created a key, rotated the leaked key to itself, and rotated the created key, too
    _, admin = await _org(world, "chain")
    leaked = await _make(world, admin, "admin")
    made = await _make(world, leaked["key"], "admin")
    middle = await world.ok("POST", f"/v1/keys/{leaked['key_id']}/rotate", {"overlapSeconds": 60}, key=leaked["key"])
    last = await world.ok("POST", f"/v1/keys/{middle['key_id']}/rotate", {"overlapSeconds": 0}, key=middle["key"])
    moved = await world.ok("POST", f"/v1/keys/{made['key_id']}/rotate", {"overlapSeconds": 0}, key=admin)
    other = await _make(world, admin)

    # When the key in its middle is ended, though it no longer works
    path = f"/v1/keys/{middle['key_id']}"
    error_of(await world.call("DELETE", path, key=admin), 422, "key_not_active")
    ended = await world.ok("DELETE", path, {"endDescendants": True}, key=admin)

    # Then everything of the chain ends
    assert set(_ids(ended)) == {one["key_id"] for one in (leaked, last, moved)}
    assert [await _works(world, one) for one in (leaked, last, moved, other)] == [False, False, False, True]


@pytest.mark.proves("EndCredential(endDescendants)")
@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_descendants_of_an_inactive_key_end(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    _, admin = await _org(world, f"inactive-{how}")
    end = now_ms() + 3_600_000
    leaked = await _make(world, admin, "admin")
    made, path = await _make(world, leaked["key"]), f"/v1/keys/{leaked['key_id']}"
    if how == "revoked":
        await world.ok("DELETE", path, key=admin)
    else:
        # Earlier versions let a key with an end create keys without one.
        sets_end = update(api_keys).where(api_keys.c.key_id == leaked["key_id"]).values(expires_at=end)
        world.service.db.write_now(lambda conn: conn.execute(sets_end))
        monkeypatch.setattr(world.service.part(KeyRing), "_clock", lambda: end / 1000)

    ended = await world.ok("DELETE", path, {"endDescendants": True}, key=admin)

    assert _ids(ended) == [made["key_id"]]
    assert not await _works(world, made)
    error_of(await world.call("DELETE", path, key=admin), 422, "key_not_active")


@pytest.mark.proves("EndCredential(endDescendants)")
async def test_caller_that_replaced_a_leaked_key_stays(world: ServiceWorld) -> None:
    _, admin = await _org(world, "replaced")
    leaked = await _make(world, admin, "admin")
    made = await _make(world, leaked["key"])
    caller = await world.ok("POST", f"/v1/keys/{leaked['key_id']}/rotate", {}, key=admin)
    own = await _make(world, caller["key"])

    ended = await world.ok("DELETE", f"/v1/keys/{leaked['key_id']}", {"endDescendants": True}, key=caller["key"])

    assert _ids(ended) == [made["key_id"]]
    assert [await _works(world, one) for one in (leaked, made, caller, own)] == [False, False, True, True]


@pytest.mark.parametrize(
    "change",
    [*("key", "token", "funding", "policy", "webhook", "unfreeze", "label", "alerts", "wallet_alerts", "topup")],
)
async def test_revoked_key_changes_nothing_by_a_request_already_accepted(world: ServiceWorld, change: str) -> None:
    wallet, admin = await world.wallet(), await _make(world, world.keys["admin"], "admin")
    path, policy = f"/v1/wallets/{wallet['wallet_id']}", await world.ok("POST", "/v1/policies", {"name": "Own"})
    if change == "unfreeze":
        await world.ok("PATCH", path, {"status": "frozen"})
    method, target, body = {
        "key": ("POST", "/v1/keys", {"role": "admin"}),
        "token": ("POST", f"{path}/rotate-token", {}),
        "funding": ("POST", f"{path}/fund", {"amount": "1", "currency": "USDC"}),
        "policy": ("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "1.00"}),
        "webhook": ("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/", "events": ["wallet.frozen"]}),
        "unfreeze": ("PATCH", path, {"status": "active"}),
        "label": ("PATCH", path, {"label": "Eve"}),
        "alerts": ("PUT", "/v1/alerts", {}),
        "wallet_alerts": ("PUT", f"{path}/alerts", {}),
        "topup": ("PUT", f"{path}/auto-topup", {"enabled": False}),
    }[change]
    accepted, revoked = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        accepted.set()
        await revoked.wait()
        yield json.dumps(body).encode()

    headers = {"Authorization": f"Bearer {admin['key']}", "Content-Type": "application/json"}
    sent = asyncio.create_task(world.client.request(method, target, content=slowly(), headers=headers))
    await accepted.wait()
    await world.ok("DELETE", f"/v1/keys/{admin['key_id']}", {"endDescendants": True})
    revoked.set()

    error_of(await sent, 401, "authentication_failed")


@pytest.mark.parametrize("path", ["/dashboard/developers/keys/{key}/revoke", "/dashboard/alerts", "/dashboard/freeze"])
async def test_removed_person_changes_nothing_by_a_form_already_accepted(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    key, wallet = await _make(world, world.keys["admin"]), await world.wallet()
    cookie = sign_in(world, "admin")
    admin, db = Crafted(world, cookie), world.service.db
    by = db.read_now(lambda conn: recognise(conn, cookie, now_ms()))
    assert by is not None

    async def removed_meanwhile(*given: Any, **options: Any) -> None:
        await count(*given, **options)
        db.write_now(lambda conn: remove_person(conn, world.org, by.session.actor.id, now_ms()))

    csrf = await admin.csrf()
    monkeypatch.setattr("app.dashboard.pages.count", removed_meanwhile)
    fields = {"wallet_id": wallet["wallet_id"]}
    answer = await admin.post(path.format(key=key["key_id"]), fields, csrf=csrf, accept="application/json")

    if path.endswith("/freeze"):
        # A freeze does no harm and must not wait.
        assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "frozen"
    else:
        error_of(answer, 401, "authentication_failed")
        assert await _works(world, key)
