"""Lost outcomes and concurrent changes: the change that was answered last is the one that holds."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from solders.keypair import Keypair

from app.chain.errors import RpcError
from app.core.errors import UnavailableError
from app.core.timestamps import iso, now_ms
from app.store.attempts import Attempt, attempt, pending_attempts
from app.submission.plan import Outcome
from app.submission.recovery import Recovery
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Longer than a blockhash lives (150 slots of 0.4 s), its last block takes to finalize (32) and the margin (30).
EXPIRY_SECONDS = 90.0


def _path(wallet: Json) -> str:
    return f"/v1/wallets/{wallet['wallet_id']}"


async def _cut_off(world: ServiceWorld, method: str, path: str, body: Json, **options: Any) -> str:
    """Make a change that never reaches the chain, and return its transaction's id."""
    world.line.lose_requests = lambda name: name == "sendTransaction"
    error = error_of(await world.call(method, path, body, **options), 503, "chain_unavailable")
    world.line.mend()
    return str(error["tx_id"])


async def _expire(world: ServiceWorld) -> None:
    world.clock.ahead += EXPIRY_SECONDS
    await world.service.part(Recovery).recover()
    await world.catch_up()


async def test_freeze_is_not_acknowledged_while_an_earlier_unfreeze_may_land(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    lost = await _cut_off(world, "PATCH", _path(wallet), {"status": "active"})

    refused = error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "chain_unavailable")

    assert refused["tx_id"] == lost
    await _expire(world)
    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen"}))["status"] == "frozen"
    await world.service.part(Recovery).recover()
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")


async def test_freeze_overtakes_an_unfreeze_that_is_not_sent_yet(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    world.line.lose_requests = lambda name: name == "sendTransaction"

    answers = await asyncio.gather(
        *(world.call("PATCH", _path(wallet), {"status": status}) for status in ("active", "frozen"))
    )

    assert [answer.status_code for answer in answers] == [503, 200]
    assert world.service.db.read_now(pending_attempts) == []


async def test_freeze_is_not_acknowledged_before_a_landed_unfreeze_is_seen(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    world.line.alter = {"getSignaturesForAddress": [], "getTransaction": None}.get
    world.line.lose_answers = lambda name: name == "sendTransaction"
    error_of(await world.call("PATCH", _path(wallet), {"status": "active"}), 503, "chain_unavailable")
    world.line.lose_answers = lambda _name: False

    error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "chain_unavailable")

    world.line.mend()
    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen"}))["status"] == "frozen"
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")


async def test_unfreeze_that_did_land_is_followed_by_the_freeze(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    world.line.lose_answers = lambda name: name == "sendTransaction"
    error_of(await world.call("PATCH", _path(wallet), {"status": "active"}), 503, "chain_unavailable")
    world.line.mend()

    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen"}))["status"] == "frozen"

    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")


async def test_freeze_does_not_wait_for_an_earlier_change_that_cannot_lift_it(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await _cut_off(world, "PATCH", _path(wallet), {"policyId": "pol_moderate"})
    await _cut_off(world, "POST", f"{_path(wallet)}/rotate-token", {})

    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen"}))["status"] == "frozen"

    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")


async def test_policy_answered_last_stays_attached(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    await _cut_off(world, "PATCH", _path(wallet), {"policyId": "pol_permissive", "status": "frozen"})
    change = {"policyId": "pol_conservative"}
    error_of(await world.call("PATCH", _path(wallet), change), 503, "chain_unavailable")
    sent = world.line.methods.count("sendTransaction")
    await world.service.part(Recovery).recover()
    assert world.line.methods.count("sendTransaction") == sent
    await _expire(world)

    assert (await world.ok("PATCH", _path(wallet), change))["policy"]["policy_id"] == "pol_conservative"

    await _expire(world)
    shown = await world.ok("GET", _path(wallet))
    assert (shown["policy"]["policy_id"], shown["status"]) == ("pol_conservative", "active")


async def test_change_that_never_reached_the_chain_is_sent_again_under_its_key(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    key, body = {"Idempotency-Key": "again"}, {"policyId": "pol_conservative"}
    await _cut_off(world, "PATCH", _path(wallet), body, headers=key)

    assert (await world.ok("PATCH", _path(wallet), body, headers=key))["policy"]["policy_id"] == "pol_conservative"

    assert world.service.db.read_now(pending_attempts) == []


async def test_token_that_was_answered_is_not_replaced_by_an_earlier_rotation(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    key = {"Idempotency-Key": "rotate"}
    await _cut_off(world, "POST", f"{_path(wallet)}/rotate-token", {}, headers=key)

    token = (await world.ok("POST", f"{_path(wallet)}/rotate-token", {}, headers=key))["session_token"]

    assert world.service.db.read_now(pending_attempts) == []
    await world.service.part(Recovery).recover()
    agent = world.key("agent", wallet["wallet_id"])
    paid = (await world.pay(wallet, to, "1", session=token, key=agent)).json()
    assert paid["status"] == "confirmed"


async def test_registration_answered_last_holds(own_world: ServiceWorld) -> None:
    world = own_world
    address = await world.payee()
    path = f"/v1/recipients/{address}"
    await world.ok("PUT", path, {"category": "weapons"})
    await _cut_off(world, "PUT", path, {"category": "marketplace"})
    error_of(await world.call("PUT", path, {"category": "gambling"}), 503, "chain_unavailable")
    assert (await world.ok("PUT", f"/v1/recipients/{Keypair().pubkey()}", {"category": "nft"}))["category"] == "nft"
    await _expire(world)

    assert (await world.ok("PUT", path, {"category": "gambling"}))["category"] == "gambling"

    await world.service.part(Recovery).recover()
    await world.catch_up()
    assert (await world.ok("GET", path))["category"] == "gambling"


@pytest.mark.parametrize("earlier", [{}, {"status": "frozen"}, {"status": "active", "policyId": "pol_moderate"}])
async def test_equal_changes_at_once_all_succeed(world: ServiceWorld, earlier: Json) -> None:
    wallet = await world.wallet(funds=None)
    if earlier:
        await world.ok("PATCH", _path(wallet), earlier)
    for body in ({"status": "frozen"}, {"status": "active"}, {"policyId": "pol_conservative"}):
        answers = await asyncio.gather(*(world.call("PATCH", _path(wallet), body) for _ in range(3)))
        assert [answer.status_code for answer in answers] == [200] * 3, [answer.text for answer in answers]
    shown = await world.ok("GET", _path(wallet))
    assert (shown["status"], shown["policy"]["policy_id"]) == ("active", "pol_conservative")


async def test_wallet_changed_past_the_service_is_changed_all_the_same(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    [vault, _tokens, policy, _org] = world.vault_accounts(wallet)
    operator = world.service.signers.operator
    freeze = world.build.freeze_wallet(signer=operator.pubkey(), vault=vault, policy=policy, action="Freeze")
    assert (await world.land([freeze], operator)).err is None

    assert (await world.ok("PATCH", _path(wallet), {"status": "active"}))["status"] == "active"


async def test_freeze_by_hand_takes_the_place_of_a_freeze_by_expiry(own_world: ServiceWorld) -> None:
    world = own_world
    limited = await world.policy(max_per_tx="1", expiry=iso(now_ms() // 1000 + 30))
    wallet = await world.wallet(limited["policy_id"], funds=None)
    [vault, _tokens, policy, _org] = world.vault_accounts(wallet)
    world.clock.ahead += 60
    payer = world.service.signers.fee_payer
    expire = world.build.freeze_wallet(signer=payer.pubkey(), vault=vault, policy=policy, action="Expire")
    assert (await world.land([expire], payer)).err is None

    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen"}))["status"] == "frozen"

    await world.ok("PATCH", _path(wallet), {"policyId": "pol_moderate"})
    lift = await world.call("PATCH", _path(wallet), {"status": "active"}, key=world.key("operator"))
    error_of(lift, 403, "insufficient_permissions")


async def test_equal_registrations_at_once_all_succeed(world: ServiceWorld) -> None:
    path = f"/v1/recipients/{Keypair().pubkey()}"

    answers = await asyncio.gather(*(world.call("PUT", path, {"category": "nft"}) for _ in range(3)))

    assert [answer.status_code for answer in answers] == [200] * 3


async def test_one_of_two_concurrent_registrations_of_a_domain_is_refused(world: ServiceWorld) -> None:
    operator = world.key("operator")
    bodies = [{"address": str(Keypair().pubkey())} for _ in range(2)]

    answers = await asyncio.gather(
        *(world.call("PUT", "/v1/recipients/twice.example.com", body, key=operator) for body in bodies)
    )

    assert sorted(answer.status_code for answer in answers) == [200, 403]


@pytest.mark.parametrize(("commitment", "outcome"), [("processed", "pending"), ("confirmed", "failed")])
async def test_failure_counts_once_it_is_confirmed(own_world: ServiceWorld, commitment: str, outcome: str) -> None:
    # Given a payment that has landed and failed, because the wallet was frozen before
    world = own_world
    pending = await world.unsent_payment(await world.payee())
    assert pending.raw is not None
    frozen = await world.ok("PATCH", f"/v1/wallets/{pending.wallet_id}", {"status": "frozen"})
    assert frozen["status"] == "frozen"
    status = await world.service.chain.confirm(await world.service.chain.send(pending.raw), timeout=5)
    assert status is not None
    assert status.err is not None

    world.line.alter = lambda method, result: (
        {**result, "value": [{**one, "confirmationStatus": commitment} for one in result["value"]]}
        if method == "getSignatureStatuses"
        else result
    )

    assert (await world.service.submitter.look(pending)).status == outcome


@pytest.mark.proves("Transactions: pending to failed")
@pytest.mark.parametrize("landed", [False, True])
async def test_failure_that_the_transaction_does_not_show_is_no_outcome(
    own_world: ServiceWorld, *, landed: bool
) -> None:
    # Given a payment that has not landed, or has with success, and a node that says that it failed
    world = own_world
    pending = await world.unsent_payment(await world.payee())
    assert pending.raw is not None
    if landed:
        await world.service.chain.confirm(await world.service.chain.send(pending.raw), timeout=5)
    world.line.alter = _failed

    outcome = await world.service.submitter.look(pending)

    assert outcome.status == ("confirmed" if landed else "pending")
    world.line.mend()
    found = world.service.db.read_now(lambda conn: attempt(conn, pending.tx_id))
    assert found is not None
    assert (found.status, found.error) == (outcome.status, None)


@pytest.mark.parametrize("lies", [2, 10_000])
async def test_false_failure_of_a_payment_is_never_answered(own_world: ServiceWorld, lies: int) -> None:
    world, key = own_world, {"Idempotency-Key": "believed"}
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=3.0 if lies == 2 else 0.5)
    told = 0

    def lie(method: str, result: Any) -> Any:
        nonlocal told
        told += method == "getSignatureStatuses"
        return _failed(method, result) if told <= lies else result

    world.line.alter = lie
    paid = await world.pay(wallet, to, "1", headers=key)
    world.line.mend()

    assert paid.json()["status"] == ("confirmed" if lies == 2 else "pending")
    again = (await world.pay(wallet, to, "1", headers=key)).json()
    assert again["tx_id"] == paid.json()["tx_id"]
    await world.service.part(Recovery).recover()
    assert (await world.ok("GET", f"/v1/payments/{again['tx_id']}"))["status"] == "confirmed"
    assert await world.balance(to) == 1_000_000


def _failed(method: str, result: Any) -> Any:
    """Say of every signature that its transaction is confirmed and failed."""
    if method != "getSignatureStatuses":
        return result
    error = {"InstructionError": [0, {"Custom": 1}]}
    told = {"slot": result["context"]["slot"], "err": error, "confirmationStatus": "confirmed"}
    return {**result, "value": [{**told, "slot": (one or told)["slot"]} for one in result["value"]]}


async def test_node_that_refuses_its_history_leaves_the_outcome_open(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a payment that has landed
    service = own_world.service
    pending = await own_world.unsent_payment(await own_world.payee())
    assert pending.raw is not None
    await service.chain.confirm(await service.chain.send(pending.raw), timeout=5)

    # When the node refuses to list it
    async def refuse() -> int:
        raise RpcError(-32602, "refused")

    monkeypatch.setattr(service.indexer, "catch_up", refuse)
    with pytest.raises(UnavailableError) as caught:
        await service.submitter.look(pending)

    # Then the error names it
    assert (caught.value.code, caught.value.fields) == ("chain_unavailable", {"tx_id": pending.tx_id})


async def test_confirmed_transaction_is_not_answered_as_failed(world: ServiceWorld) -> None:
    paid = (await world.pay(await world.wallet(), await world.payee(), "1")).json()
    await world.catch_up()
    found = world.service.db.read_now(lambda conn: attempt(conn, paid["tx_id"]))
    assert found is not None

    outcome = await world.service.submitter.fail(replace(found, status="pending"), "expired")

    assert outcome.confirmed
    assert (await world.ok("GET", f"/v1/payments/{paid['tx_id']}"))["status"] == "confirmed"


async def test_recovery_goes_on_after_an_attempt_that_cannot_be_recovered(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, submitter = own_world, own_world.service.submitter
    to = await world.payee()
    bad, good = await world.unsent_payment(to), await world.unsent_payment(to)
    look = submitter.look

    async def refuses_one(looked_at: Attempt) -> Outcome:
        if looked_at.tx_id == bad.tx_id:
            raise RpcError(-32000, "unreadable")
        return await look(looked_at)

    monkeypatch.setattr(submitter, "look", refuses_one)
    with pytest.raises(RpcError, match="unreadable"):
        await world.service.part(Recovery).recover()

    assert good.signature is not None
    status = await world.service.chain.confirm(good.signature, timeout=5)
    assert status is not None
    assert await world.balance(to) == 1_000_000
