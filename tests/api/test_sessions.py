"""Session tokens: who may rotate them, until when, and what a repeated rotation is answered."""

import asyncio
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import select

from app.access.auth import encode_token
from app.core.timestamps import parse_iso_ms
from app.store.session_grants import session_grants
from tests.support.escrows import Agent, agent
from tests.support.lost_answers import lose_answer
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _path(wallet: str) -> str:
    return f"/v1/wallets/{wallet}/rotate-token"


def _until(answer: Json) -> int:
    return parse_iso_ms(answer["expires_at"]) // 1000


async def _grant(world: ServiceWorld, ttl: int) -> tuple[Agent, int]:
    """An agent whose session an operator granted for so many seconds, and its end."""
    wallet = await world.wallet()
    granted = await world.ok("POST", _path(wallet["wallet_id"]), {"ttlSeconds": ttl}, key=world.key("operator"))
    key = world.key("agent", wallet["wallet_id"])
    return Agent(world, wallet, key, granted["session_token"]), _until(granted)


async def _rotate(one: Agent, ttl: int, **options: Any) -> Json:
    """Rotate as the agent, which goes on with the new token."""
    answer = await one.ok("POST", _path(one.id), {"ttlSeconds": ttl}, **options)
    one.session = answer["session_token"]
    return answer


@pytest.mark.proves("POST /v1/wallets/{wallet_id}/rotate-token")
async def test_api_key_alone_gets_no_session_token(world: ServiceWorld) -> None:
    one, to = await agent(world), await world.payee()
    new = await world.wallet(funds=None)
    path, earlier = _path(one.id), one.session
    await _rotate(one, 3600)

    for headers in ({}, {"Session-Token": earlier}, {"Session-Token": encode_token(Keypair())}):
        error_of(await world.call("POST", path, {}, key=one.key, headers=headers), 401, "session_token_invalid")
    # A wallet's first token comes from an operator.
    first = await world.call("POST", _path(new["wallet_id"]), {}, key=world.key("agent", new["wallet_id"]))
    error_of(first, 401, "session_token_invalid")

    paid = await world.pay(one.wallet, to, "1", session=one.session, key=one.key)
    assert paid.status_code == 200, paid.text


async def test_expired_token_rotates_nothing(own_world: ServiceWorld) -> None:
    one, _ = await _grant(own_world, 600)
    await _rotate(one, 60)

    await own_world.later(300)
    error_of(await one.call("POST", _path(one.id), {}), 401, "session_token_expired")


@pytest.mark.proves("POST /v1/wallets/{wallet_id}/rotate-token", "Authentication: Rotation")
async def test_agents_rotations_never_outlast_what_the_operator_granted(world: ServiceWorld) -> None:
    one, end = await _grant(world, 600)

    # A shorter token of the agent's own does not shorten the grant, and a longer one does not extend it.
    assert _until(await _rotate(one, 60)) < end
    for ttl in (2_592_000, 86_400):
        assert _until(await _rotate(one, ttl)) == end

    # The operator extends it, or ends it earlier.
    for ttl in (1200, 90):
        granted = await world.ok("POST", _path(one.id), {"ttlSeconds": ttl})
        one.session = granted["session_token"]
        assert _until(await _rotate(one, 2_592_000)) == _until(granted)
    stored = world.service.db.read_now(
        lambda conn: conn.execute(select(session_grants).where(session_grants.c.wallet_id == one.id)).all()
    )
    assert len(stored) == 2


@pytest.mark.proves("Authentication: Rotation")
async def test_grant_is_known_after_a_restart_and_a_rebuild(own_world: ServiceWorld) -> None:
    one, end = await _grant(own_world, 600)
    await _rotate(one, 60)

    await own_world.restart()
    await own_world.service.projector.rebuild()

    assert _until(await _rotate(one, 2_592_000)) == end


async def test_grant_that_is_over_ends_rotations(own_world: ServiceWorld) -> None:
    world = own_world
    one, _ = await _grant(world, 600)
    headers = {"Idempotency-Key": "over"}
    await _rotate(one, 60, headers=headers)
    await lose_answer(world, "over")

    await world.later(601)
    error_of(await one.call("POST", _path(one.id), {"ttlSeconds": 60}, headers=headers), 401, "session_token_expired")


async def test_operators_rotation_that_never_landed_grants_nothing(own_world: ServiceWorld) -> None:
    world = own_world
    one, end = await _grant(world, 600)
    world.line.lose_requests = lambda name: name == "sendTransaction"
    error_of(await world.call("POST", _path(one.id), {"ttlSeconds": 2_592_000}), 503, "chain_unavailable")
    world.line.mend()
    world.clock.ahead += 90

    assert _until(await _rotate(one, 2_592_000)) == end


async def test_session_made_without_the_service_is_granted_for_its_own_time(world: ServiceWorld) -> None:
    one, end = await _grant(world, 600)
    session = Keypair()
    rotation = world.build.update_wallet(
        operator=world.service.signers.operator_address,
        vault=Pubkey.from_string(one.vault),
        session=(session.pubkey(), end - 300),
    )
    await world.land([rotation], world.service.signers.operator)
    await world.catch_up()
    one.session = encode_token(session)

    assert _until(await _rotate(one, 2_592_000)) == end - 300


@pytest.mark.proves("Authentication: Rotation")
async def test_of_two_rotations_with_one_token_the_second_is_refused(world: ServiceWorld) -> None:
    one = await agent(world)

    answers = await asyncio.gather(*(one.call("POST", _path(one.id), {}) for _ in range(2)))

    first, second = sorted(answers, key=lambda answer: answer.status_code)
    assert first.status_code == 200
    error_of(second, 401, "session_token_invalid")


@pytest.mark.proves("Authentication: Repeated rotation")
async def test_repeated_rotation_needs_no_live_token_but_the_same_api_key(world: ServiceWorld) -> None:
    one = await agent(world)
    another = world.key("agent", one.id)
    headers = {"Idempotency-Key": f"rotate {one.id}"}
    first = await _rotate(one, 600, headers=headers)

    again = await world.call("POST", _path(one.id), {"ttlSeconds": 600}, key=one.key, headers=headers)

    assert again.json() == first
    assert again.headers["idempotent-replayed"] == "true"
    refused = await world.call("POST", _path(one.id), {"ttlSeconds": 600}, key=another, headers=headers)
    error_of(refused, 409, "idempotency_conflict")


@pytest.mark.proves("Authentication: Repeated rotation")
async def test_rotation_whose_answer_was_lost_is_repeated_without_a_live_token(world: ServiceWorld) -> None:
    (one, end), to = await _grant(world, 600), await world.payee()
    headers = {"Idempotency-Key": f"lost {one.id}"}
    unseen = await one.ok("POST", _path(one.id), {"ttlSeconds": 2_592_000}, headers=headers)
    await lose_answer(world, f"lost {one.id}")

    found = await one.ok("POST", _path(one.id), {"ttlSeconds": 2_592_000}, headers=headers)

    assert found["session_token"] not in {unseen["session_token"], one.session}
    assert _until(found) == end
    paid = await world.pay(one.wallet, to, "1", session=found["session_token"], key=one.key)
    assert paid.status_code == 200, paid.text


@pytest.mark.proves("Authentication: Policies")
async def test_agent_reads_the_policy_of_its_own_wallet_only(world: ServiceWorld) -> None:
    policy, other = await world.policy(maxPerTx="5"), await world.policy()
    wallet = await world.wallet(policy["policy_id"], funds=None)
    key = world.key("agent", wallet["wallet_id"])

    assert await world.ok("GET", f"/v1/policies/{policy['policy_id']}", key=key) == policy | {"wallet_count": 1}

    for identifier in (other["policy_id"], "pol_moderate", "pol_unknown"):
        refused = await world.call("GET", f"/v1/policies/{identifier}", key=key)
        error_of(refused, 403, "insufficient_permissions")
    # The policy that counts is the one attached now.
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"policyId": "pol_moderate"})
    assert (await world.ok("GET", "/v1/policies/pol_moderate", key=key))["policy_id"] == "pol_moderate"
    error_of(await world.call("GET", f"/v1/policies/{policy['policy_id']}", key=key), 403, "insufficient_permissions")
