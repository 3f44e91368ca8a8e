"""Scopes of idempotency keys: an agent's is its wallet's, a viewer's its own, an operator's the organisation's."""

import asyncio

import pytest
from sqlalchemy import select, update

from app.store.idempotency import table as idempotency
from tests.support.escrows import Agent, agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


async def _pay(one: Agent, to: str, key: str, amount: str = "1") -> Json:
    body = {"walletId": one.id, "to": to, "amount": amount, "currency": "USDC", "idempotencyKey": key}
    return await one.ok("POST", "/v1/payments", body)


async def _export(world: ServiceWorld, key: str, role_key: str, **fields: str) -> Json:
    body = {"format": "csv", "from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z", **fields}
    return await world.ok("POST", "/v1/transactions/export", body, headers=_key(key), key=role_key)


@pytest.mark.proves("Idempotency: An API key with the role agent")
async def test_two_wallets_with_one_key_make_one_payment_each(world: ServiceWorld) -> None:
    first, second = await agent(world), await agent(world)
    to = await world.payee()

    made = [await _pay(one, to, "order of both") for one in (first, second)]

    assert made[0]["tx_id"] != made[1]["tx_id"]
    assert [one["wallet_id"] for one in made] == [first.id, second.id]
    # Each gets its own answer again, in any order
    assert [await _pay(one, to, "order of both") for one in (second, first)] == made[::-1]
    assert await world.balance(to) == 2_000_000


@pytest.mark.proves("Idempotency: An API key with the role agent")
async def test_two_wallets_with_one_key_at_once_make_one_payment_each(world: ServiceWorld) -> None:
    agents = [await agent(world) for _ in range(4)]
    to = await world.payee()

    made = await asyncio.gather(*(_pay(one, to, "at once") for one in agents for _ in range(3)))

    assert len({one["tx_id"] for one in made}) == 4
    assert {one["wallet_id"] for one in made} == {one.id for one in agents}
    assert await world.balance(to) == 4_000_000


@pytest.mark.proves("Idempotency: Scope")
async def test_other_parameters_conflict_within_a_scope_alone(world: ServiceWorld) -> None:
    first, second = await agent(world), await agent(world)
    to = await world.payee()
    await _pay(first, to, "own")
    await _pay(second, to, "own", "2")

    for one, amount in ((first, "2"), (second, "1")):
        body = {"walletId": one.id, "to": to, "amount": amount, "currency": "USDC", "idempotencyKey": "own"}
        error_of(await one.call("POST", "/v1/payments", body), 409, "idempotency_conflict")
    assert await world.balance(to) == 3_000_000


@pytest.mark.proves("Idempotency: An API key with the role viewer")
async def test_key_used_by_a_viewer_first_delays_no_operator(world: ServiceWorld) -> None:
    wallet, viewer, operator = await world.wallet(), world.key("viewer"), world.key("operator")
    path = f"/v1/wallets/{wallet['wallet_id']}"

    async def change(method: str, at: str, body: Json, key: str) -> Json:
        await _export(world, key, viewer)
        first = await world.ok(method, at, body, headers=_key(key), key=operator)
        again = await world.call(method, at, body, headers=_key(key), key=world.keys["admin"])
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json() == first
        return first

    assert (await change("POST", f"{path}/fund", {"amount": "5"}, "fund-1"))["usdc_balance"] == "105.00"
    assert (await change("PATCH", path, {"status": "frozen"}, "freeze-1"))["status"] == "frozen"
    assert (await change("POST", "/v1/organization/pause", {"paused": True}, "pause-1"))["paused"] is True
    await world.ok("POST", "/v1/organization/pause", {"paused": False})


@pytest.mark.proves("Idempotency: An API key with the role operator or admin")
async def test_key_used_by_an_agent_first_delays_no_operator(world: ServiceWorld) -> None:
    one, operator = await agent(world), world.key("operator")
    await _pay(one, await world.payee(), "incident-7")

    frozen = await world.ok(
        "PATCH", f"/v1/wallets/{one.id}", {"status": "frozen"}, headers=_key("incident-7"), key=operator
    )

    assert frozen["status"] == "frozen"


@pytest.mark.proves(
    "Idempotency: An API key with the role viewer", "Idempotency: An API key with the role operator or admin"
)
async def test_viewers_have_keys_of_their_own_and_operators_share_them(world: ServiceWorld) -> None:
    viewers = [world.key("viewer") for _ in range(2)]
    operators = [world.key("operator"), world.keys["admin"]]

    seen = [(await _export(world, "monthly", one))["export_id"] for one in (*viewers, *operators, *viewers)]

    assert len({*seen[:3]}) == 3
    assert seen[2] == seen[3]
    assert seen[4:] == seen[:2]


@pytest.mark.proves("Idempotency: Upgrades")
@pytest.mark.parametrize("scoped", [True, False])
async def test_first_request_is_stored_where_the_version_before_looks(world: ServiceWorld, scoped: bool) -> None:
    one, to, key = await agent(world), await world.payee(), f"across-{scoped}"
    made = await _pay(one, to, key)
    mine = idempotency.c.key == key
    stored = world.service.db.read_now(lambda conn: conn.execute(select(idempotency.c.scope).where(mine)).scalar_one())
    assert stored == one.id

    if not scoped:
        # As the version before stored it
        await world.service.db.write(lambda conn: conn.execute(update(idempotency).where(mine).values(scope=None)))

    assert await _pay(one, to, key) == made
    body = {"walletId": one.id, "to": to, "amount": "9", "currency": "USDC", "idempotencyKey": key}
    error_of(await one.call("POST", "/v1/payments", body), 409, "idempotency_conflict")
    assert await world.balance(to) == 1_000_000


async def test_refused_claim_of_one_wallet_frees_no_key_of_another(world: ServiceWorld) -> None:
    first, second = await agent(world), await agent(world)
    to = await world.payee()
    made = await _pay(second, to, "freed")
    refused = {
        "walletId": first.id,
        "to": to,
        "amount": "500",
        "currency": "USDC",
        "idempotencyKey": "freed",
    }

    for _ in range(2):
        error_of(await first.call("POST", "/v1/payments", refused), 422, "wallet_insufficient_balance")

    assert await _pay(second, to, "freed") == made
    assert (await _pay(first, to, "freed"))["status"] == "confirmed"
    assert await world.balance(to) == 2_000_000


@pytest.mark.parametrize("key", [b"r\xc3\xa9gl\xc3\xa9e", b"r\xe9gl\xe9e", b"x" * 256])
async def test_key_of_other_characters_in_a_header_changes_nothing(world: ServiceWorld, key: bytes) -> None:
    wallet = await world.wallet(funds=None)
    headers = [(b"Authorization", f"Bearer {world.key('operator')}".encode()), (b"Idempotency-Key", key)]

    refused = await world.client.post(f"/v1/wallets/{wallet['wallet_id']}/fund", json={"amount": "1"}, headers=headers)

    assert "printable ASCII" in error_of(refused, 400, "invalid_request")["message"]
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"] == "0.00"
