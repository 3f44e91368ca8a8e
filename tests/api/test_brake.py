"""The brake: a freeze, a pause and a revoked session overtake the payments that wait; one run, with `--full` ten."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.core.actors import Role
from app.escrows.service import LOCK
from tests.support.http import PATIENCE, listening
from tests.support.sends import Sends
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PAYMENTS = 150
_VAULTS = 20
#: Seconds that reading an account takes in these tests: a freeze's own transaction comes as late as on a slow chain.
_SLOW = 0.3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    """A service that lets 200 payments of a wallet wait."""
    async with ServiceWorld(tmp_path_factory.mktemp("crowd"), max_waiting_payments=200) as opened:
        yield opened


def _runs(request: pytest.FixtureRequest) -> int:
    return 10 if request.config.getoption("--full") else 1


def _path(wallet: Json) -> str:
    return f"/v1/wallets/{wallet['wallet_id']}"


def _slow_accounts(world: ServiceWorld) -> None:
    world.line.hold = lambda method: asyncio.sleep(_SLOW) if method == "getMultipleAccounts" else None


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the chain's side has no signal
            await asyncio.sleep(0)


def _waiting(world: ServiceWorld) -> int:
    """Return how many payments and escrow creations wait for a lock."""
    return world.service.locks._waiting.total()


async def _until_sent(sends: Sends, count: int) -> None:
    await _until(lambda: len(sends.raw) >= count)


@pytest.mark.proves("Limits: Freeze or pause")
async def test_freeze_overtakes_the_payments_that_wait(crowd: ServiceWorld, request: pytest.FixtureRequest) -> None:
    world, to = crowd, await crowd.payee()
    for _ in range(_runs(request)):
        wallet = await world.wallet(funds="1000")
        token, agent = await world.session(wallet), world.key("agent", wallet["wallet_id"])
        before, sends = await world.balance(to), Sends(world)
        _slow_accounts(world)
        tasks = [asyncio.create_task(world.pay(wallet, to, "1", session=token, key=agent)) for _ in range(_PAYMENTS)]
        await _until_sent(sends, 3)

        asked = len(sends.raw)
        frozen = await world.call("PATCH", _path(wallet), {"status": "frozen"})
        answers = await asyncio.gather(*tasks)
        world.line.hold = lambda _method: None

        assert (frozen.status_code, frozen.json()["status"]) == (200, "frozen")
        assert sends.payments(after=asked)[wallet["wallet_id"]] <= 1
        paid = sum(answer.status_code == 200 for answer in answers)
        assert await world.balance(to) - before == paid * 1_000_000 == sends.payments()[wallet["wallet_id"]] * 1_000_000
        for answer in answers:
            if answer.status_code != 200:
                error_of(answer, 422, "wallet_frozen")
        assert world.service.brake.without_request() == []


@pytest.mark.proves("DELETE /v1/keys/{key_id}")
async def test_revoked_key_makes_none_of_the_payments_that_wait(crowd: ServiceWorld) -> None:
    world, to = crowd, await crowd.payee()
    wallet = await world.wallet(funds="1000")
    token, agent = await world.session(wallet), world.key("agent", wallet["wallet_id"])
    [key_id] = [
        one["key_id"] for one in (await world.ok("GET", "/v1/keys?limit=100"))["data"] if agent.endswith(one["hint"])
    ]
    sends = Sends(world)
    tasks = [asyncio.create_task(world.pay(wallet, to, "1", session=token, key=agent)) for _ in range(_PAYMENTS)]
    await _until_sent(sends, 3)

    revoked = await world.call("DELETE", f"/v1/keys/{key_id}")
    done = len(sends.raw)
    answers = await asyncio.gather(*tasks)

    assert revoked.status_code == 200, revoked.text
    assert sends.payments(after=done)[wallet["wallet_id"]] <= 1
    paid = sum(answer.status_code == 200 for answer in answers)
    assert await world.balance(to) == paid * 1_000_000
    for answer in answers:
        if answer.status_code != 200:
            error_of(answer, 401, "authentication_failed")
    # Another key of the wallet pays.
    assert (
        await world.pay(wallet, to, "1", session=token, key=world.key("agent", wallet["wallet_id"]))
    ).status_code == 200


@pytest.mark.proves("POST /v1/organization/pause", "Limits: Freeze or pause")
async def test_pause_overtakes_the_payments_of_every_vault(crowd: ServiceWorld, request: pytest.FixtureRequest) -> None:
    world, to = crowd, await crowd.payee()
    wallets = [await world.wallet(funds="1000") for _ in range(_VAULTS)]
    for _ in range(_runs(request)):
        sends = Sends(world)
        _slow_accounts(world)
        tasks = [asyncio.create_task(world.pay(wallet, to, "1")) for _ in range(8) for wallet in wallets]
        await _until_sent(sends, 3)

        asked = len(sends.raw)
        paused = await world.call("POST", "/v1/organization/pause", {"paused": True}, key=world.key("operator"))
        answers = await asyncio.gather(*tasks)
        world.line.hold = lambda _method: None

        assert (paused.status_code, paused.json()) == (200, {"paused": True})
        late = sends.payments(after=asked)
        assert all(count <= 1 for count in late.values()), late
        for answer in answers:
            if answer.status_code != 200:
                error_of(answer, 422, "org_paused")
        assert (await world.ok("POST", "/v1/organization/pause", {"paused": False})) == {"paused": False}
    assert (await world.pay(wallets[0], to, "1")).status_code == 200


async def test_abandoned_payments_are_not_made(crowd: ServiceWorld, request: pytest.FixtureRequest) -> None:
    world, to = crowd, await crowd.payee()
    for _ in range(_runs(request)):
        wallet, sends = await world.wallet(funds="1000"), Sends(world)
        body = json.dumps({"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"})
        head = f"POST /v1/payments HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {world.keys['admin']}\r\n"
        text = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        async with listening(world, PATIENCE) as port:
            connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_PAYMENTS)]
            for _, writer in connections:
                writer.write(text.encode())
            await _until_sent(sends, 3)
            for _, writer in connections:
                writer.transport.abort()
            abandoned = len(sends.raw)

            # The lock is given in the order of the requests: when this one is answered, the others had their turn.
            assert (await world.pay(wallet, to, "1")).status_code == 200

        # This one, the one on its way, and those sent before the server saw the connections end.
        assert sends.payments(after=abandoned)[wallet["wallet_id"]] <= 3


@pytest.mark.proves("Limits: Payments, escrows and allowance grants of a wallet that wait to be sent")
async def test_payments_beyond_the_waiting_room_are_refused(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    go = asyncio.Event()
    world.line.hold = lambda method: go.wait() if method == "simulateTransaction" else None
    most = world.settings.max_waiting_payments
    first = [asyncio.create_task(world.pay(wallet, to, "0.1")) for _ in range(1 + most)]
    await _until(lambda: _waiting(world) == most)

    refused = await world.pay(wallet, to, "0.1")

    error_of(refused, 429, "rate_limited")
    assert int(refused.headers["retry-after"]) > 0
    go.set()
    world.line.hold = lambda _method: None
    assert [answer.status_code for answer in await asyncio.gather(*first)] == [200] * (1 + most)
    assert most == 64
    assert (await world.pay(wallet, to, "0.1")).status_code == 200


@pytest.mark.proves("Limits: Payments, escrows and allowance grants of a wallet that wait to be sent")
async def test_escrows_beyond_the_waiting_room_are_refused(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path, max_waiting_payments=2) as world:
        wallet, other = await world.wallet(), await world.wallet()
        go = asyncio.Event()
        world.line.hold = lambda method: go.wait() if method == "simulateTransaction" else None
        body: Json = {
            "fromWallet": wallet["wallet_id"],
            "toWallet": other["wallet_id"],
            "amount": "1",
            "currency": "USDC",
            "taskDescription": "work",
            "timeoutSeconds": 3600,
            "proofTypes": ["output_hash"],
        }
        first = [asyncio.create_task(world.call("POST", "/v1/payments/a2a", body)) for _ in range(3)]
        await _until(lambda: _waiting(world) == 2)

        error_of(await world.call("POST", "/v1/payments/a2a", body), 429, "rate_limited")

        frozen = asyncio.create_task(world.call("PATCH", _path(wallet), {"status": "frozen"}))
        await _until(
            lambda: world.service.brake.stops(LOCK, world.org, wallet["wallet_id"], attested=False) is not None
        )
        go.set()
        assert (await frozen).status_code == 200
        for answer in await asyncio.gather(*first):
            error_of(answer, 422, "wallet_frozen")


async def test_freeze_of_a_frozen_wallet_succeeds_and_sends_nothing(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    sends = Sends(world)

    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen", "label": "Twice"}))["label"] == "Twice"

    assert sends.raw == []


async def test_freeze_works_while_the_indexer_is_behind(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet()
    world.line.alter = {"getSignaturesForAddress": [], "getTransaction": None}.get

    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen"}))["status"] == "frozen"

    world.line.mend()
    await world.catch_up()
    assert (await world.ok("GET", _path(wallet)))["status"] == "frozen"


@pytest.mark.proves("Authentication: Rotation")
async def test_rotation_by_an_operator_overtakes_payments_of_the_old_token(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    token, agent = await world.session(wallet), world.key("agent", wallet["wallet_id"])
    sends, holds = Sends(world), {name: asyncio.Event() for name in ("simulateTransaction", "sendTransaction")}
    held: list[str] = []

    def hold(method: str) -> Any:
        # The first simulation is that of the payment that has the lock, the first transaction is the rotation.
        if method not in holds or method in held:
            return None
        held.append(method)
        return holds[method].wait()

    world.line.hold = hold
    tasks = [asyncio.create_task(world.pay(wallet, to, "1", session=token, key=agent)) for _ in range(10)]
    await _until(lambda: "simulateTransaction" in held)
    rotation = asyncio.create_task(world.call("POST", f"{_path(wallet)}/rotate-token", {}, key=world.key("operator")))
    await _until(lambda: "sendTransaction" in held)
    holds["simulateTransaction"].set()
    await asyncio.gather(*tasks)
    holds["sendTransaction"].set()

    assert (await rotation).status_code == 200
    for answer in await asyncio.gather(*tasks):
        error_of(answer, 401, "session_token_invalid")
    assert not sends.payments()
    fresh = (await rotation).json()["session_token"]
    assert (await world.pay(wallet, to, "1", session=fresh, key=agent)).status_code == 200


@pytest.mark.proves("POST /v1/organization/pause", "PauseOrganisation(paused)")
async def test_operator_pauses_and_only_an_admin_unpauses(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    operator, path = world.key("operator"), "/v1/organization/pause"

    assert await world.ok("POST", path, {"paused": True}, key=operator) == {"paused": True}
    assert await world.ok("POST", path, {"paused": True}, key=operator) == {"paused": True}
    error_of(await world.pay(wallet, to, "1"), 422, "org_paused")
    await world.ok("POST", f"{_path(wallet)}/withdraw", {"amount": "1"})
    error_of(await world.call("POST", path, {"paused": False}, key=operator), 403, "insufficient_permissions")
    assert await world.ok("POST", path, {"paused": False}) == {"paused": False}
    assert await world.ok("POST", path, {"paused": False}) == {"paused": False}

    assert (await world.pay(wallet, to, "1")).status_code == 200
    for body in ({}, {"paused": "true"}, {"paused": None}, {"paused": True, "why": "x"}):
        error_of(await world.call("POST", path, body), 400, "invalid_request")
    viewer, agent = world.key("viewer"), world.key("agent", wallet["wallet_id"])
    for key in (viewer, agent):
        error_of(await world.call("POST", path, {"paused": True}, key=key), 403, "insufficient_permissions")


@pytest.mark.parametrize("flooding", ["the same key", "another organisation"])
async def test_freeze_and_pause_overtake_a_flood_of_other_requests(own_world: ServiceWorld, flooding: str) -> None:
    world, wallet = own_world, await own_world.wallet()
    key = world.keys["admin"]
    if flooding != "the same key":
        key = world.key("viewer", org=await world.organisation("other"))
    paths = ("/v1/wallets?limit=100", "/v1/policies", "/v1/events?limit=100", "/docs/api", "/openapi.json")
    for method, path, body in (
        ("PATCH", _path(wallet), {"status": "frozen"}),
        ("POST", "/v1/organization/pause", {"paused": True}),
    ):
        flood = [asyncio.create_task(world.call("GET", one, key=key)) for one in paths * 80]

        answer = await world.call(method, path, body)

        answered = sum(one.done() for one in flood)
        assert answer.status_code == 200
        assert answered < 100, path
        assert {one.status_code for one in await asyncio.gather(*flood)} == {200}


@pytest.mark.parametrize(
    ("requests", "role"),
    [
        pytest.param([("GET", path) for path in ("/healthz", "/dashboard/sign-in", "/v1/wallets")], None, id="reads"),
        pytest.param([("POST", "/v1/organization/pause")], None, id="pauses without a key"),
        pytest.param([("POST", "/v1/organization/pause")], "viewer", id="refused pauses"),
    ],
)
async def test_freeze_overtakes_a_flood_of_unadmitted_requests(
    own_world: ServiceWorld, requests: list[tuple[str, str]], role: Role | None
) -> None:
    world, wallet, answered, flooded, frozen = own_world, await own_world.wallet(), 0, asyncio.Event(), asyncio.Event()
    key = "avk_test_unknown" if role is None else world.key(role)

    async def connection() -> None:
        nonlocal answered
        while not frozen.is_set():
            for one in requests:
                await world.call(*one, key=key)
                answered += 1
                if answered > 100:
                    flooded.set()
                await asyncio.sleep(0)  # as a connection waits for its client

    flood = [asyncio.create_task(connection()) for _ in range(16)]
    await flooded.wait()
    before = answered
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    during = answered - before
    frozen.set()
    await asyncio.gather(*flood)

    assert during < 100


async def test_requests_of_an_organisation_do_not_wait_for_the_crowd_of_another(own_world: ServiceWorld) -> None:
    world = own_world
    crowd = world.key("viewer", org=await world.organisation("other"))
    await world.call("GET", "/v1/wallets", key=crowd)
    flood = [asyncio.create_task(world.call("GET", "/v1/wallets?limit=100", key=crowd)) for _ in range(300)]

    for _ in range(10):
        await world.ok("GET", "/v1/wallets")

    assert sum(one.done() for one in flood) < 150
    await asyncio.gather(*flood)
