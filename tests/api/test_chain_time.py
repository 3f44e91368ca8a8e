"""Sessions, escrows, approvals and expiries go by the chain's clock, also when the host's is hours off."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.core.timestamps import iso, parse_iso_ms
from app.keeper.keeper import Keeper
from tests.support.escrows import A2A, agent, of, terms
from tests.support.keeper import calls_of
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HOURS = 5 * 3600
_DAY = 24 * 3600
#: Seconds that a step may take.
_SLACK = 20


@pytest_asyncio.fixture(loop_scope="module", name="skewed", params=[-_HOURS, _HOURS], ids=["host ahead", "host behind"])
async def _skewed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    """A service whose host's clock is hours ahead of the chain's, or behind it."""
    world = ServiceWorld(tmp_path)
    world.clock.ahead = request.param
    async with world:
        assert abs(world.service.clock.now() - time.time() - request.param) < _SLACK
        yield world


def _left(world: ServiceWorld, shown: str) -> float:
    """Seconds from the chain's now to a moment that an answer shows."""
    return parse_iso_ms(shown) / 1000 - world.clock()


async def _rotate(world: ServiceWorld, wallet: Json, **options: object) -> Json:
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"
    return await world.ok("POST", path, {"ttlSeconds": 600}, **options)


@pytest.mark.proves("SessionToken(expires_at)")
async def test_session_ends_by_the_chains_clock(skewed: ServiceWorld) -> None:
    world = skewed
    wallet, to = await world.wallet(), await world.payee()
    key = world.key("agent", wallet["wallet_id"])

    granted = await _rotate(world, wallet)
    assert 600 - _SLACK < _left(world, granted["expires_at"]) <= 601
    paid = await world.pay(wallet, to, "1", key=key, session=granted["session_token"])
    assert paid.json()["status"] == "confirmed", paid.text
    assert abs(_left(world, paid.json()["timestamp"])) < _SLACK
    # The agent's own rotation ends with the operator's grant, by the same clock.
    headers = {"Session-Token": granted["session_token"]}
    renewed = await _rotate(world, wallet, key=key, headers=headers)
    assert renewed["expires_at"] == granted["expires_at"]

    await world.later(601)

    late = await world.pay(wallet, to, "1", key=key, session=renewed["session_token"])
    error_of(late, 401, "session_token_expired")
    path, headers = f"/v1/wallets/{wallet['wallet_id']}/rotate-token", {"Session-Token": renewed["session_token"]}
    error_of(await world.call("POST", path, {}, key=key, headers=headers), 401, "session_token_expired")


@pytest.mark.proves("Escrow(expires_at, created_at)")
async def test_escrow_shows_the_chains_deadline(skewed: ServiceWorld) -> None:
    world = skewed
    paying, receiving = await agent(world), await agent(world)
    await world.restart(confirm_timeout=0.3)
    world.line.lose_answers = lambda method: method in {"getSignatureStatuses", "getSignaturesForAddress"}

    # Given one whose confirmation does not arrive
    sent = await paying.call("POST", A2A, terms(paying, receiving, timeoutSeconds=60))
    world.line.mend()
    await world.catch_up()
    assert sent.status_code in {200, 503}, sent.text
    [row] = (await world.ok("GET", A2A))["data"]
    assert 60 - _SLACK < _left(world, row["expires_at"]) <= 62
    assert abs(_left(world, row["created_at"])) < _SLACK

    # When its time is over
    assert (await world.ok("GET", of(row)))["status"] == "locked"
    await world.later(62)
    late = await receiving.call("POST", of(row, "dispute"), {"reason": "late"})
    error_of(late, 422, "escrow_expired")


@pytest.mark.proves("Escrow(expires_at, created_at)")
async def test_pending_escrow_shows_the_chains_deadline(skewed: ServiceWorld) -> None:
    world = skewed
    paying, receiving = await agent(world), await agent(world)
    world.line.lose_requests = lambda method: method == "sendTransaction"

    refused = await paying.call("POST", A2A, terms(paying, receiving, timeoutSeconds=60))

    error_of(refused, 503, "chain_unavailable")
    [row] = (await world.ok("GET", A2A))["data"]
    assert row["status"] == "pending"
    assert 60 - _SLACK < _left(world, row["expires_at"]) <= 62


@pytest.mark.proves("Limits: Approval")
async def test_approval_is_open_for_a_day_of_the_chain(skewed: ServiceWorld) -> None:
    world = skewed
    policy, to = await world.policy(requireCoSign="10"), await world.payee()
    one = await agent(world, policy["policy_id"])

    async def asks(amount: str) -> Json:
        refused = await world.pay(one.wallet, to, amount, key=one.key, session=one.session)
        approval_id = error_of(refused, 402, "policy_violation")["approval_id"]
        return await world.ok("GET", f"/v1/approvals/{approval_id}")

    early, late = await asks("20"), await asks("30")
    for asked in (early, late):
        assert asked["status"] == "pending"
        assert _DAY - _SLACK < _left(world, asked["expires_at"]) <= _DAY
    approved = await world.ok("POST", f"/v1/approvals/{late['approval_id']}/approve", {})
    assert approved["status"] == "approved"
    assert abs(_left(world, approved["decided_at"])) < _SLACK
    assert _DAY - _SLACK - 20 < _left(world, approved["expires_at"]) <= _DAY

    await world.later(_DAY)

    for asked in (early, late):
        assert (await world.ok("GET", f"/v1/approvals/{asked['approval_id']}"))["status"] == "expired"


@pytest.mark.proves("Limits: Host's clock")
async def test_keeper_freezes_and_refunds_when_the_chain_says_so(skewed: ServiceWorld) -> None:
    world = skewed
    policy = await world.policy(expiry=iso(int(world.clock()) + 120))
    wallet = await world.wallet(policy["policy_id"], funds=None)
    paying, receiving = await agent(world), await agent(world)
    locked = await paying.lock(receiving, timeoutSeconds=60)
    keeper = Keeper(world.service)

    with calls_of(world.service) as calls:
        assert await keeper.tick() == 0
    assert calls == []
    await world.later(62)
    assert await keeper.tick() == 1
    await world.later(62)
    assert await keeper.tick() == 1

    await world.catch_up()
    assert (await world.ok("GET", of(locked)))["status"] == "refunded"
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    assert shown["status"] == "frozen"


@pytest.mark.proves("Limits: Host's clock")
async def test_rows_and_previews_are_dated_by_the_chain(skewed: ServiceWorld) -> None:
    world = skewed
    policy, to = await world.policy(maxPerTx="5"), await world.payee()
    wallet = await world.wallet(policy["policy_id"])
    await world.pay(wallet, to, "1")
    error_of(await world.pay(wallet, to, "6"), 402, "policy_violation")

    rows = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
    assert [row["status"] for row in rows] == ["blocked", "confirmed", "confirmed"]
    assert all(abs(_left(world, row["timestamp"])) < _SLACK for row in rows)
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    assert all(abs(_left(world, shown[name])) < _SLACK for name in ("created_at", "updated_at", "last_transaction_at"))
    preview = await world.ok("POST", f"/v1/policies/{policy['policy_id']}/preview", {"maxPerTx": "0.50"})
    assert abs(_left(world, preview["to"])) < _SLACK
    assert (preview["payments"], preview["newly_blocked"]) == (2, 1)


@pytest.mark.proves("Limits: Host's clock")
async def test_unknown_chain_time_is_no_other_time(own_world: ServiceWorld) -> None:
    # Given a service that has not reached its node since the start
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    session = await world.session(wallet)
    await world.stop()
    await world.start(lose_requests=lambda _method: True)

    # Then it neither accepts nor refuses a session, and shows the wallet as of the last block that it stored
    answer = await world.pay(wallet, to, "1", session=session)
    assert error_of(answer, 503, "chain_unavailable")
    assert answer.headers["retry-after"]
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "active"
    error_of(await world.call("GET", "/v1/approvals"), 503, "chain_unavailable")

    # When the node answers again, so does the service
    world.line.mend()
    await world.service.clock.read()
    assert (await world.pay(wallet, to, "1", session=session)).json()["status"] == "confirmed"
