"""API keys that expire, that work from some addresses only, and the organisation's requirement of both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from click.testing import CliRunner

from app.access.keyring import KeyRing
from app.access.networks import allow, parse_network
from app.access.recorder import Recorder
from app.commands.main import main
from app.core.event_catalogue import EVENTS
from app.core.timestamps import iso_ms, now_ms
from app.server.application import create_app
from app.server.housekeeping import Housekeeping
from app.store.feed import feed
from tests.dashboard.browsing import Crafted, add_person
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DAY = 86_400_000
_OFFICE = ["203.0.113.0/24", "2001:db8::/32"]


async def _make(world: ServiceWorld, role: str = "viewer", **fields: object) -> Json:
    return await world.ok("POST", "/v1/keys", {"role": role, **fields})


def _events(world: ServiceWorld, kind: str, key_id: str) -> list[Json]:
    found = world.service.db.read_now(lambda conn: feed(conn, world.org, limit=1000)).data
    payloads = [one.payload for one in found if one.type == kind and one.payload.get("key_id") == key_id]
    for one in payloads:
        assert set(one) - {"timestamp", *EVENTS[kind].optional} == set(EVENTS[kind].fields)
    return payloads


def _housekeeping(world: ServiceWorld, now: int) -> Housekeeping:
    return Housekeeping(
        world.service.db, interval=60, days=90, requests=1000, chain_clock=now_ms, clock=lambda: now / 1000
    )


@asynccontextmanager
async def _from(world: ServiceWorld, address: str, headers: dict[str, str] | None = None) -> AsyncIterator[None]:
    """Send the block's requests from a client with this address."""
    own = world.client
    transport = httpx.ASGITransport(create_app(world.settings, world.service), client=(address, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        world.client = client
        try:
            yield
        finally:
            world.client = own


@pytest.mark.proves("CreateKey(expiresAt)", "Key(expires_at)")
async def test_key_stops_at_its_end(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    end = now_ms() + 3_600_000
    made = await _make(world, expiresAt=iso_ms(end))
    assert (made["expires_at"], made["status"]) == (iso_ms(end), "active")
    await world.ok("GET", "/v1/wallets", key=made["key"])

    monkeypatch.setattr(world.service.part(KeyRing), "_clock", lambda: end / 1000)

    error_of(await world.call("GET", "/v1/wallets", key=made["key"]), 401, "authentication_failed")
    error_of(await world.call("POST", f"/v1/keys/{made['key_id']}/rotate", {}), 422, "key_not_active")
    error_of(await world.call("DELETE", f"/v1/keys/{made['key_id']}"), 422, "key_not_active")


@pytest.mark.proves("CreateKey(expiresAt)")
@pytest.mark.parametrize("end", ["2020-01-01T00:00:00Z", "tomorrow", 5, ""])
async def test_end_in_the_past_is_refused(world: ServiceWorld, end: object) -> None:
    error = error_of(await world.call("POST", "/v1/keys", {"role": "viewer", "expiresAt": end}), 400, "invalid_request")

    assert "expiresAt" in error["message"]


@pytest.mark.proves("CreateKey(allowedAddresses)")
@pytest.mark.parametrize(
    "networks",
    [
        [],
        ["10.0.0.1/8"],
        ["here"],
        ["10.0.0.0/33"],
        ["::/129"],
        [""],
        ["fe80::1%eth0"],
        "10.0.0.0/8",
        ["10.0.0.0/8"] * 51,
    ],
)
async def test_malformed_networks_are_refused(world: ServiceWorld, networks: object) -> None:
    refused = await world.call("POST", "/v1/keys", {"role": "viewer", "allowedAddresses": networks})

    assert "allowedAddresses" in error_of(refused, 400, "invalid_request")["message"]


@pytest.mark.proves("Key(allowed_addresses)")
@pytest.mark.parametrize(
    ("network", "stored", "inside", "outside"),
    [
        ("203.0.113.0/24", "203.0.113.0/24", "203.0.113.9", "203.0.114.1"),
        ("203.0.113.7", "203.0.113.7/32", "203.0.113.7", "203.0.113.8"),
        ("2001:db8::/32", "2001:db8::/32", "2001:db8:1::1", "2001:db9::1"),
        ("::ffff:203.0.113.0/120", "203.0.113.0/24", "203.0.113.200", "203.0.112.1"),
        ("::/0", "::/0", "2001:db8::1", "203.0.113.1"),
        ("0.0.0.0/0", "0.0.0.0/0", "203.0.113.1", "::1"),
    ],
)
async def test_network_is_of_one_family(network: str, stored: str, inside: str, outside: str) -> None:
    assert str(parse_network(network)) == stored
    assert allow([network], inside)
    assert not allow([network], outside)
    assert not allow([network], None)
    assert allow(None, None)


@pytest.mark.proves("CreateKey(allowedAddresses)", "Key(allowed_addresses)")
@pytest.mark.parametrize("address", ["203.0.113.5", "::ffff:203.0.113.5", "2001:db8::5"])
async def test_key_works_from_its_addresses(world: ServiceWorld, address: str) -> None:
    made = await _make(world, allowedAddresses=_OFFICE)
    assert made["allowed_addresses"] == _OFFICE

    async with _from(world, address):
        await world.ok("GET", "/v1/wallets", key=made["key"])


@pytest.mark.proves("Authentication: Allowed addresses", "CreateKey(allowedAddresses)")
@pytest.mark.parametrize("address", ["203.0.114.5", "::ffff:203.0.114.5", "2001:db9::5", "testclient"])
async def test_key_does_nothing_elsewhere(world: ServiceWorld, address: str) -> None:
    made = await _make(world, "admin", allowedAddresses=_OFFICE)

    async with _from(world, address):
        for method, path in (("GET", "/v1/wallets"), ("POST", "/v1/keys"), ("GET", "/metrics"), ("POST", "/mcp")):
            refused = await world.call(method, path, key=made["key"])
            error = error_of(refused, 403, "insufficient_permissions")
            assert "does not allow this address" in error["message"]


@pytest.mark.proves("action key.use_outside", "event key.used_outside", "Authentication: Allowed addresses")
async def test_key_brakes_from_everywhere_and_the_use_is_reported(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    made = await _make(world, "operator", allowedAddresses=_OFFICE)
    path = f"/v1/wallets/{wallet['wallet_id']}"

    async with _from(world, "198.51.100.7"):
        for body in ({"label": "x"}, {"status": "active"}, {"status": "frozen", "label": "x"}):
            error_of(await world.call("PATCH", path, body, key=made["key"]), 403, "insufficient_permissions")
        unpause = await world.call("POST", "/v1/organization/pause", {"paused": False}, key=made["key"])
        error_of(unpause, 403, "insufficient_permissions")
        token = await world.call("POST", f"{path}/rotate-token", {}, key=made["key"])
        error_of(token, 403, "insufficient_permissions")
        frozen = await world.ok("PATCH", path, {"status": "frozen"}, key=made["key"])
        paused = await world.ok("POST", "/v1/organization/pause", {"paused": True}, key=made["key"])
    await world.ok("POST", "/v1/organization/pause", {"paused": False})

    assert (frozen["status"], paused) == ("frozen", {"paused": True})
    await world.service.part(Recorder).tick()
    [event] = _events(world, "key.used_outside", made["key_id"])
    assert (event["address"], event["role"]) == ("198.51.100.7", "operator")
    entries = (await world.ok("GET", "/v1/audit-log?action=key.use_outside&limit=100"))["data"]
    mine = [one for one in entries if one["object"] == made["key_id"]]
    assert {one["details"]["operation"] for one in mine} == {
        "PATCH /v1/wallets/{wallet_id}",
        "POST /v1/organization/pause",
        "POST /v1/wallets/{wallet_id}/rotate-token",
    }


@pytest.mark.proves("Authentication: Allowed addresses")
async def test_forwarded_address_counts_only_from_the_configured_proxies(world: ServiceWorld) -> None:
    made = await _make(world, allowedAddresses=["203.0.113.5"])
    forwarded, trusting = {"X-Forwarded-For": "203.0.113.5"}, world.settings
    async with _from(world, "10.0.0.5", forwarded):
        error_of(await world.call("GET", "/v1/wallets", key=made["key"]), 403, "insufficient_permissions")

    world.settings = trusting.model_copy(update={"trusted_proxies": "10.0.0.5"})
    try:
        async with _from(world, "10.0.0.5", forwarded):
            await world.ok("GET", "/v1/wallets", key=made["key"])
        async with _from(world, "203.0.113.5", {"X-Forwarded-For": "198.51.100.1"}):
            await world.ok("GET", "/v1/wallets", key=made["key"])
    finally:
        world.settings = trusting


@pytest.mark.proves("Authentication: Allowed addresses")
async def test_admin_key_signs_in_from_its_addresses_only(own_world: ServiceWorld) -> None:
    made = await _make(own_world, "admin", allowedAddresses=_OFFICE)

    visitor = Crafted(own_world)
    csrf = await visitor.csrf("/dashboard/sign-in")
    refused = await visitor.post("/dashboard/sign-in", {"admin_key": made["key"]}, csrf=csrf)

    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers


@pytest.mark.proves("Authentication: Allowed addresses")
async def test_session_of_an_admin_key_only_brakes_from_other_addresses(own_world: ServiceWorld) -> None:
    world, wallet = own_world, await own_world.wallet()
    made = await _make(world, "admin", allowedAddresses=_OFFICE)
    async with _from(world, "203.0.113.5"):
        visitor = Crafted(world)
        csrf = await visitor.csrf("/dashboard/sign-in")
        signed_in = await visitor.post("/dashboard/sign-in", {"admin_key": made["key"]}, csrf=csrf)
        stolen = signed_in.cookies["agent-vault-session"]
        inside = Crafted(world, stolen)
        assert (await inside.client.get("/dashboard")).status_code == 200
        csrf = await inside.csrf()

    async with _from(world, "198.51.100.7"):
        outside = Crafted(world, stolen)
        for path in ("/dashboard", "/dashboard/developers"):
            assert (await outside.client.get(path)).status_code == 403
        vault = f"/dashboard/vaults/{wallet['wallet_id']}"
        assert (await outside.post(f"{vault}/unfreeze", csrf=csrf)).status_code == 403
        assert (await outside.post(f"{vault}/freeze", csrf=csrf)).status_code == 303

    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "frozen"
    await world.service.part(Recorder).tick()
    assert [one["address"] for one in _events(world, "key.used_outside", made["key_id"])] == ["198.51.100.7"]


@pytest.mark.proves("CreateKey(expiresAt)", "RotateKey(expiresAt)")
async def test_key_makes_and_rotates_to_none_that_outlives_it(world: ServiceWorld) -> None:
    end, later = now_ms() + 3_600_000, now_ms() + 7_200_000
    ending = await _make(world, "admin", expiresAt=iso_ms(end))
    other, path = await _make(world, "admin"), f"/v1/keys/{ending['key_id']}/rotate"
    for target, body in (
        ("/v1/keys", {"role": "admin"}),
        ("/v1/keys", {"role": "viewer", "expiresAt": iso_ms(later)}),
        (path, {"expiresAt": iso_ms(later)}),
        (f"/v1/keys/{other['key_id']}/rotate", {}),
    ):
        refused = error_of(await world.call("POST", target, body, key=ending["key"]), 400, "invalid_request")
        assert iso_ms(end) in refused["message"]

    await world.ok("POST", "/v1/keys", {"role": "admin", "expiresAt": iso_ms(end)}, key=ending["key"])
    replaced = await world.ok("POST", path, {"overlapSeconds": 60}, key=ending["key"])
    assert replaced["expires_at"] == iso_ms(end)
    error_of(await world.call("POST", "/v1/keys", {"role": "viewer"}, key=ending["key"]), 400, "invalid_request")
    renewed = await world.ok("POST", f"/v1/keys/{replaced['key_id']}/rotate", {"expiresAt": iso_ms(later)})
    assert renewed["expires_at"] == iso_ms(later)


@pytest.mark.proves("RotateKey(expiresAt, allowedAddresses)")
async def test_rotation_keeps_the_restrictions_unless_it_names_others(world: ServiceWorld) -> None:
    end, later = iso_ms(now_ms() + 3_600_000), iso_ms(now_ms() + 7_200_000)
    old = await _make(world, expiresAt=end, allowedAddresses=_OFFICE)

    same = await world.ok("POST", f"/v1/keys/{old['key_id']}/rotate", {})
    other = await world.ok(
        "POST", f"/v1/keys/{same['key_id']}/rotate", {"expiresAt": later, "allowedAddresses": ["::"]}
    )

    assert (same["expires_at"], same["allowed_addresses"]) == (end, _OFFICE)
    assert (other["expires_at"], other["allowed_addresses"]) == (later, ["::/128"])


@pytest.mark.proves(
    "PUT /v1/organization/key-restrictions",
    "action organization.restrict_keys",
    "RestrictKeys(required)",
    "GET /v1/keys(restricted)",
    "Organization(restricts_keys)",
    "RestrictedKeys(required)",
)
async def test_organisation_requires_restrictions_of_new_keys(world: ServiceWorld) -> None:
    org = await world.organisation("restricting")
    admin = world.key("admin", org=org)
    restrictions = {"expiresAt": iso_ms(now_ms() + 3_600_000), "allowedAddresses": _OFFICE}
    path = "/v1/organization/key-restrictions"
    free = await world.ok("POST", "/v1/keys", {"role": "viewer"}, key=admin)
    assert (await world.ok("GET", "/v1/organization", key=admin))["restricts_keys"] is False

    assert await world.ok("PUT", path, {"required": True}, key=admin) == {"required": True}

    assert (await world.ok("GET", "/v1/organization", key=admin))["restricts_keys"] is True
    [entry] = (await world.ok("GET", "/v1/audit-log?action=organization.restrict_keys", key=admin))["data"]
    assert entry["details"] == {"required": True}
    for lacking in restrictions:
        body = {"role": "viewer", **restrictions}
        del body[lacking]
        error_of(await world.call("POST", "/v1/keys", body, key=admin), 400, "invalid_request")
    for wide in (["0.0.0.0/0"], ["::/0"], ["203.0.113.5", "0.0.0.0/7"], ["2001:db8::/31"], ["::ffff:0:0/96"]):
        body = {"role": "viewer", **restrictions, "allowedAddresses": wide}
        error_of(await world.call("POST", "/v1/keys", body, key=admin), 400, "invalid_request")
    rotation = f"/v1/keys/{free['key_id']}/rotate"
    error_of(await world.call("POST", rotation, {}, key=admin), 400, "invalid_request")
    with pytest.raises(Exception, match="requires both"):
        world.key("viewer", org=org)
    await world.ok("POST", "/v1/keys", {"role": "viewer", **restrictions}, key=admin)
    # Existing keys work and are listed
    await world.ok("GET", "/v1/wallets", key=free["key"])
    listed = (await world.ok("GET", "/v1/keys?restricted=false", key=admin))["data"]
    assert {one["role"] for one in listed} == {"viewer", "admin"}
    assert free["key_id"] in {one["key_id"] for one in listed}
    await world.ok("POST", rotation, restrictions, key=admin)
    listed = (await world.ok("GET", "/v1/keys?restricted=false", key=admin))["data"]
    assert [one["role"] for one in listed] == ["admin"]


@pytest.mark.proves("Authentication: Last admin key")
async def test_last_admin_key_expires_only_with_an_admin_person(world: ServiceWorld) -> None:
    org = await world.organisation("ending")
    admin, end = world.key("admin", org=org), iso_ms(now_ms() + 3_600_000)
    [first] = (await world.ok("GET", "/v1/keys", key=admin))["data"]
    ending = await world.ok("POST", "/v1/keys", {"role": "admin", "expiresAt": end}, key=admin)
    path = f"/v1/keys/{first['key_id']}"

    error_of(await world.call("DELETE", path, key=admin), 422, "last_admin_key")
    error_of(await world.call("POST", f"{path}/rotate", {"expiresAt": end}, key=admin), 422, "last_admin_key")
    add_person(world, "viewer", org=org)
    error_of(await world.call("DELETE", path, key=admin), 422, "last_admin_key")
    await world.ok("GET", "/v1/wallets", key=admin)

    add_person(world, "admin", org=org)
    await world.ok("DELETE", path, key=ending["key"])


@pytest.mark.proves("event key.expiring")
async def test_end_is_announced_twice(world: ServiceWorld) -> None:
    end = now_ms() + 30 * _DAY
    made = await _make(world, expiresAt=iso_ms(end))
    short = await _make(world, expiresAt=iso_ms(now_ms() + 3_600_000))
    announced = []
    for before in (15, 14, 13, 2, 1, 0.5, 0):
        await _housekeeping(world, end - int(before * _DAY)).tick()
        announced.append(len(_events(world, "key.expiring", made["key_id"])))

    assert announced == [0, 1, 1, 1, 2, 2, 2]
    assert _events(world, "key.expiring", made["key_id"])[0]["expires_at"] == iso_ms(end)
    await _housekeeping(world, now_ms()).tick()
    assert _events(world, "key.expiring", short["key_id"]) == []


@pytest.mark.proves("event key.issued", "event key.revoked", "Key(created_by)")
async def test_keys_record_their_creator_and_are_reported(world: ServiceWorld) -> None:
    made = await _make(world, name="ops")
    creator = made["created_by"]
    rotated = await world.ok("POST", f"/v1/keys/{made['key_id']}/rotate", {"overlapSeconds": 60})
    await world.ok("DELETE", f"/v1/keys/{rotated['key_id']}")

    assert creator["type"] == "key"
    [issued], [replaced] = (_events(world, "key.issued", one["key_id"]) for one in (made, rotated))
    assert (issued["name"], issued["actor"], replaced["replaces"]) == ("ops", creator, made["key_id"])
    [revoked] = _events(world, "key.revoked", rotated["key_id"])
    assert revoked["actor"] == creator
    listed = (await world.ok("GET", "/v1/keys?limit=100"))["data"]
    assert listed[-1]["created_by"] == {"type": "system", "id": "command_line"}


@pytest.mark.proves("Authentication: Last admin key")
async def test_last_admin_key_works_from_the_callers_address(world: ServiceWorld) -> None:
    org = await world.organisation("elsewhere")
    admin = world.key("admin", org=org)
    [first] = (await world.ok("GET", "/v1/keys", key=admin))["data"]
    path, elsewhere = f"/v1/keys/{first['key_id']}", {"allowedAddresses": _OFFICE}
    await world.ok("POST", "/v1/keys", {"role": "admin", **elsewhere}, key=admin)

    error_of(await world.call("POST", f"{path}/rotate", elsewhere, key=admin), 422, "last_admin_key")
    error_of(await world.call("DELETE", path, key=admin), 422, "last_admin_key")
    end = {"expiresAt": iso_ms(now_ms() + 3_600_000)}
    error_of(await world.call("POST", f"{path}/rotate", end, key=admin), 422, "last_admin_key")

    async with _from(world, "203.0.113.5"):
        await world.ok("POST", f"{path}/rotate", {**elsewhere, "overlapSeconds": 0}, key=admin)


async def test_viewer_elsewhere_is_told_that_it_may_do_nothing(world: ServiceWorld) -> None:
    wallet, made = await world.wallet(), await _make(world, allowedAddresses=_OFFICE)

    async with _from(world, "198.51.100.7"):
        path = f"/v1/wallets/{wallet['wallet_id']}"
        refused = await world.call("PATCH", path, {"status": "frozen"}, key=made["key"])

    message = error_of(refused, 403, "insufficient_permissions")["message"]
    assert message == "The API key does not allow this address."


@pytest.mark.sqlite("runs a command on the data folder")
async def test_command_line_makes_restricted_keys(world: ServiceWorld) -> None:
    command = ["keys", "create", "--data-dir", str(world.settings.data_dir), "--org", "test", "--role", "viewer"]
    networks = [part for one in _OFFICE for part in ("--allowed-addresses", one)]

    made = CliRunner().invoke(main, [*command, *networks, "--expires-at", "2099-01-31T00:00:00Z"])

    assert made.exit_code == 0, made.output
    [key] = (await world.ok("GET", "/v1/keys?limit=1"))["data"]
    assert (key["expires_at"], key["allowed_addresses"]) == ("2099-01-31T00:00:00.000Z", _OFFICE)
    for option, wrong in (("--expires-at", "soon"), ("--allowed-addresses", "office")):
        refused = CliRunner().invoke(main, [*command, option, wrong])
        assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
        assert refused.output.startswith(f"Error: {option} ")
