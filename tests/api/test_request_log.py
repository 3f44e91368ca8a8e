"""The request log: what API keys asked for, and what they were answered."""

import pytest

from app.access.request_log import RequestLog
from app.core.timestamps import now_ms
from app.server.housekeeping import Housekeeping
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _logged(world: ServiceWorld, query: str) -> list[Json]:
    await world.service.part(RequestLog).tick()
    found: list[Json] = (await world.ok("GET", f"/v1/request-log?{query}"))["data"]
    return found


@pytest.mark.proves(
    "GET /v1/request-log",
    "GET /v1/request-log(keyId, status, code, limit, cursor)",
    "LoggedRequest(request_id, timestamp, key_id, key_name, method, path, status, code, duration_ms)",
)
async def test_requests_are_listed_by_key_status_and_code(world: ServiceWorld) -> None:
    made = await world.ok("POST", "/v1/keys", {"role": "viewer", "name": "Dashboard of ours"})
    mine = f"keyId={made['key_id']}"
    answer = await world.call("GET", "/v1/wallets/wal_none?x=1", key=made["key"])
    await world.call("GET", "/v1/keys", key=made["key"])
    await world.ok("GET", "/v1/wallets?limit=1", key=made["key"])
    # Those of one millisecond stand in any order.
    assert {(one["path"], one["status"], one["code"]) for one in await _logged(world, mine)} == {
        ("/v1/wallets", 200, None),
        ("/v1/keys", 403, "insufficient_permissions"),
        ("/v1/wallets/wal_none", 400, "invalid_request"),
    }
    [one] = await _logged(world, f"{mine}&status=400")
    assert (one["request_id"], one["key_name"]) == (answer.headers["request-id"], "Dashboard of ours")
    assert (one["key_id"], one["method"]) == (made["key_id"], "GET")
    assert 0 <= one["duration_ms"] < 60_000
    assert [one["path"] for one in await _logged(world, f"{mine}&code=insufficient_permissions")] == ["/v1/keys"]
    assert await _logged(world, f"{mine}&code=not_a_code") == []
    first = await world.ok("GET", f"/v1/request-log?{mine}&limit=2")
    second = await world.ok("GET", f"/v1/request-log?{mine}&limit=2&cursor={first['next_cursor']}")
    assert [len(page["data"]) for page in (first, second)] == [2, 1]
    error_of(await world.call("GET", "/v1/request-log?status=7"), 400, "invalid_request")


@pytest.mark.proves("GET /v1/request-log(walletId)", "LoggedRequest(wallet_id)")
async def test_refusals_of_a_frozen_wallet_are_found_by_it(world: ServiceWorld) -> None:
    wallet, other, payee = await world.wallet(), await world.wallet(), await world.payee()
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    for _ in range(2):
        error_of(await world.pay(wallet, payee, "1"), 422, "wallet_frozen")
    await world.pay(other, payee, "1")
    found = await _logged(world, f"walletId={wallet['wallet_id']}&code=wallet_frozen")
    assert [(one["path"], one["status"], one["wallet_id"]) for one in found] == [
        ("/v1/payments", 422, wallet["wallet_id"])
    ] * 2


async def test_log_holds_no_secret_and_no_other_organisations_requests(own_world: ServiceWorld) -> None:
    world = own_world
    await world.call("GET", "/v1/wallets", key="avk_test_wrong")
    await world.call("GET", "/v1/wallets?tag=private")
    theirs = world.key("admin", org=await world.organisation("other"))
    await world.ok("GET", "/v1/organization", key=theirs)
    found = await _logged(world, "limit=100")
    assert "/v1/organization" not in {one["path"] for one in found}
    assert "private" not in str(found)
    assert world.keys["admin"] not in str(found)
    assert [one["path"] for one in (await world.ok("GET", "/v1/request-log", key=theirs))["data"]] == [
        "/v1/organization"
    ]


@pytest.mark.proves("Limits: Request log")
async def test_log_keeps_a_day_and_the_newest(own_world: ServiceWorld) -> None:
    world = own_world
    for _ in range(5):
        await world.ok("GET", "/v1/organization")
    assert len(await _logged(world, "")) == 5

    def rounds(requests: int, ahead: float) -> Housekeeping:
        return Housekeeping(
            world.service.db,
            interval=60,
            days=90,
            requests=requests,
            chain_clock=now_ms,
            clock=lambda: now_ms() / 1000 + ahead,
        )

    await rounds(100, 86_300).tick()
    assert len(await _logged(world, "")) == 6
    await rounds(3, 0).tick()
    # The request for the log itself comes on top.
    assert len(await _logged(world, "")) <= 4
    await rounds(100, 86_401).tick()
    assert len(await _logged(world, "")) <= 1


async def test_request_is_written_after_its_answer_and_kept_at_the_stop(own_world: ServiceWorld) -> None:
    world = own_world
    await world.service.part(RequestLog).tick()
    await world.ok("GET", "/v1/organization")
    await world.restart()
    assert "/v1/organization" in {one["path"] for one in (await world.ok("GET", "/v1/request-log"))["data"]}
    await world.restart(request_log_size=0)
    await world.ok("GET", "/v1/wallets")
    await world.service.part(RequestLog).tick()
    assert "/v1/wallets" not in {one["path"] for one in (await world.ok("GET", "/v1/request-log"))["data"]}
