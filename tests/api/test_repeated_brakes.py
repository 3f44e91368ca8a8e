"""A freeze or pause repeated under its idempotency key brakes again if its first answer is no longer true."""

import httpx
import pytest

from app.core.timestamps import iso_ms, now_ms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_EVENT = "/v1/events?event=alert.brake_repeated"


async def _set(world: ServiceWorld, wallet: Json, body: Json, key: str | None = None) -> httpx.Response:
    headers = None if key is None else {"Idempotency-Key": key}
    answer = await world.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def _alerts(world: ServiceWorld, wallet: Json) -> list[Json]:
    return list((await world.ok("GET", f"{_EVENT}&walletId={wallet['wallet_id']}"))["data"])


@pytest.mark.proves("event alert.brake_repeated", "Idempotency: Repeated brake")
async def test_repeated_freeze_of_an_unfrozen_wallet_freezes_it_again(world: ServiceWorld) -> None:
    wallet, to, began = await world.wallet(), await world.payee(), now_ms()
    first = await _set(world, wallet, {"status": "frozen"}, "brake")
    await _set(world, wallet, {"status": "active"})

    again = await _set(world, wallet, {"status": "frozen"}, "brake")

    assert (again.json()["status"], again.headers["idempotent-replayed"]) == ("frozen", "false")
    assert "idempotent-replayed" not in first.headers
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    [alert] = await _alerts(world, wallet)
    assert (alert["severity"], alert["brake"], alert["wallet_id"]) == ("critical", "freeze", wallet["wallet_id"])
    assert iso_ms(began) <= alert["first_called_at"] <= alert["timestamp"]


@pytest.mark.proves("Idempotency: Repeated brake")
async def test_repeated_freeze_of_a_frozen_wallet_gets_the_first_answer(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    first = await _set(world, wallet, {"status": "frozen"}, "still")
    await _set(world, wallet, {"label": "Other"})

    again = await _set(world, wallet, {"status": "frozen"}, "still")

    assert (again.json(), again.headers["idempotent-replayed"]) == (first.json(), "true")
    assert await _alerts(world, wallet) == []


@pytest.mark.proves("Idempotency: Repeated brake")
async def test_repeated_freeze_applies_no_other_field_again(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    body = {"status": "frozen", "policyId": "pol_locked", "label": "Stopped"}
    await _set(world, wallet, body, "mixed")
    await _set(world, wallet, {"status": "active", "policyId": "pol_moderate", "label": "Working"})

    again = await _set(world, wallet, body, "mixed")

    shown = again.json()
    assert (shown["status"], shown["policy"]["policy_id"], shown["label"]) == ("frozen", "pol_moderate", "Working")
    assert again.headers["idempotent-replayed"] == "false"
    assert len(await _alerts(world, wallet)) == 1


async def test_repeated_unfreeze_stays_answered_by_the_first(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    await _set(world, wallet, {"status": "frozen"})
    first = await _set(world, wallet, {"status": "active"}, "lift")
    await _set(world, wallet, {"status": "frozen"})

    again = await _set(world, wallet, {"status": "active"}, "lift")

    assert (again.json(), again.headers["idempotent-replayed"]) == (first.json(), "true")
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "frozen"


@pytest.mark.proves("event alert.brake_repeated", "Idempotency: Repeated brake")
async def test_repeated_pause_pauses_again(own_world: ServiceWorld) -> None:
    world, key = own_world, {"Idempotency-Key": "pause"}
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("POST", "/v1/organization/pause", {"paused": True}, headers=key)
    kept = await world.call("POST", "/v1/organization/pause", {"paused": True}, headers=key)
    assert kept.headers["idempotent-replayed"] == "true"
    await world.ok("POST", "/v1/organization/pause", {"paused": False})

    again = await world.call("POST", "/v1/organization/pause", {"paused": True}, headers=key)

    assert (again.json(), again.headers["idempotent-replayed"]) == ({"paused": True}, "false")
    error_of(await world.pay(wallet, to, "1"), 422, "org_paused")
    [alert] = (await world.ok("GET", _EVENT))["data"]
    assert (alert["brake"], alert["wallet_id"], alert["severity"]) == ("pause", None, "critical")


@pytest.mark.proves("Idempotency: Repeated brake")
async def test_repeated_freeze_without_a_chain_brakes_and_answers_503(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await _set(world, wallet, {"status": "frozen"}, "dark")
    await _set(world, wallet, {"status": "active"})
    world.line.lose_requests = lambda _method: True

    path = f"/v1/wallets/{wallet['wallet_id']}"
    answer = await world.call("PATCH", path, {"status": "frozen"}, headers={"Idempotency-Key": "dark"})

    error_of(answer, 503, "chain_unavailable")
    world.line.mend()
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")


@pytest.mark.proves("Idempotency: Repeated brake")
async def test_freeze_without_an_answer_freezes_again_when_repeated(own_world: ServiceWorld) -> None:
    """The first run's transaction landed, but its answer was lost, and the freeze was lifted."""
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.2)
    world.line.lose_answers = lambda method: method == "sendTransaction"
    path, key = f"/v1/wallets/{wallet['wallet_id']}", {"Idempotency-Key": "lost"}
    error_of(await world.call("PATCH", path, {"status": "frozen"}, headers=key), 503, "chain_unavailable")
    world.line.mend()
    await world.restart(confirm_timeout=10.0)
    await world.catch_up()
    await _set(world, wallet, {"status": "active"})

    assert (await world.call("PATCH", path, {"status": "frozen"}, headers=key)).status_code == 200

    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
