"""Who may do what: API keys, roles and session tokens."""

import asyncio
from typing import Any

import pytest
from solders.keypair import Keypair

from app.access.auth import encode_token
from app.access.key_format import generate as generate_key
from app.access.keyring import KeyRing, system
from app.core.actors import Role
from app.store.keys import api_keys
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("error authentication_failed", "Authentication: API key")
@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": f"Bearer {generate_key(live=False)}"},
        {"Authorization": f"Bearer avk_test_{'x' * 36}"},
        {"Authorization": "Bearer avk_test_äöü"},
    ],
)
async def test_missing_or_invalid_key_is_refused(world: ServiceWorld, header: dict[str, str]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in header.items()]
    response = await world.client.get("/v1/wallets", headers=encoded)

    error = error_of(response, 401, "authentication_failed")

    assert response.headers["www-authenticate"] == "Bearer"
    key = header.get("Authorization", "").removeprefix("Bearer").strip()
    assert not key or key not in str(error)


@pytest.mark.proves("Authentication: Headers given twice")
@pytest.mark.parametrize("name", ["Authorization", "Session-Token", "Idempotency-Key"])
async def test_header_that_must_be_one_is_refused_twice(world: ServiceWorld, name: str) -> None:
    key = ("Authorization", f"Bearer {world.keys['admin']}")
    twice = [key, key] if name == "Authorization" else [key, (name, "avs_x"), (name, "avs_x")]

    error = error_of(await world.client.get("/v1/wallets", headers=twice), 400, "invalid_request")

    assert error["message"] == f"The request repeats the header {name}. Send it once."


@pytest.mark.proves("Authentication: Keys at rest")
async def test_key_is_not_stored(world: ServiceWorld) -> None:
    folder = world.service.settings.data_dir
    stored = b"".join(file.read_bytes() for file in folder.rglob("*.db*"))

    assert world.keys["admin"].encode() not in stored


async def test_revoked_key_stops_working(world: ServiceWorld) -> None:
    key = world.key("viewer")
    await world.ok("GET", "/v1/wallets", key=key)
    [found] = [
        one
        for one in world.service.db.read_now(lambda conn: api_keys(conn, world.org))
        if one.hint and key.endswith(one.hint)
    ]

    ring = world.service.part(KeyRing)
    await world.service.db.write(lambda conn: ring.revoke(conn, system(world.org, "test"), found.key_id))

    async with asyncio.timeout(world.settings.key_cache_seconds + 2):
        while (await world.call("GET", "/v1/wallets", key=key)).status_code == 200:  # noqa: ASYNC110 - asks over HTTP
            await asyncio.sleep(0.05)
    error_of(await world.call("GET", "/v1/wallets", key=key), 401, "authentication_failed")


_BODIES: dict[str, dict[str, Any]] = {
    "create_policy": {"name": "x"},
    "create_wallet": {"agentId": "x", "label": "x", "policyId": "pol_moderate"},
    "pay": {"to": "x", "amount": "1", "currency": "USDC"},
    "simulate": {"to": "x", "amount": "1"},
    "fund": {"amount": "1"},
    "update": {"label": "x"},
    "recipient": {"category": "nft"},
    "limit": {"solPerDay": None},
    "pause": {"paused": True},
    "unpause": {"paused": False},
    "signed": {"transaction": "AAAA"},
}
_PERMISSIONS: list[tuple[str, str, str | None, set[Role]]] = [
    ("POST", "/v1/policies", "create_policy", {"admin"}),
    ("GET", "/v1/policies", None, {"viewer", "operator", "admin"}),
    ("GET", "/v1/policies/pol_moderate", None, {"viewer", "operator", "admin"}),
    ("POST", "/v1/wallets", "create_wallet", {"operator", "admin"}),
    ("GET", "/v1/wallets", None, {"viewer", "agent", "operator", "admin"}),
    ("GET", "/v1/wallets/{w}", None, {"viewer", "agent", "operator", "admin"}),
    ("PATCH", "/v1/wallets/{w}", "update", {"operator", "admin"}),
    ("DELETE", "/v1/wallets/{w}", None, {"operator", "admin"}),
    ("POST", "/v1/wallets/{w}/fund", "fund", {"operator", "admin"}),
    ("POST", "/v1/wallets/{w}/withdraw", "fund", {"operator", "admin"}),
    ("POST", "/v1/wallets/{w}/forget-recipient", None, {"operator", "admin"}),
    ("POST", "/v1/wallets/{w}/rotate-token", None, {"agent", "operator", "admin"}),
    ("POST", "/v1/wallets/{w}/pay", "pay", {"agent", "operator", "admin"}),
    ("POST", "/v1/payments", "pay", {"agent", "operator", "admin"}),
    ("POST", "/v1/payments/simulate", "simulate", {"viewer", "agent", "operator", "admin"}),
    ("PATCH", "/v1/organization", "limit", {"admin"}),
    ("POST", "/v1/organization/pause", "pause", {"operator", "admin"}),
    ("POST", "/v1/organization/pause", "unpause", {"admin"}),
    ("GET", "/v1/transactions", None, {"viewer", "agent", "operator", "admin"}),
    ("GET", "/v1/insights/spending?groupBy=day", None, {"viewer", "operator", "admin"}),
    ("GET", "/v1/events", None, {"viewer", "agent", "operator", "admin"}),
    ("GET", "/v1/signed-transactions", None, {"admin"}),
    ("GET", "/v1/request-log", None, {"admin"}),
    ("GET", "/v1/transactions/exports", None, {"viewer", "agent", "operator", "admin"}),
    ("POST", "/v1/signed-transactions", "signed", {"admin"}),
    ("DELETE", "/v1/signed-transactions/tx_unknown", None, {"admin"}),
    ("PUT", "/v1/recipients/example.com", "recipient", {"operator", "admin"}),
    ("GET", "/v1/organization", None, {"viewer", "operator", "admin"}),
    ("GET", "/v1/recipients/example.com", None, {"viewer", "agent", "operator", "admin"}),
]


@pytest.mark.proves("role viewer", "role operator", "role admin", "error insufficient_permissions")
async def test_each_role_may_do_what_it_says_and_nothing_else(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="1")
    keys = {
        "viewer": world.key("viewer"),
        "agent": world.key("agent", wallet["wallet_id"]),
        "operator": world.key("operator"),
        "admin": world.keys["admin"],
    }

    for method, path, body, roles in _PERMISSIONS:
        for role, key in keys.items():
            content = dict(_BODIES[body]) if body else None
            if path.startswith("/v1/payments") and content:
                content["walletId"] = wallet["wallet_id"]
            if content and "agentId" in content:
                content["agentId"] = f"role-{role}"
            response = await world.call(method, path.format(w=wallet["wallet_id"]), content, key=key)
            refused = response.json().get("error", {}).get("code") == "insufficient_permissions"
            assert refused == (role not in roles), (method, path, role, response.text)
            assert refused == (response.status_code == 403)


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("POST", "/v1/payments", "admin, agent or operator"),
        ("POST", "/v1/wallets", "admin or operator"),
        ("GET", "/v1/keys", "admin"),
    ],
)
async def test_key_of_another_role_is_told_which_roles_may(
    world: ServiceWorld, method: str, path: str, named: str
) -> None:
    response = await world.call(method, path, key=world.key("viewer"))

    error = error_of(response, 403, "insufficient_permissions")

    assert error["message"] == f"This operation requires an API key with the role {named}."


@pytest.mark.proves("role agent", "error insufficient_permissions")
async def test_agent_sees_and_moves_its_own_wallet_only(world: ServiceWorld) -> None:
    own, other, to = await world.wallet(), await world.wallet(), await world.payee()
    session = await world.session(own)
    agent = world.key("agent", own["wallet_id"])
    theirs = (await world.pay(other, to, "1")).json()

    assert (await world.pay(own, to, "1", session=session, key=agent)).json()["status"] == "confirmed"
    error_of(await world.pay(other, to, "1", session=session, key=agent), 403, "insufficient_permissions")
    refused = await world.call("GET", f"/v1/wallets/{other['wallet_id']}", key=agent)
    error_of(refused, 403, "insufficient_permissions")
    refused = await world.call("GET", f"/v1/transactions?walletId={other['wallet_id']}", key=agent)
    error_of(refused, 403, "insufficient_permissions")
    error_of(await world.call("GET", f"/v1/payments/{theirs['tx_id']}", key=agent), 404, "transaction_not_found")

    assert [one["wallet_id"] for one in (await world.ok("GET", "/v1/wallets", key=agent))["data"]] == [own["wallet_id"]]
    for path in ("/v1/transactions", "/v1/events"):
        rows = (await world.ok("GET", path, key=agent))["data"]
        assert {one["wallet_id"] for one in rows} == {own["wallet_id"]}


@pytest.mark.proves("role agent", "error session_token_invalid", "Authentication: Session token")
async def test_agent_must_send_its_session_token(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    agent = world.key("agent", wallet["wallet_id"])

    error_of(await world.pay(wallet, to, "1", key=agent), 401, "session_token_invalid")


@pytest.mark.proves(
    "POST /v1/wallets/{wallet_id}/rotate-token", "Authentication: Rotation", "SessionToken(session_token)"
)
async def test_rotated_token_ends_the_old_one(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"
    agent = world.key("agent", wallet["wallet_id"])
    first = await world.ok("POST", path, {"ttlSeconds": 2592000})
    own = {"Session-Token": first["session_token"]}
    second = await world.ok("POST", path, {"ttlSeconds": 60}, key=agent, headers=own)
    assert first["session_token"] != second["session_token"]
    assert second["expires_at"] < first["expires_at"]

    error_of(await world.pay(wallet, to, "1", session=first["session_token"], key=agent), 401, "session_token_invalid")

    paid = await world.pay(wallet, to, "1", session=second["session_token"], key=agent)
    assert paid.json()["status"] == "confirmed"


# From a seed, so that the tests have the same names in every run.
_OTHER_TOKEN = encode_token(Keypair.from_seed(bytes(32)))


@pytest.mark.proves("error session_token_invalid", "Authentication: Session token")
@pytest.mark.parametrize("token", ["avs_", "nonsense", "avs_0OIl", _OTHER_TOKEN, _OTHER_TOKEN[4:], "avs_" + "1" * 99])
async def test_token_that_is_not_the_wallets_is_refused_whoever_sends_it(world: ServiceWorld, token: str) -> None:
    wallet, to = await world.wallet(), await world.payee()
    await world.session(wallet)

    error = error_of(await world.pay(wallet, to, "1", session=token), 401, "session_token_invalid")

    assert token == "avs_" or token not in str(error)


@pytest.mark.proves("error session_token_expired", "RotateToken(ttlSeconds)", "SessionToken(expires_at)")
async def test_expired_token_says_so(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"
    token = (await world.ok("POST", path, {"ttlSeconds": 60}))["session_token"]
    await world.later(61)

    error_of(await world.pay(wallet, to, "1", session=token), 401, "session_token_expired")


async def test_token_that_expired_on_the_chain_is_refused_there(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"
    token = (await world.ok("POST", path, {"ttlSeconds": 60}))["session_token"]
    world.clock.ahead += 61

    error_of(await world.pay(wallet, to, "1", session=token), 401, "session_token_expired")


@pytest.mark.proves("Limits: Lifetime of a session token", "RotateToken(ttlSeconds)")
@pytest.mark.parametrize("ttl", [59, 2_592_001, 0, -1, "3600", 1.5, True, None])
async def test_lifetime_out_of_bounds_is_refused(world: ServiceWorld, ttl: object) -> None:
    wallet = await world.wallet(funds=None)

    response = await world.call("POST", f"/v1/wallets/{wallet['wallet_id']}/rotate-token", {"ttlSeconds": ttl})

    error_of(response, 400, "invalid_request")
