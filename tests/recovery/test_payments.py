"""Payments whose outcome was lost: neither dropped nor paid twice, even across restarts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from solders.keypair import Keypair

from app.store.attempts import attempt, pending_attempts
from app.submission.recovery import Recovery
from tests.support.keeper import calls_of
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Longer than a blockhash lives (150 slots of 0.4 s) and its last block takes to finalize (32 slots).
EXPIRY_SECONDS = 90.0


def _key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


async def _payments(world: ServiceWorld, wallet: Json) -> list[Json]:
    rows = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions?type=payment"))["data"]
    return list(rows)


@pytest.mark.proves("error chain_unavailable")
async def test_chain_that_does_not_answer_is_503_and_nothing_is_stored(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda _method: True

    error_of(await world.pay(wallet, to, "1", headers=_key("down")), 503, "chain_unavailable")

    world.line.mend()
    assert await _payments(world, wallet) == []
    assert (await world.pay(wallet, to, "1", headers=_key("down"))).json()["status"] == "confirmed"
    assert await world.balance(to) == 1_000_000


async def test_reading_works_while_the_chain_is_away(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet()
    world.line.lose_requests = lambda _method: True

    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"] == "100.00"


@pytest.mark.proves("Idempotency: Unknown outcome")
async def test_payment_that_never_reached_the_chain_is_sent_again_under_its_key(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error = error_of(await world.pay(wallet, to, "1", headers=_key("unsent")), 503, "chain_unavailable")
    [row] = await _payments(world, wallet)
    assert (row["tx_id"], row["status"], row["on_chain_slot"]) == (error["tx_id"], "pending", None)
    world.line.mend()

    paid = (await world.pay(wallet, to, "1", headers=_key("unsent"))).json()

    assert (paid["tx_id"], paid["status"]) == (error["tx_id"], "confirmed")
    assert await world.balance(to) == 1_000_000


@pytest.mark.proves("Idempotency: Unknown outcome")
async def test_payment_whose_confirmation_was_lost_is_found_not_repeated(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_answers = lambda method: method == "sendTransaction"
    error = error_of(await world.pay(wallet, to, "1", headers=_key("lost")), 503, "chain_unavailable")
    world.line.mend()

    paid = (await world.pay(wallet, to, "1", headers=_key("lost"))).json()

    assert (paid["tx_id"], paid["status"]) == (error["tx_id"], "confirmed")
    assert await world.balance(to) == 1_000_000
    assert len(await _payments(world, wallet)) == 1


@pytest.mark.proves("Idempotency: Crashes")
async def test_restart_recovers_payments_sent_and_unsent(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    unsent = error_of(await world.pay(wallet, to, "1", headers=_key("one")), 503, "chain_unavailable")["tx_id"]
    world.line.mend()
    world.line.lose_answers = lambda method: method == "sendTransaction"
    sent = error_of(await world.pay(wallet, to, "2", headers=_key("two")), 503, "chain_unavailable")["tx_id"]

    await world.restart()
    while world.service.db.read_now(pending_attempts):
        await world.service.part(Recovery).recover()

    rows = {row["tx_id"]: row["status"] for row in await _payments(world, wallet)}
    assert rows == {unsent: "confirmed", sent: "confirmed"}
    assert await world.balance(to) == 3_000_000
    again = await world.pay(wallet, to, "1", headers=_key("one"))
    assert (again.json()["tx_id"], again.json()["status"]) == (unsent, "confirmed")
    assert await world.balance(to) == 3_000_000


@pytest.mark.proves("Transactions: pending to failed")
async def test_expired_payment_failed_and_its_key_pays_anew(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    expired = error_of(await world.pay(wallet, to, "1", headers=_key("late")), 503, "chain_unavailable")["tx_id"]
    world.line.mend()
    world.clock.ahead += EXPIRY_SECONDS
    await world.service.part(Recovery).recover()
    assert (await world.ok("GET", f"/v1/payments/{expired}"))["status"] == "failed"

    paid = (await world.pay(wallet, to, "1", headers=_key("late"))).json()

    assert paid["status"] == "confirmed"
    assert paid["tx_id"] != expired
    assert (await world.ok("GET", f"/v1/payments/{expired}"))["status"] == "failed"
    assert await world.balance(to) == 1_000_000


def _behind(method: str, result: Any) -> Any:
    """Answer status requests like a node that has seen no block yet, next to one that has."""
    if method == "getSignatureStatuses":
        return {"context": {"slot": 0}, "value": [None for _ in result["value"]]}
    return result


def _without_history(method: str, result: Any) -> Any:
    """Answer like a node that started from a snapshot: it has all accounts, but no transactions."""
    if method == "getSignatureStatuses":
        return {**result, "value": [None for _ in result["value"]]}
    return {"getSignaturesForAddress": [], "getTransaction": None}.get(method, result)


@pytest.mark.parametrize("alter", [_behind, _without_history])
async def test_payment_is_not_repeated_when_a_node_does_not_know_it(
    own_world: ServiceWorld, alter: Callable[[str, Any], Any]
) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.alter = alter
    world.line.lose_answers = lambda method: method == "sendTransaction"
    sent = error_of(await world.pay(wallet, to, "1", headers=_key("lost")), 503, "chain_unavailable")["tx_id"]
    world.line.lose_answers = lambda _method: False
    world.clock.ahead += EXPIRY_SECONDS

    await world.service.part(Recovery).recover()
    assert (await world.ok("GET", f"/v1/payments/{sent}"))["status"] == "pending"

    world.line.mend()
    paid = (await world.pay(wallet, to, "1", headers=_key("lost"))).json()
    assert (paid["tx_id"], paid["status"]) == (sent, "confirmed")
    assert await world.balance(to) == 1_000_000


async def test_payment_of_a_wallet_unknown_to_the_read_models_is_not_expired(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    unsent = error_of(await world.pay(wallet, to, "1"), 503, "chain_unavailable")["tx_id"]
    world.line.mend()
    world.clock.ahead += EXPIRY_SECONDS
    found = world.service.db.read_now(lambda conn: attempt(conn, unsent))
    assert found is not None

    elsewhere = replace(found, wallet_id="wal_unknown")
    assert (await world.service.submitter.look(elsewhere)).status == "pending"
    assert (await world.service.submitter.look(found)).status == "failed"


async def test_payment_too_old_to_land_is_not_resent_while_in_doubt(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.alter = _without_history
    world.line.lose_answers = lambda method: method == "sendTransaction"
    error_of(await world.pay(wallet, to, "1"), 503, "chain_unavailable")
    world.line.lose_answers = lambda _method: False
    world.clock.ahead += EXPIRY_SECONDS

    with calls_of(world.service) as calls:
        await world.service.part(Recovery).recover()

    assert calls == ["getEpochInfo", "getSignatureStatuses"]


async def test_change_that_only_the_indexer_knows_is_confirmed(own_world: ServiceWorld) -> None:
    world = own_world
    path = f"/v1/wallets/{(await world.wallet())['wallet_id']}"
    world.line.lose_answers = lambda method: method == "sendTransaction"
    error = error_of(await world.call("PATCH", path, {"status": "frozen"}), 503, "chain_unavailable")
    world.line.mend()
    await world.catch_up()
    world.clock.ahead += EXPIRY_SECONDS
    world.line.alter = _without_history

    assert await world.service.part(Recovery).recover() == 1

    found = world.service.db.read_now(lambda conn: attempt(conn, error["tx_id"]))
    assert found is not None
    assert (found.status, found.error) == ("confirmed", None)


async def test_final_block_is_read_before_the_status_that_it_judges(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error_of(await world.pay(wallet, to, "1"), 503, "chain_unavailable")
    world.line.mend()

    with calls_of(world.service) as calls:
        await world.service.part(Recovery).recover()

    assert calls[:2] == ["getEpochInfo", "getSignatureStatuses"]


@pytest.mark.proves("Transactions: pending to failed")
async def test_payment_fails_only_once_its_blockhash_expired_at_finalized(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    tx_id = error_of(await world.pay(wallet, to, "1"), 503, "chain_unavailable")["tx_id"]
    # The blockhash has expired for the newest block, but a finalized one could still hold the payment.
    world.clock.ahead += 62.0
    world.line.lose_requests = lambda method: method == "sendTransaction"

    with pytest.raises(Exception, match="does not answer"):
        await world.service.part(Recovery).recover()

    assert (await world.ok("GET", f"/v1/payments/{tx_id}"))["status"] == "pending"


@pytest.mark.proves("Transactions: pending to confirmed", "Limits: Wait for a confirmation", "Payment(status)")
async def test_unconfirmed_payment_is_answered_as_pending_and_confirmed_later(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.3)
    world.line.lose_requests = lambda method: method == "getSignatureStatuses"

    pending = (await world.pay(wallet, to, "1")).json()

    assert pending["status"] in {"pending", "confirmed"}
    world.line.mend()
    await world.service.part(Recovery).recover()
    await world.catch_up()
    assert (await world.ok("GET", f"/v1/payments/{pending['tx_id']}"))["status"] == "confirmed"
    assert await world.balance(to) == 1_000_000


@pytest.mark.proves("Idempotency: Answer pending")
async def test_repetition_of_a_pending_payment_is_told_what_became_of_it(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.3)
    world.line.lose_requests = lambda method: method == "getSignatureStatuses"
    pending = (await world.pay(wallet, to, "1", headers=_key("slow"))).json()
    assert pending["status"] == "pending"
    world.line.mend()

    again = [(await world.pay(wallet, to, "1", headers=_key("slow"))).json() for _ in range(2)]

    assert [(one["tx_id"], one["status"]) for one in again] == [(pending["tx_id"], "confirmed")] * 2
    assert await world.balance(to) == 1_000_000


async def test_wallet_creation_cut_off_goes_on_under_its_key(own_world: ServiceWorld) -> None:
    world = own_world
    body = {"agentId": "cut", "label": "Cut", "policyId": "pol_moderate"}
    world.line.lose_answers = lambda method: method == "sendTransaction"
    error_of(await world.call("POST", "/v1/wallets", body, headers=_key("cut")), 503, "chain_unavailable")
    world.line.mend()

    made = await world.ok("POST", "/v1/wallets", body, headers=_key("cut"))

    assert made["agent_id"] == "cut"


async def test_expired_wallet_creation_frees_the_agent_id(own_world: ServiceWorld) -> None:
    world = own_world
    body = {"agentId": "slow", "label": "Slow", "policyId": "pol_moderate"}
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error_of(await world.call("POST", "/v1/wallets", body), 503, "chain_unavailable")
    world.line.mend()
    error_of(await world.call("POST", "/v1/wallets", body), 409, "wallet_agent_id_conflict")
    world.clock.ahead += EXPIRY_SECONDS
    await world.service.part(Recovery).recover()

    assert (await world.ok("POST", "/v1/wallets", body))["agent_id"] == "slow"


async def test_long_allowlist_cut_off_half_way_goes_on_under_its_key(own_world: ServiceWorld) -> None:
    world = own_world
    recipients = [str(Keypair().pubkey()) for _ in range(80)]
    body = {"name": "Long", "allowedRecipients": recipients}
    sends = 0

    def third_send(method: str) -> bool:
        nonlocal sends
        sends += method == "sendTransaction"
        return method == "sendTransaction" and sends == 3

    world.line.lose_answers = third_send
    error_of(await world.call("POST", "/v1/policies", body, headers=_key("long")), 503, "chain_unavailable")
    world.line.mend()
    known = (await world.ok("GET", "/v1/policies"))["data"]
    assert "Long" not in {one["name"] for one in known}

    made = await world.ok("POST", "/v1/policies", body, headers=_key("long"))

    assert sorted(made["allowed_recipients"]) == sorted(recipients)
    names = [one["name"] for one in (await world.ok("GET", "/v1/policies"))["data"]]
    assert names.count("Long") == 1


async def test_same_change_made_twice_at_once_is_two_transactions(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"

    for status in ("frozen", "active", "frozen", "active"):
        assert (await world.ok("PATCH", path, {"status": status}))["status"] == status
