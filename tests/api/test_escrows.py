"""Escrows go through all their states: what each side holds and sees, and its events, at every step."""

import hashlib

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.support.escrows import A2A, OUTPUT, TASK, Agent, agent, of, shows_output, signs_output, terms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MONTH = 30 * 24 * 3600
_LOCKED = [("a2a_send", "10.00", "confirmed"), ("escrow_lock", "10.00", "confirmed")]
_REASON = {"reason": "The summary is about another report"}


async def _agents(world: ServiceWorld) -> tuple[Agent, Agent]:
    return await agent(world), await agent(world, funds=None)


async def _escrow(world: ServiceWorld, escrow: Json) -> Json:
    return await world.ok("GET", of(escrow))


# Creation


@pytest.mark.proves(
    "POST /v1/payments/a2a",
    "GET /v1/payments/a2a/{escrow_id}",
    "Escrows: new to locked",
    "CreateEscrow(fromWallet, toWallet, amount, taskDescription, memo)",
    "Escrow(escrow_id, id, from_wallet, to_wallet, amount, currency, tx_id, tx_signature, task_hash)",
    "Escrow(task_description)",
)
async def test_locking_takes_the_money_from_the_wallet_at_once(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)

    made = await paying.lock(receiving, timeoutSeconds=600, memo="report")

    assert made["escrow_id"].startswith("escrow_")
    assert (made["from_wallet"], made["to_wallet"]) == (paying.id, receiving.id)
    assert (made["amount"], made["status"]) == ("10.00", "locked")
    assert made["task_hash"] == f"sha256:{hashlib.sha256(TASK.encode()).hexdigest()}"
    assert made["task_description"] == TASK
    assert made["proof_types"] == ["output_hash", "signed_attestation", "webhook_callback"]
    assert made["expires_at"] > made["created_at"]
    assert [made[name] for name in ("released_amount", "output_hash", "dispute", "settled_at")] == [None] * 4
    assert await _escrow(world, made) == made
    assert (await paying.balance(), await receiving.balance()) == ("90.00", "0.00")
    assert await world.balance(made["chain_address"]) == 0
    assert await paying.rows() == _LOCKED
    assert await receiving.rows() == []
    lock = await world.ok("GET", f"/v1/transactions/{made['tx_id']}")
    assert (lock["type"], lock["tx_signature"]) == ("escrow_lock", made["tx_signature"])
    assert (lock["recipient"], lock["memo"], lock["policy_id"]) == (receiving.vault, "report", "pol_permissive")
    assert lock["agent_attestation_hash"].startswith("sha256:")
    assert await paying.events() == await receiving.events() == ["escrow.created"]


@pytest.mark.proves("event escrow.created")
async def test_event_of_the_creation_says_what_was_locked_for_whom(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)

    [event] = (await world.ok("GET", f"/v1/events?event=escrow.created&walletId={receiving.id}"))["data"]

    assert event["severity"] == "info"
    same = ("escrow_id", "from_wallet", "to_wallet", "amount", "chain_address", "expires_at", "tx_id", "tx_signature")
    assert {name: event[name] for name in same} == {name: made[name] for name in same}


@pytest.mark.proves("CreateEscrow(expectedOutputHash, proofTypes)", "Escrow(expected_output_hash, proof_types)")
async def test_terms_of_an_escrow_are_shown_as_they_were_agreed(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)

    made = await paying.lock(receiving, proofTypes=["webhook_callback"], expectedOutputHash=f"sha256:{OUTPUT.upper()}")

    assert made["proof_types"] == ["webhook_callback"]
    assert made["expected_output_hash"] == f"sha256:{OUTPUT}"


@pytest.mark.proves("Escrow(chain_address)")
async def test_each_escrow_of_a_wallet_gets_an_address_of_its_own(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)

    first, second = await paying.lock(receiving, "1"), await paying.lock(receiving, "1")

    assert len({one[name] for one in (first, second) for name in ("escrow_id", "chain_address", "tx_id")}) == 6
    assert await paying.balance() == "98.00"


async def test_operator_key_makes_an_escrow_without_a_session(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)

    made = await world.ok("POST", A2A, terms(paying, receiving), key=world.key("operator"))

    assert made["status"] == "locked"
    assert (await world.ok("GET", f"/v1/transactions/{made['tx_id']}"))["agent_attestation_hash"] is None


# Completion


@pytest.mark.proves(
    "POST /v1/payments/a2a/{escrow_id}/complete",
    "Escrows: locked to completed",
    "Escrows: completed to released",
    "proof output_hash",
    "event escrow.completed",
    "CompleteEscrow(proofType, outputUrl)",
    "Escrow(proof_type, output_hash, output_url, settled_at, settlement_signature)",
)
async def test_output_hash_of_the_receiving_agent_releases_the_escrow(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)

    done = await receiving.ok("POST", of(made, "complete"), {**shows_output(), "outputUrl": "https://files.example/1"})

    assert (done["status"], done["released_amount"], done["refunded_amount"]) == ("released", "10.00", "0.00")
    assert (done["proof_type"], done["output_hash"]) == ("output_hash", f"sha256:{OUTPUT}")
    assert done["output_url"] == "https://files.example/1"
    assert done["settled_at"] >= done["created_at"]
    assert await _escrow(world, made) == done
    assert (await paying.balance(), await receiving.balance()) == ("90.00", "10.00")
    assert await paying.rows() == _LOCKED
    assert await receiving.rows() == [("a2a_receive", "10.00", "confirmed"), ("escrow_release", "10.00", "confirmed")]
    happened = ["escrow.created", "escrow.completed", "escrow.released"]
    assert await paying.events() == await receiving.events() == happened


@pytest.mark.proves(
    "Escrows: completed to released", "event escrow.released", "Escrow(settled_at, settlement_signature)"
)
async def test_event_of_the_release_has_the_fields_of_the_interface(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    done = await receiving.ok("POST", of(made, "complete"), shows_output())

    [event] = (await world.ok("GET", f"/v1/events?event=escrow.released&walletId={paying.id}"))["data"]

    assert event["severity"] == "info"
    assert event["tx_signature"] == done["settlement_signature"]
    same = ("escrow_id", "from_wallet", "to_wallet", "amount")
    assert {name: event[name] for name in same} == {name: made[name] for name in same}
    assert event["timestamp"] >= made["created_at"]


@pytest.mark.proves("Escrow(surplus_amount)")
async def test_deposit_of_others_returns_to_the_wallet_and_shows(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    tokens = world.service.addresses.escrow_tokens(Pubkey.from_string(made["chain_address"]))
    await world.localnet.mint_usdc(tokens, 3_000_000)

    done = await receiving.ok("POST", of(made, "complete"), shows_output())

    assert (done["released_amount"], done["surplus_amount"]) == ("10.00", "3.00")
    assert (await paying.balance(), await receiving.balance()) == ("93.00", "10.00")
    assert ("escrow_refund", "3.00", "confirmed") in await paying.rows()
    [event] = (await world.ok("GET", f"/v1/events?event=escrow.released&walletId={paying.id}"))["data"]
    assert (event["amount"], event["surplus_amount"], event["surplus_to"]) == ("10.00", "3.00", paying.id)


@pytest.mark.parametrize("who", ["paying", "operator", "session of the receiver by an operator"])
async def test_output_hash_may_be_shown_by_either_side_and_the_operator(world: ServiceWorld, who: str) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    headers = {"Session-Token": receiving.session} if who.startswith("session") else {}
    key = paying.key if who == "paying" else world.key("operator")
    if who == "paying":
        headers = {"Session-Token": paying.session}

    done = await world.ok("POST", of(made, "complete"), shows_output(), key=key, headers=headers)

    assert done["status"] == "released"


@pytest.mark.proves("proof output_hash")
async def test_expected_output_is_released_by_its_hash(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving, expectedOutputHash=f"sha256:{OUTPUT}")

    done = await receiving.ok("POST", of(made, "complete"), shows_output(OUTPUT.upper()))

    assert done["output_hash"] == f"sha256:{OUTPUT}"


@pytest.mark.proves("POST /v1/payments/a2a/{escrow_id}/complete", "proof signed_attestation")
async def test_attestation_of_the_receiving_session_releases_whoever_brings_it(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving, proofTypes=["signed_attestation"])
    proof = signs_output(world, made, "signed_attestation", receiving.session_key)

    done = await paying.ok("POST", of(made, "complete"), proof)

    assert (done["status"], done["proof_type"]) == ("released", "signed_attestation")
    assert done["output_hash"] == f"sha256:{OUTPUT}"
    assert await receiving.balance() == "10.00"


async def test_attestation_with_a_session_newer_than_the_escrow_releases(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    receiving.session = await world.session(receiving.wallet)
    proof = signs_output(world, made, "signed_attestation", receiving.session_key)

    assert (await receiving.ok("POST", of(made, "complete"), proof))["status"] == "released"


@pytest.mark.proves("POST /v1/payments/a2a/{escrow_id}/complete", "proof webhook_callback")
async def test_callback_of_the_verifier_releases(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    verifier = world.service.signers.require_arbiter()

    done = await receiving.ok("POST", of(made, "complete"), signs_output(world, made, "webhook_callback", verifier))

    assert (done["status"], done["proof_type"]) == ("released", "webhook_callback")


@pytest.mark.proves("CreateEscrow(toWallet)", "Escrow(from_wallet, to_wallet)")
async def test_outside_address_is_paid_and_has_no_rows(world: ServiceWorld) -> None:
    paying, outside = await agent(world), Keypair()
    made = await paying.lock(str(outside.pubkey()))
    assert made["to_wallet"] == str(outside.pubkey())

    done = await paying.ok("POST", of(made, "complete"), signs_output(world, made, "signed_attestation", outside))

    assert done["status"] == "released"
    assert await world.balance(str(outside.pubkey())) == 10_000_000
    assert await paying.rows() == _LOCKED
    page = await world.ok("GET", f"/v1/transactions?recipient={outside.pubkey()}&limit=100")
    assert sorted(row["type"] for row in page["data"]) == ["a2a_send", "escrow_lock"]


# Timeout


@pytest.mark.proves(
    "Escrows: locked to refunded", "type escrow_refund", "event escrow.refunded", "CreateEscrow(timeoutSeconds)"
)
async def test_keeper_refunds_an_escrow_after_its_timeout(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving, timeoutSeconds=60)
    await world.later(61)

    assert await world.keeper().tick() == 1
    await world.catch_up()

    back = await _escrow(world, made)
    assert (back["status"], back["released_amount"], back["refunded_amount"]) == ("refunded", "0.00", "10.00")
    assert (back["output_hash"], back["proof_type"], back["dispute"]) == (None, None, None)
    assert (await paying.balance(), await receiving.balance()) == ("100.00", "0.00")
    assert await paying.rows() == [*_LOCKED, ("escrow_refund", "10.00", "confirmed")]
    assert await receiving.rows() == []
    assert await paying.events() == ["escrow.created", "escrow.refunded"]
    [event] = (await world.ok("GET", "/v1/events?event=escrow.refunded"))["data"]
    assert (event["severity"], event["reason"], event["amount"]) == ("info", "timeout", "10.00")


# Disputes


@pytest.mark.proves(
    "POST /v1/payments/a2a/{escrow_id}/dispute",
    "Escrows: locked to disputed",
    "event escrow.disputed",
    "DisputeEscrow(reason, evidence)",
    "Escrow(dispute)",
    "Dispute(reason, evidence, raised_by, raised_at, tx_signature)",
)
@pytest.mark.parametrize("side", ["paying", "receiving"])
async def test_either_agent_may_dispute(world: ServiceWorld, side: str) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    speaker = paying if side == "paying" else receiving

    now = await speaker.ok("POST", of(made, "dispute"), {**_REASON, "evidence": f"sha256:{OUTPUT}"})

    assert now["status"] == "disputed"
    assert now["dispute"]["reason"] == _REASON["reason"]
    assert now["dispute"]["evidence"] == f"sha256:{OUTPUT}"
    assert now["dispute"]["raised_by"] == speaker.id
    assert now["dispute"]["raised_at"] >= made["created_at"]
    assert await _escrow(world, made) == now
    assert (await paying.balance(), await receiving.balance()) == ("90.00", "0.00")
    assert await paying.rows() == _LOCKED
    assert await paying.events() == await receiving.events() == ["escrow.created", "escrow.disputed"]
    [event] = (await world.ok("GET", f"/v1/events?event=escrow.disputed&walletId={paying.id}"))["data"]
    assert (event["severity"], event["evidence"]) == ("warning", f"sha256:{OUTPUT}")


@pytest.mark.proves("DisputeEscrow(walletId)", "Dispute(raised_by)")
@pytest.mark.parametrize("side", ["paying", "receiving", None])
async def test_operator_disputes_for_the_side_it_names_else_for_the_paying_one(
    world: ServiceWorld, side: str | None
) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    named = {"paying": {"walletId": paying.id}, "receiving": {"walletId": receiving.id}, None: {}}[side]

    now = await world.ok("POST", of(made, "dispute"), {**_REASON, **named}, key=world.key("operator"))

    assert now["dispute"]["raised_by"] == (receiving.id if side == "receiving" else paying.id)
    assert now["dispute"]["evidence"] is None


@pytest.mark.proves(
    "POST /v1/payments/a2a/{escrow_id}/dispute/withdraw",
    "Escrows: disputed to locked",
    "event escrow.dispute_withdrawn",
)
@pytest.mark.parametrize("side", ["paying", "receiving"])
async def test_withdrawn_dispute_leaves_the_escrow_locked(own_world: ServiceWorld, side: str) -> None:
    # Given a dispute that was raised with ten minutes left
    world = own_world
    paying, receiving = await _agents(world)
    speaker, other = (paying, receiving) if side == "paying" else (receiving, paying)
    made = await paying.lock(receiving, timeoutSeconds=600)
    await speaker.ok("POST", of(made, "dispute"), _REASON)
    await world.later(3_600)

    # Then only its side withdraws it
    refused = await other.call("POST", of(made, "dispute/withdraw"), {})
    error_of(refused, 403, "insufficient_permissions")
    now = await speaker.ok("POST", of(made, "dispute/withdraw"), {})

    # And the receiver has about ten minutes again
    assert (now["status"], now["dispute"]) == ("locked", None)
    assert now["expires_at"] > made["expires_at"]
    assert await _escrow(world, made) == now
    assert await paying.events() == ["escrow.created", "escrow.disputed", "escrow.dispute_withdrawn"]
    [event] = (await world.ok("GET", f"/v1/events?event=escrow.dispute_withdrawn&walletId={receiving.id}"))["data"]
    assert (event["severity"], event["expires_at"]) == ("info", now["expires_at"])
    assert await world.keeper().tick() == 0
    assert (await receiving.ok("POST", of(made, "complete"), shows_output()))["status"] == "released"


@pytest.mark.proves("WithdrawDispute(walletId)")
async def test_operator_withdraws_a_dispute_of_its_wallets(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    await receiving.ok("POST", of(made, "dispute"), _REASON)

    now = await world.ok("POST", of(made, "dispute/withdraw"), {}, key=world.key("operator"))

    assert now["status"] == "locked"
    again = await world.call("POST", of(made, "dispute/withdraw"), {}, key=world.key("operator"))
    error_of(again, 422, "escrow_not_disputed")


@pytest.mark.proves(
    "POST /v1/payments/a2a/{escrow_id}/resolve",
    "Escrows: disputed to released",
    "Escrows: disputed to refunded",
    "Escrows: disputed to settled",
    "event escrow.refunded",
    "ResolveDispute(decision, releasedAmount)",
    "Escrow(released_amount, refunded_amount)",
)
@pytest.mark.parametrize(
    ("decision", "status", "released", "refunded"),
    [
        ({"decision": "release"}, "released", "10.00", "0.00"),
        ({"decision": "refund"}, "refunded", "0.00", "10.00"),
        ({"decision": "split", "releasedAmount": "3.5"}, "settled", "3.50", "6.50"),
    ],
    ids=["release", "refund", "split"],
)
async def test_arbiter_divides_what_is_disputed(
    world: ServiceWorld, decision: Json, status: str, released: str, refunded: str
) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    await paying.ok("POST", of(made, "dispute"), _REASON)

    end = await world.ok("POST", of(made, "resolve"), decision)

    assert (end["status"], end["released_amount"], end["refunded_amount"]) == (status, released, refunded)
    assert end["dispute"]["reason"] == _REASON["reason"]
    assert (end["output_hash"], end["proof_type"]) == (None, None)
    assert await _escrow(world, made) == end
    assert await receiving.balance() == released
    assert float(await paying.balance()) == 90 + float(refunded)
    back, there = refunded != "0.00", released != "0.00"
    assert await paying.rows() == _LOCKED + ([("escrow_refund", refunded, "confirmed")] if back else [])
    received = [("a2a_receive", released, "confirmed"), ("escrow_release", released, "confirmed")]
    assert await receiving.rows() == (received if there else [])
    told = ["escrow.released"] * there + ["escrow.refunded"] * back
    assert await paying.events() == ["escrow.created", "escrow.disputed", *told]
    events = (await world.ok("GET", f"/v1/events?walletId={paying.id}&severity=critical"))["data"]
    assert [(one["event"], one["reason"], one["amount"]) for one in events] == (
        [("escrow.refunded", "dispute", refunded)] if back else []
    )


@pytest.mark.proves("Escrows: disputed to refunded", "Limits: Dispute without a decision")
async def test_undecided_dispute_is_refunded_after_30_days_not_at_the_deadline(
    own_world: ServiceWorld,
) -> None:
    world = own_world
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving, timeoutSeconds=60)
    await paying.ok("POST", of(made, "dispute"), _REASON)
    await world.later(120)
    assert await world.keeper().tick() == 0

    await world.later(_MONTH)
    assert await world.keeper().tick() == 1
    await world.catch_up()

    assert (await _escrow(world, made))["status"] == "refunded"
    assert await paying.balance() == "100.00"
    [event] = (await world.ok("GET", "/v1/events?event=escrow.refunded"))["data"]
    assert (event["severity"], event["reason"]) == ("critical", "dispute_undecided")


# Lists


@pytest.mark.proves("GET /v1/payments/a2a", "Escrows: locked to completed", "GET /v1/payments/a2a(walletId, status)")
async def test_lists_narrow_to_a_side_and_a_status(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    third = await agent(world)
    first, second = await paying.lock(receiving, "1"), await paying.lock(third, "2")
    other = await third.lock(receiving, "3")
    await paying.ok("POST", of(second, "dispute"), _REASON)

    async def listed(query: str) -> list[str]:
        return [one["escrow_id"] for one in (await world.ok("GET", f"{A2A}?{query}"))["data"]]

    ids = [one["escrow_id"] for one in (first, second, other)]
    assert await listed(f"walletId={paying.id}") == [ids[1], ids[0]]
    assert await listed(f"walletId={third.id}") == [ids[2], ids[1]]
    assert await listed(f"walletId={receiving.id}") == [ids[2], ids[0]]
    assert await listed(f"walletId={third.id}&status=disputed") == [ids[1]]
    assert await listed(f"walletId={third.id}&status=locked") == [ids[2]]
    assert await listed(f"walletId={paying.id}&status=completed") == []
    page = await world.ok("GET", f"{A2A}?walletId={receiving.id}&limit=1")
    assert page["has_more"]
    assert await listed(f"walletId={receiving.id}&limit=1&cursor={page['next_cursor']}") == [ids[0]]


async def test_agent_lists_only_escrows_of_its_own_wallet(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    third = await agent(world)
    made = await paying.lock(receiving)
    await third.lock(str(Keypair().pubkey()))

    for one in (paying, receiving):
        page = await world.ok("GET", A2A, key=one.key)
        assert [found["escrow_id"] for found in page["data"]] == [made["escrow_id"]]


@pytest.mark.proves(
    "type a2a_send",
    "type a2a_receive",
    "type escrow_lock",
    "type escrow_release",
    "GET /v1/wallets/{wallet_id}/transactions(status, type, from, to)",
    "Transaction(type)",
)
async def test_transactions_are_listed_by_the_types_of_escrows(world: ServiceWorld) -> None:
    paying, receiving = await _agents(world)
    made = await paying.lock(receiving)
    await receiving.ok("POST", of(made, "complete"), shows_output())

    for one, kind, count in (
        (paying, "escrow_lock", 1),
        (paying, "a2a_send", 1),
        (paying, "escrow_refund", 0),
        (receiving, "escrow_release", 1),
        (receiving, "a2a_receive", 1),
    ):
        page = await world.ok("GET", f"/v1/wallets/{one.id}/transactions?type={kind}")
        assert len(page["data"]) == count
