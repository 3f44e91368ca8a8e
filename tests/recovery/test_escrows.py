"""Escrows whose outcome was lost, that were made past the service, or by concurrent requests."""

import asyncio
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.core.identifiers import escrow_id, new_reference
from app.store.attempts import pending_attempts
from app.store.escrows import escrow as escrow_of
from app.submission.recovery import Recovery
from tests.support.escrows import A2A, OUTPUT, Agent, agent, of, shows_output, terms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Longer than a blockhash lives (150 slots of 0.4 s) and its last block takes to finalize (32 slots).
_EXPIRY_SECONDS = 90.0
_ROWS = [("a2a_send", "10.00", "confirmed"), ("escrow_lock", "10.00", "confirmed")]


def _key(name: str) -> Json:
    return {"headers": {"Idempotency-Key": name}}


def _unsent(method: str) -> bool:
    return method == "sendTransaction"


async def _agents(world: ServiceWorld) -> tuple[Agent, Agent]:
    return await agent(world), await agent(world, funds=None)


async def _settle(world: ServiceWorld) -> None:
    while world.service.db.read_now(pending_attempts):
        await world.service.part(Recovery).recover()


def _lag(world: ServiceWorld) -> None:
    """Hide what happens from now on from the read models until something is simulated."""
    line, start = world.line, len(world.line.methods)
    line.lose_requests = lambda method: (
        method in ("getTransaction", "getSignaturesForAddress") and "simulateTransaction" not in line.methods[start:]
    )


async def _direct(world: ServiceWorld, paying: Agent, receiving: Agent, counter: int) -> Pubkey:
    """Make an escrow of 1 USDC past the service, signed by the operator, and return its address."""
    found = world.wallet_record(paying.id)
    operator, vault = world.service.signers.operator, Pubkey.from_string(paying.vault)
    create = world.build.create_escrow(
        payer=world.service.signers.fee_payer_address,
        signer=operator.pubkey(),
        policy=Pubkey.from_string(found.policy.address),
        vault=vault,
        receiver=Pubkey.from_string(receiving.vault),
        counter=counter,
        amount=1_000_000,
        reference=new_reference(),
        task_hash=bytes(32),
        proof_kinds=1,
        timeout=600,
    )
    assert (await world.land([create], operator)).err is None
    return world.service.addresses.escrow(vault, counter)


# Lost requests and answers


@pytest.mark.proves("Escrows: new to pending", "Escrows: pending to locked")
async def test_escrow_that_was_not_confirmed_in_time_is_pending_until_it_is(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    await world.restart(confirm_timeout=0.2)
    # The transaction lands, but its event is not seen.
    world.line.lose_requests = lambda method: method in ("getTransaction", "getSignaturesForAddress")

    made = await paying.lock(receiving, idempotencyKey="slow")

    assert made["status"] == "pending"
    assert (await world.ok("GET", of(made))) == made
    assert [one["escrow_id"] for one in (await world.ok("GET", f"{A2A}?status=pending"))["data"]] == [made["escrow_id"]]
    [row] = (await world.ok("GET", f"/v1/wallets/{paying.id}/transactions?status=pending"))["data"]
    assert (row["tx_id"], row["type"]) == (made["tx_id"], "escrow_lock")
    early = await receiving.call("POST", of(made, "complete"), shows_output())
    error_of(early, 503, "chain_unavailable")

    world.line.mend()
    await _settle(world)

    locked = await world.ok("GET", of(made))
    assert {**locked, "expires_at": None} == {**made, "status": "locked", "expires_at": None}
    assert await paying.lock(receiving, idempotencyKey="slow") == locked
    assert await paying.rows() == _ROWS


async def test_escrow_that_never_reached_the_chain_is_sent_again_under_its_key(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    world.line.lose_requests = _unsent
    lost = error_of(
        await paying.call("POST", A2A, terms(paying, receiving), **_key("unsent")), 503, "chain_unavailable"
    )
    # No second one is made while the first may still land: it would be at the same address.
    world.line.mend()
    second = error_of(await paying.call("POST", A2A, terms(paying, receiving, "2")), 503, "chain_unavailable")
    assert second["tx_id"] == lost["tx_id"]

    made = await paying.ok("POST", A2A, terms(paying, receiving), **_key("unsent"))

    assert (made["tx_id"], made["status"]) == (lost["tx_id"], "locked")
    assert (await paying.lock(receiving, "2"))["escrow_id"] != made["escrow_id"]


async def test_restart_recovers_an_escrow_that_was_sent(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    world.line.lose_answers = _unsent
    lost = error_of(await paying.call("POST", A2A, terms(paying, receiving)), 503, "chain_unavailable")["tx_id"]

    await world.restart()
    await _settle(world)

    [made] = (await world.ok("GET", A2A))["data"]
    assert (made["tx_id"], made["status"]) == (lost, "locked")
    assert await paying.rows() == _ROWS


async def test_escrow_that_can_no_longer_land_is_gone_and_its_address_is_used(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    world.line.lose_requests = _unsent
    lost = error_of(await paying.call("POST", A2A, terms(paying, receiving)), 503, "chain_unavailable")["tx_id"]
    world.line.mend()
    [pending] = (await world.ok("GET", A2A))["data"]
    world.clock.ahead += _EXPIRY_SECONDS
    await world.service.part(Recovery).recover()
    error_of(await world.call("GET", of(pending)), 404, "escrow_not_found")
    assert (await world.ok("GET", f"/v1/transactions/{lost}"))["status"] == "failed"

    made = await paying.lock(receiving, "2", taskDescription="Another task")

    assert made["escrow_id"] == pending["escrow_id"]
    assert (made["amount"], made["task_description"]) == ("2.00", "Another task")


async def test_completion_whose_answer_was_lost_is_found_not_repeated(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    world.line.lose_answers = _unsent
    options = _key("completed")
    error_of(await receiving.call("POST", of(made, "complete"), shows_output(), **options), 503, "chain_unavailable")
    world.line.mend()

    done = await receiving.ok("POST", of(made, "complete"), shows_output(), **_key("completed"))

    assert done["status"] == "released"
    again = await receiving.call("POST", of(made, "complete"), shows_output(), **_key("completed"))
    assert (again.json(), again.headers["idempotent-replayed"]) == (done, "true")
    assert await receiving.balance() == "10.00"


# Concurrent requests, and escrows made past the service


async def test_parallel_requests_of_one_wallet_each_make_an_escrow(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)

    made = await asyncio.gather(*(paying.lock(receiving, "1") for _ in range(5)))

    assert len({one["escrow_id"] for one in made}) == 5
    assert {one["status"] for one in made} == {"locked"}
    assert await paying.balance() == "95.00"


async def test_repetition_under_a_key_makes_one_escrow(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)

    body = terms(paying, receiving)
    answers = await asyncio.gather(*(paying.ok("POST", A2A, body, **_key("one")) for _ in range(4)))

    assert len({one["escrow_id"] for one in answers}) == 1
    assert await paying.balance() == "90.00"
    other = await paying.call("POST", A2A, {**body, "taskDescription": "Another"}, **_key("one"))
    error_of(other, 409, "idempotency_conflict")


async def test_two_completions_at_once_pay_once(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)

    async def complete(who: Agent) -> Any:
        return await who.call("POST", of(made, "complete"), shows_output())

    answers = await asyncio.gather(complete(paying), complete(receiving))

    assert sorted(one.status_code for one in answers) == [200, 422]
    [late] = [one for one in answers if one.status_code == 422]
    error_of(late, 422, "escrow_already_settled")
    assert await receiving.balance() == "10.00"


async def test_escrow_made_past_the_service_shows_and_takes_its_number(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    _lag(world)
    address = await _direct(world, paying, receiving, 0)

    made = await paying.lock(receiving)

    assert made["chain_address"] != str(address)
    found = await world.ok("GET", f"{A2A}/{escrow_id(address)}")
    assert (found["status"], found["amount"], found["task_description"]) == ("locked", "1.00", None)
    assert found["tx_id"] is not None
    assert (await receiving.ok("POST", of(found, "complete"), shows_output()))["status"] == "released"


async def test_approval_is_not_blamed_for_an_escrow_made_past_the_service(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(requireCoSign="5")
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    body = terms(paying, receiving, "6")
    approval = error_of(await paying.call("POST", A2A, body), 402, "policy_violation")["approval_id"]
    await world.ok("POST", f"/v1/approvals/{approval}/approve", {})
    _lag(world)
    await _direct(world, paying, receiving, 0)

    assert (await paying.ok("POST", A2A, body))["status"] == "locked"
    assert (await world.ok("GET", f"/v1/approvals/{approval}"))["status"] == "used"


@pytest.mark.parametrize("which", ["escrow", "tokens"])
async def test_lamports_sent_to_the_address_beforehand_change_nothing(world: ServiceWorld, which: str) -> None:
    paying, receiving = await _agents(world)
    addresses = world.service.addresses
    address = addresses.escrow(Pubkey.from_string(paying.vault), 0)
    await world.localnet.airdrop(address if which == "escrow" else addresses.escrow_tokens(address), 2_000_000)

    made = await paying.lock(receiving, memo="kept")

    assert (made["status"], made["chain_address"]) == ("locked", str(address))
    lock = await world.ok("GET", f"/v1/transactions/{made['tx_id']}")
    assert (lock["status"], lock["memo"], lock["tx_signature"]) == ("confirmed", "kept", made["tx_signature"])
    assert await paying.rows() == _ROWS
    assert not world.service.db.read_now(pending_attempts)


async def test_rebuilt_read_models_show_the_same_escrows_and_rows(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    done, disputed, split = [await paying.lock(receiving) for _ in range(3)]
    await receiving.ok("POST", of(done, "complete"), shows_output())
    for one in (disputed, split):
        await paying.ok("POST", of(one, "dispute"), {"reason": "late", "evidence": f"sha256:{OUTPUT}"})
    await world.ok("POST", of(split, "resolve"), {"decision": "split", "releasedAmount": "4"})
    world.line.lose_requests = _unsent
    error_of(await paying.call("POST", A2A, terms(paying, receiving)), 503, "chain_unavailable")
    world.line.mend()
    # The deposit into the reserve is found separately.
    await world.service.indexer.check()
    await world.catch_up()

    async def picture() -> list[Any]:
        paths = (A2A, "/v1/transactions?limit=100", "/v1/events?limit=100", "/v1/wallets")
        return [await world.ok("GET", path) for path in paths]

    before = await picture()
    assert sorted(one["status"] for one in before[0]["data"]) == ["disputed", "pending", "released", "settled"]

    await world.service.projector.rebuild()

    assert await picture() == before


@pytest.mark.proves("Escrow(task_hash, task_description)")
async def test_text_is_shown_only_where_its_hash_is_on_the_chain(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    world.line.lose_requests = _unsent
    error_of(await paying.call("POST", A2A, terms(paying, receiving)), 503, "chain_unavailable")
    world.line.mend()
    # Another escrow takes the address that the service was about to use.
    address = await _direct(world, paying, receiving, 0)
    await world.catch_up()

    shown = await world.ok("GET", f"{A2A}/{escrow_id(address)}")

    assert (shown["status"], shown["amount"], shown["task_description"]) == ("locked", "1.00", None)
    assert shown["task_hash"] == f"sha256:{bytes(32).hex()}"
    world.clock.ahead += _EXPIRY_SECONDS
    await world.service.part(Recovery).recover()
    kept = world.service.db.read_now(lambda conn: escrow_of(conn, world.org, escrow_id(address)))
    assert kept is not None
    assert kept.status == "locked"


async def test_session_rotated_while_an_escrow_waits_is_refused_as_invalid(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    # Given an escrow that landed and whose answer was lost
    world.line.lose_answers = _unsent
    error_of(await paying.call("POST", A2A, terms(paying, receiving)), 503, "chain_unavailable")
    world.line.mend()
    # And another that waits for it
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await go_on.wait()

    world.line.hold = lambda method: wait() if method == "getEpochInfo" else None
    waiting = asyncio.create_task(paying.call("POST", A2A, terms(paying, receiving)))
    await asked.wait()

    # When its session is rotated meanwhile
    await world.session(paying.wallet)
    go_on.set()

    error_of(await waiting, 401, "session_token_invalid")
    assert await paying.rows() == _ROWS


async def test_repeated_escrow_that_landed_is_answered_while_others_crowd(own_world: ServiceWorld) -> None:
    world = own_world
    await world.restart(max_waiting_payments=1)
    paying, receiving = await _agents(world)
    world.line.lose_answers = _unsent
    error_of(await paying.call("POST", A2A, terms(paying, receiving), **_key("lost")), 503, "chain_unavailable")
    world.line.mend()
    await world.catch_up()
    # Given a full waiting room
    go_on, simulating = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        simulating.set()
        await go_on.wait()

    world.line.hold = lambda method: wait() if method == "simulateTransaction" else None
    others = [asyncio.create_task(paying.call("POST", A2A, terms(paying, receiving))) for _ in range(2)]
    await simulating.wait()
    while not any(world.service.locks.waiting().values()):  # noqa: ASYNC110 - a lock has no signal
        await asyncio.sleep(0)

    error_of(await paying.call("POST", A2A, terms(paying, receiving)), 429, "rate_limited")
    repeated = await paying.ok("POST", A2A, terms(paying, receiving), **_key("lost"))

    assert repeated["status"] == "locked"
    go_on.set()
    assert [one.status_code for one in await asyncio.gather(*others)] == [200, 200]
