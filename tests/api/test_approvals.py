"""Approvals: an agent's payment above the threshold needs the operator, who lets it pass once, or rejects it."""

import asyncio
import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection, func, insert, select

from app.chain.rules import Rules
from app.core.actors import Actor
from app.core.identifiers import approval_reference, new_reference
from app.core.timestamps import now_ms, parse_iso_ms
from app.server.housekeeping import Housekeeping
from app.store.approval_requests import MAX_PENDING, NewRequest, add_request, approval_requests
from app.store.attempts import pending_attempts
from app.submission.recovery import Recovery
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DAY = 24 * 3600
_THRESHOLD = "10"
#: Longer than a blockhash lives (150 slots of 0.4 s), its last block takes to finalize (32) and the margin (30).
_EXPIRY_SECONDS = 90.0


@dataclass
class Agent:
    """An agent whose wallet needs a co-signature above 10 USDC, and the recipient of its payments."""

    world: ServiceWorld
    wallet: Json
    policy: Json
    key: str
    session: str
    to: str

    async def pay(self, amount: str = "20", to: str | None = None, **options: Any) -> httpx.Response:
        return await self.world.pay(self.wallet, to or self.to, amount, key=self.key, session=self.session, **options)

    async def refused(self, amount: str = "20", to: str | None = None) -> str:
        """Make a payment that must be refused for lack of a co-signature, and return the approval's id."""
        error = error_of(await self.pay(amount, to), 402, "policy_violation")
        assert error["violation"]["rule"] == "require_co_sign"
        assert error["approval_id"].startswith("apr_")
        return str(error["approval_id"])


async def _agent(world: ServiceWorld, policy: Json | None = None, to: str | None = None, funds: str = "100") -> Agent:
    policy = policy or await world.policy(requireCoSign=_THRESHOLD)
    wallet = await world.wallet(policy["policy_id"], funds=funds)
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"
    session = str((await world.ok("POST", path, {"ttlSeconds": 7 * _DAY}))["session_token"])
    return Agent(world, wallet, policy, world.key("agent", wallet["wallet_id"]), session, to or await world.payee())


async def _get(world: ServiceWorld, approval_id: str) -> Json:
    return await world.ok("GET", f"/v1/approvals/{approval_id}")


async def _decide(world: ServiceWorld, approval_id: str, decision: str, **options: Any) -> httpx.Response:
    return await world.call("POST", f"/v1/approvals/{approval_id}/{decision}", {}, **options)


async def _approve(world: ServiceWorld, approval_id: str) -> Json:
    answer = await world.ok("POST", f"/v1/approvals/{approval_id}/approve", {})
    assert answer["status"] == "approved"
    return answer


async def _lamports(world: ServiceWorld, address: Pubkey) -> int:
    account = await world.service.chain.account(address)
    return 0 if account is None else account.lamports


async def _fee(world: ServiceWorld, signature: str) -> int:
    landed = await world.service.chain.call(
        "getTransaction", [signature, {"commitment": "confirmed", "encoding": "base64"}]
    )
    return int(landed["meta"]["fee"])


async def _edit_policy(world: ServiceWorld, policy: Json) -> None:
    """Give a policy a new version with the same threshold."""
    found = world.policy_record(policy["policy_id"])
    authority = world.service.signers.require_authority()
    change = world.build.update_policy(
        authority=authority.pubkey(),
        policy=Pubkey.from_string(found.address),
        expected_version=found.version,
        rules=Rules(require_co_sign=found.rules.require_co_sign),
    )
    assert (await world.land([change], authority)).err is None
    await world.catch_up()


async def _switch(world: ServiceWorld, wallet: Json, policy: Json) -> None:
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"policyId": policy["policy_id"]})


# From the refusal to the payment


@pytest.mark.proves(
    "POST /v1/approvals/{approval_id}/approve",
    "Approval(approval_id, id, status, chain_address, decided_by, decided_at)",
    "PolicyViolationBody(approval_id)",
)
async def test_refused_payment_passes_once_when_an_operator_has_approved_it(world: ServiceWorld) -> None:
    # Given an agent whose payment is refused for lack of a co-signature
    agent, operator = await _agent(world), world.key("operator")
    approval_id = await agent.refused()
    asked = await _get(world, approval_id)
    assert (asked["status"], asked["wallet_id"]) == ("pending", agent.wallet["wallet_id"])
    assert (asked["recipient"], asked["recipient_address"], asked["amount"]) == (agent.to, agent.to, "20.00")
    assert (asked["policy_id"], asked["policy_version"]) == (agent.policy["policy_id"], agent.policy["version"])
    assert (asked["decided_by"], asked["decided_at"]) == (None, None)

    # When an operator approves it, the Approval is on the chain for 24 hours
    answer = await _decide(world, approval_id, "approve", key=operator)
    assert answer.status_code == 200, answer.text
    approved = answer.json()
    assert approved == await _get(world, approval_id)
    assert approved["status"] == "approved"
    assert approved["decided_by"]["type"] == "key"
    assert approved["decided_by"]["id"].startswith("key_")
    left = parse_iso_ms(approved["expires_at"]) - now_ms()
    assert (_DAY - 60) * 1000 < left <= _DAY * 1000
    address = Pubkey.from_string(approved["chain_address"])
    vault = Pubkey.from_string(agent.wallet["chain_address"])
    assert address == world.service.addresses.approval(vault, approval_reference(approval_id))
    rent = await _lamports(world, address)
    assert rent > 0

    # Then the same payment passes, closes the Approval and gives its rent back to the fee payer
    payer = world.service.signers.fee_payer_address
    before = await _lamports(world, payer)
    paid = (await agent.pay()).json()
    assert (paid["status"], paid["policy_triggered"]) == ("confirmed", True)
    assert await world.balance(agent.to) == 20_000_000
    assert await _lamports(world, address) == 0
    assert await _lamports(world, payer) == before + rent - await _fee(world, paid["tx_signature"])
    assert (await _get(world, approval_id))["status"] == "used"

    # But not a second time
    assert await agent.refused() != approval_id
    assert await world.balance(agent.to) == 20_000_000


async def test_equal_payments_ask_for_one_approval_and_others_for_their_own(world: ServiceWorld) -> None:
    agent = await _agent(world)
    other = await _agent(world, agent.policy, agent.to)

    first = await agent.refused()
    ids = [await agent.refused("20.00"), await agent.refused("20.000001"), await agent.refused(to=await world.payee())]
    ids += [await other.refused()]

    assert ids[0] == first
    assert len({first, *ids}) == 4
    await _approve(world, first)
    assert await agent.refused("20.000001") == ids[1]


async def test_payments_refused_at_once_ask_for_one_approval(world: ServiceWorld) -> None:
    agent = await _agent(world)

    ids = await asyncio.gather(*(agent.refused() for _ in range(5)))

    assert len(set(ids)) == 1


@pytest.mark.proves("Approval(threshold, requested_by, memo)")
async def test_approval_says_who_asks_and_what_for(world: ServiceWorld) -> None:
    agent = await _agent(world)
    refused = error_of(await agent.pay(body={"memo": "Invoice 7"}), 402, "policy_violation")

    asked = await _get(world, refused["approval_id"])
    assert (asked["threshold"], asked["memo"]) == ("10.00", "Invoice 7")
    assert asked["requested_by"]["type"] == "key"
    keys, wallet_id = (await world.ok("GET", "/v1/keys"))["data"], agent.wallet["wallet_id"]
    assert [asked["requested_by"]["id"]] == [one["key_id"] for one in keys if one["wallet_id"] == wallet_id]

    # What an operator has read is not changed under their eyes: neither by another request nor by the policy
    again = error_of(await agent.pay(body={"memo": "Invoice 8"}), 402, "policy_violation")
    assert again["approval_id"] == asked["approval_id"]
    await world.ok("PATCH", f"/v1/policies/{agent.policy['policy_id']}", {"requireCoSign": "15"})
    assert await _get(world, asked["approval_id"]) == {**asked, "outdated": True}
    # … and what the new version refuses is another request.
    assert await agent.refused() != asked["approval_id"]


@pytest.mark.proves("Approval(wallet_id, amount, currency)")
async def test_approval_is_for_its_wallet_recipient_and_amount_alone(world: ServiceWorld) -> None:
    agent = await _agent(world)
    other = await _agent(world, agent.policy, agent.to)
    approval_id = await agent.refused()
    await _approve(world, approval_id)

    await agent.refused("20.000001")
    await agent.refused("19.999999")
    await agent.refused(to=await world.payee())
    await other.refused()

    assert (await _get(world, approval_id))["status"] == "approved"
    assert (await agent.pay()).json()["status"] == "confirmed"


@pytest.mark.proves("Approval(type)")
async def test_approval_of_an_escrow_lets_no_payment_pass(world: ServiceWorld) -> None:
    agent, receiving = await _agent(world), await world.wallet(funds=None)
    body = {"fromWallet": agent.wallet["wallet_id"], "toWallet": receiving["wallet_id"], "amount": "20"}
    body |= {"currency": "USDC", "taskDescription": "Work"}

    async def lock() -> httpx.Response:
        headers = {"Session-Token": agent.session}
        return await world.call("POST", "/v1/payments/a2a", body, key=agent.key, headers=headers)

    to_lock = error_of(await lock(), 402, "policy_violation")["approval_id"]
    assert (await _approve(world, to_lock))["type"] == "escrow"
    to_pay = await agent.refused(to=receiving["wallet_id"])
    assert to_pay != to_lock
    assert (await _get(world, to_pay))["type"] == "payment"

    assert (await lock()).json()["status"] == "locked"
    assert (await _get(world, to_lock))["status"] == "used"
    await agent.refused(to=receiving["wallet_id"])


@pytest.mark.proves(
    "Approval(escrow_terms)",
    "EscrowTerms(hash, task_description, task_hash, output_commitment, proof_types, timeout_seconds)",
    "EscrowTerms(verifier, arbiter)",
)
async def test_approval_of_an_escrow_is_for_its_terms_alone(world: ServiceWorld) -> None:
    agent, receiving = await _agent(world), await world.wallet(funds=None)
    body = {"fromWallet": agent.wallet["wallet_id"], "toWallet": receiving["wallet_id"], "amount": "20"}
    body |= {"currency": "USDC", "taskDescription": "Work", "timeoutSeconds": 600}

    async def lock(**changed: Any) -> httpx.Response:
        headers = {"Session-Token": agent.session}
        return await world.call("POST", "/v1/payments/a2a", {**body, **changed}, key=agent.key, headers=headers)

    approval_id = error_of(await lock(), 402, "policy_violation")["approval_id"]
    terms = (await _approve(world, approval_id))["escrow_terms"]
    assert (terms["task_description"], terms["timeout_seconds"]) == ("Work", 600)
    assert terms["task_hash"] == f"sha256:{hashlib.sha256(b'Work').hexdigest()}"
    assert terms["hash"].startswith("sha256:")
    for changed in ({"taskDescription": "Other work"}, {"timeoutSeconds": 60}, {"proofTypes": ["output_hash"]}):
        other = error_of(await lock(**changed), 402, "policy_violation")["approval_id"]
        assert other != approval_id
    assert (await lock()).json()["status"] == "locked"
    assert (await _get(world, approval_id))["status"] == "used"


async def test_approvals_of_one_wallet_can_be_given_at_once(world: ServiceWorld) -> None:
    agent = await _agent(world)
    asked = [await agent.refused(amount=amount) for amount in ("20", "21", "22")]

    answers = await asyncio.gather(*(_decide(world, one, "approve") for one in asked))

    assert [one.status_code for one in answers] == [200] * 3, [one.text for one in answers]


async def test_one_approval_lets_one_of_many_equal_payments_pass(world: ServiceWorld) -> None:
    agent = await _agent(world)
    await _approve(world, await agent.refused())

    answers = await asyncio.gather(*(agent.pay() for _ in range(6)))

    assert sorted(one.status_code for one in answers) == [200] + [402] * 5, [one.text for one in answers]
    assert await world.balance(agent.to) == 20_000_000


async def test_approved_payment_opens_an_account_for_a_recipient_without_one(world: ServiceWorld) -> None:
    agent = await _agent(world, to=str(Keypair().pubkey()))

    await _approve(world, await agent.refused())

    assert (await agent.pay()).json()["status"] == "confirmed"
    assert await world.balance(agent.to) == 20_000_000


@pytest.mark.proves("GET /v1/approvals/{approval_id}", "Approval(recipient, recipient_address)")
async def test_recipient_is_shown_as_it_was_named_and_approved_as_its_address(world: ServiceWorld) -> None:
    agent, shop = await _agent(world), f"shop-{now_ms()}.example.com"
    await world.ok("PUT", f"/v1/recipients/{shop}", {"address": agent.to})

    approval_id = await agent.refused(to=shop)

    shown = await _get(world, approval_id)
    assert (shown["recipient"], shown["recipient_address"]) == (shop, agent.to)
    await _approve(world, approval_id)
    assert (await agent.pay()).json()["status"] == "confirmed"


async def test_approval_opens_no_other_rule(world: ServiceWorld) -> None:
    agent = await _agent(world, await world.policy(requireCoSign=_THRESHOLD, maxPerDay="30"))
    approval_id = await agent.refused("25")
    await _approve(world, approval_id)
    assert (await agent.pay("10")).status_code == 200

    error = error_of(await agent.pay("25"), 402, "policy_violation")

    assert error["violation"]["rule"] == "max_per_day"
    assert "approval_id" not in error
    assert (await _get(world, approval_id))["status"] == "approved"


async def test_event_of_the_refusal_names_the_approval(world: ServiceWorld) -> None:
    agent = await _agent(world)

    approval_id = await agent.refused()

    path = f"/v1/events?walletId={agent.wallet['wallet_id']}&event=transaction.blocked"
    assert [one["approval_id"] for one in (await world.ok("GET", path))["data"]] == [approval_id]


async def test_operators_own_payment_asks_for_no_approval(world: ServiceWorld) -> None:
    agent = await _agent(world)

    alone = error_of(await world.pay(agent.wallet, agent.to, "20"), 402, "policy_violation")

    assert alone["violation"]["rule"] == "require_co_sign"
    assert "approval_id" not in alone
    assert (await world.ok("GET", f"/v1/approvals?walletId={agent.wallet['wallet_id']}"))["data"] == []


async def test_simulation_counts_an_approval_for_the_agent(world: ServiceWorld) -> None:
    agent = await _agent(world)
    body = {"walletId": agent.wallet["wallet_id"], "to": agent.to, "amount": "20"}

    async def allowed(**options: Any) -> bool:
        verdict = await world.ok("POST", "/v1/payments/simulate", body, **options)
        [rule] = [one for one in verdict["rules"] if one["rule"] == "require_co_sign"]
        assert rule["passed"] == verdict["allowed"]
        return bool(verdict["allowed"])

    assert not await allowed(key=agent.key)
    await _approve(world, await agent.refused())
    assert await allowed(key=agent.key)
    assert await allowed(key=agent.key, headers={"Session-Token": agent.session})
    # The operator's own payment needs the agent's signature next to its own, whatever was approved
    assert not await allowed()
    assert (await agent.pay()).status_code == 200
    assert not await allowed(key=agent.key)


# Policies


@pytest.mark.proves("error approval_outdated", "Approval(policy_id, policy_version)")
async def test_new_version_of_the_policy_makes_an_approval_unusable(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approved, undecided = await agent.refused(), await agent.refused("30")
    await _approve(world, approved)

    await _edit_policy(world, agent.policy)

    renewed = await agent.refused()
    assert renewed != approved
    changed = await world.ok("GET", f"/v1/policies/{agent.policy['policy_id']}")
    assert (await _get(world, renewed))["policy_version"] == changed["version"] > agent.policy["version"]
    error_of(await _decide(world, undecided, "approve"), 422, "approval_outdated")
    await _approve(world, renewed)
    assert (await agent.pay()).json()["status"] == "confirmed"
    assert (await _get(world, approved))["status"] == "approved"
    assert await world.balance(agent.to) == 20_000_000


async def test_approval_is_suspended_while_another_policy_is_attached(
    world: ServiceWorld,
) -> None:
    agent, other = await _agent(world), await world.policy(requireCoSign="5")
    approved, undecided = await agent.refused(), await agent.refused("30")
    await _approve(world, approved)

    # The other policy has the same version, but it is not the one that the operator saw
    await _switch(world, agent.wallet, other)
    assert await agent.refused() != approved
    error_of(await _decide(world, undecided, "approve"), 422, "approval_outdated")

    await _switch(world, agent.wallet, agent.policy)
    assert (await agent.pay()).json()["status"] == "confirmed"
    assert (await _get(world, approved))["status"] == "used"
    await _approve(world, undecided)
    assert (await agent.pay("30")).json()["status"] == "confirmed"


async def test_outside_approval_for_another_policy_blocks_nothing(world: ServiceWorld) -> None:
    agent, other = await _agent(world), await world.policy(requireCoSign="5")
    operator = world.service.signers.operator
    await _switch(world, agent.wallet, other)
    approve = world.build.approve_payment(
        payer=world.service.signers.fee_payer_address,
        operator=operator.pubkey(),
        vault=Pubkey.from_string(agent.wallet["chain_address"]),
        policy=Pubkey.from_string(world.policy_record(other["policy_id"]).address),
        reference=new_reference(),
        recipient=Pubkey.from_string(agent.to),
        amount=20_000_000,
        expires_at=int(world.clock()) + 600,
    )
    assert (await world.land([approve], operator)).err is None
    await _switch(world, agent.wallet, agent.policy)
    await world.catch_up()

    await _approve(world, await agent.refused())

    assert (await agent.pay()).json()["status"] == "confirmed"


# Time


@pytest.mark.proves("POST /v1/approvals/{approval_id}/approve", "Limits: Approval", "Approval(expires_at)")
async def test_approval_ends_a_day_after_it_was_given(own_world: ServiceWorld) -> None:
    world = own_world
    agent = await _agent(world)
    approved = await agent.refused()
    await _approve(world, approved)
    world.clock.ahead += _DAY - 60
    assert (await agent.pay()).json()["status"] == "confirmed"
    late = await agent.refused()
    await _approve(world, late)

    world.clock.ahead += _DAY

    # The chain's clock decides: the Approval has expired, and the payment requests another
    assert await agent.refused() != late
    assert await world.balance(agent.to) == 20_000_000


@pytest.mark.proves("Limits: Approval", "Approval(expires_at)")
async def test_request_can_be_approved_for_a_day(own_world: ServiceWorld) -> None:
    world = own_world
    agent = await _agent(world)
    early, late = await agent.refused("20"), await agent.refused("30")
    asked = parse_iso_ms((await _get(world, late))["created_at"])
    assert parse_iso_ms((await _get(world, late))["expires_at"]) == asked + _DAY * 1000

    await world.later(_DAY - 60)
    await _approve(world, late)
    await world.later(60)

    assert (await _get(world, early))["status"] == "expired"
    for decision in ("approve", "reject"):
        error = error_of(await _decide(world, early, decision), 422, "approval_not_pending")
        assert "expired" in error["message"]
    assert await agent.refused("20") != early


async def test_expired_approval_is_not_approved_again_and_its_rent_comes_back(
    own_world: ServiceWorld,
) -> None:
    world = own_world
    agent = await _agent(world)
    approval_id = await agent.refused()
    address = Pubkey.from_string((await _approve(world, approval_id))["chain_address"])

    await world.later(_DAY)

    assert (await _get(world, approval_id))["status"] == "expired"
    error_of(await _decide(world, approval_id, "approve"), 422, "approval_not_pending")
    assert await _lamports(world, address) > 0
    assert (await _decide(world, approval_id, "reject")).json()["status"] == "rejected"
    assert await _lamports(world, address) == 0


# Rejecting


@pytest.mark.proves("POST /v1/approvals/{approval_id}/reject", "Approval(status)")
async def test_rejected_request_leaves_nothing_on_the_chain_and_asks_anew(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approval_id = await agent.refused()
    signatures, key = await world.signatures(agent.wallet["chain_address"]), {"Idempotency-Key": approval_id}

    rejected = (await _decide(world, approval_id, "reject", headers=key)).json()

    assert (await _decide(world, approval_id, "reject", headers=key)).headers["idempotent-replayed"] == "true"
    assert rejected == await _get(world, approval_id)
    assert rejected["status"] == "rejected"
    assert rejected["decided_by"]["id"].startswith("key_")
    assert await world.signatures(agent.wallet["chain_address"]) == signatures
    error = error_of(await _decide(world, approval_id, "approve"), 422, "approval_not_pending")
    assert "rejected" in error["message"]
    assert (await _decide(world, approval_id, "reject")).json() == rejected
    assert await agent.refused() != approval_id


async def test_rejecting_what_was_approved_closes_it_on_the_chain(world: ServiceWorld) -> None:
    agent, payer = await _agent(world), world.service.signers.fee_payer_address
    approval_id = await agent.refused()
    address = Pubkey.from_string((await _approve(world, approval_id))["chain_address"])
    rent, before = await _lamports(world, address), await _lamports(world, payer)

    rejected = (await _decide(world, approval_id, "reject")).json()

    assert rejected["status"] == "rejected"
    assert await _lamports(world, address) == 0
    [signature, *_] = await world.signatures(agent.wallet["chain_address"])
    assert await _lamports(world, payer) == before + rent - await _fee(world, signature)
    error_of(await _decide(world, approval_id, "approve"), 422, "approval_not_pending")
    assert await agent.refused() != approval_id
    assert await world.balance(agent.to) == 0


@pytest.mark.proves("error approval_not_pending")
async def test_used_approval_is_neither_approved_nor_rejected(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approval_id = await agent.refused()
    await _approve(world, approval_id)
    assert (await agent.pay()).status_code == 200

    for decision in ("approve", "reject"):
        error = error_of(await _decide(world, approval_id, decision), 422, "approval_not_pending")
        assert "used" in error["message"]


async def test_approval_of_an_archived_wallet_is_refused_and_can_be_rejected(world: ServiceWorld) -> None:
    agent = await _agent(world, funds="1")
    given, asked = await agent.refused(), await agent.refused("30")
    await _approve(world, given)
    path = f"/v1/wallets/{agent.wallet['wallet_id']}"
    await world.ok("POST", f"{path}/withdraw", {"amount": "all"})
    await world.ok("DELETE", path)

    error_of(await _decide(world, asked, "approve"), 422, "wallet_archived")

    for approval_id in (given, asked):
        assert (await _decide(world, approval_id, "reject")).json()["status"] == "rejected"


# Repetitions and lost answers


async def test_decisions_are_repeated_without_effect(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approval_id = await agent.refused()

    for decision in ("approve", "reject"):
        key = {"Idempotency-Key": f"{decision} {approval_id}"}
        first = await _decide(world, approval_id, decision, headers=key)
        signatures = await world.signatures(agent.wallet["chain_address"])
        again = await _decide(world, approval_id, decision, headers=key)
        assert first.status_code == 200, first.text
        assert again.json() == first.json()
        assert again.headers["idempotent-replayed"] == "true"
        assert await world.signatures(agent.wallet["chain_address"]) == signatures
    conflict = await _decide(world, approval_id, "approve", headers=key)
    error_of(conflict, 409, "idempotency_conflict")


async def test_approvals_at_once_make_one_on_the_chain(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approval_id = await agent.refused()
    before = len(await world.signatures(agent.wallet["chain_address"]))

    answers = await asyncio.gather(*(_decide(world, approval_id, "approve") for _ in range(4)))

    assert [one.json()["status"] for one in answers] == ["approved"] * 4, [one.text for one in answers]
    assert len(await world.signatures(agent.wallet["chain_address"])) == before + 1


async def test_opposite_decisions_at_once_end_in_one_of_them(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approval_id = await agent.refused()

    answers = await asyncio.gather(*(_decide(world, approval_id, one) for one in ("approve", "reject", "approve")))

    shown = await _get(world, approval_id)
    assert shown["status"] == "rejected"
    assert {one.status_code for one in answers} <= {200, 422}
    assert await _lamports(world, Pubkey.from_string(shown["chain_address"])) == 0


@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_decision_cut_off_goes_on_under_its_key(own_world: ServiceWorld, lost: str, decision: str) -> None:
    world, key = own_world, {"Idempotency-Key": "cut"}
    agent = await _agent(world)
    approval_id = await agent.refused()
    if decision == "reject":
        await _approve(world, approval_id)
    if lost == "request":
        world.line.lose_requests = lambda method: method == "sendTransaction"
    else:
        world.line.lose_answers = lambda method: method == "sendTransaction"
    error_of(await _decide(world, approval_id, decision, headers=key), 503, "chain_unavailable")
    world.line.mend()

    answer = await _decide(world, approval_id, decision, headers=key)

    assert answer.json()["status"] == {"approve": "approved", "reject": "rejected"}[decision]
    assert world.service.db.read_now(pending_attempts) == []


async def test_rejection_waits_until_a_lost_approval_can_no_longer_land(own_world: ServiceWorld) -> None:
    world = own_world
    agent = await _agent(world)
    approval_id, other = await agent.refused(), await agent.refused("30")
    world.line.lose_requests = lambda method: method == "sendTransaction"
    lost = error_of(await _decide(world, approval_id, "approve"), 503, "chain_unavailable")["tx_id"]
    world.line.mend()

    refused = error_of(await _decide(world, approval_id, "reject"), 503, "chain_unavailable")

    assert refused["tx_id"] == lost
    assert (await _get(world, approval_id))["status"] == "pending"
    # Other approvals can be decided meanwhile
    assert (await _decide(world, other, "reject")).json()["status"] == "rejected"
    # Recovery does not send it behind the operator's back
    sent = world.line.methods.count("sendTransaction")
    await world.service.part(Recovery).recover()
    assert world.line.methods.count("sendTransaction") == sent
    world.clock.ahead += _EXPIRY_SECONDS
    assert (await _decide(world, approval_id, "reject")).json()["status"] == "rejected"
    assert await agent.refused() != approval_id


async def test_approvals_outlive_a_restart(own_world: ServiceWorld) -> None:
    world = own_world
    agent = await _agent(world)
    asked, approved = await agent.refused("30"), await agent.refused()
    before = [await _get(world, asked), await _approve(world, approved)]

    await world.restart()

    assert [await _get(world, asked), await _get(world, approved)] == before
    assert await agent.refused("30") == asked
    assert (await agent.pay()).json()["status"] == "confirmed"


@pytest.mark.proves("Limits: Undecided approvals of a wallet")
async def test_oldest_of_a_thousand_undecided_requests_gives_way(world: ServiceWorld) -> None:
    agent, other = await _agent(world), await _agent(world)
    elsewhere, approved, oldest, older = (
        await other.refused(),
        await agent.refused("21"),
        await agent.refused("22"),
        await agent.refused("23"),
    )
    await _approve(world, approved)

    # Given a wallet with as many requests as it may have
    def fill(connection: Connection) -> None:
        [row] = connection.execute(select(approval_requests).where(approval_requests.c.approval_id == older))
        filled = [
            dict(row._mapping)
            | {"approval_id": f"apr_{number}", "address": f"filled {number}", "amount": number + 1}
            | {"requested_by": Actor("key", f"key_{number % 8}")}
            for number in range(MAX_PENDING - 2)
        ]
        connection.execute(insert(approval_requests), [one | {"created_at": now_ms()} for one in filled])

    await world.service.db.write(fill)
    assert (await _get(world, oldest))["status"] == "pending"

    # When it requests one more
    newest = await agent.refused("24")

    # Then only the oldest undecided one is gone
    error_of(await world.call("GET", f"/v1/approvals/{oldest}"), 404, "approval_not_found")
    for kept in (older, newest, elsewhere, "apr_0"):
        assert (await _get(world, kept))["status"] == "pending"
    assert (await _get(world, approved))["status"] == "approved"
    assert await agent.refused("24") == newest
    assert (await agent.pay("21")).json()["status"] == "confirmed"


@pytest.mark.proves("Limits: Undecided approvals of a wallet")
async def test_key_replaces_only_its_own_requests_beyond_a_quarter(world: ServiceWorld) -> None:
    agent = await _agent(world)
    own = await agent.refused("21")

    # Given another key of the same wallet with as many requests as one key may have
    def fill(connection: Connection) -> None:
        [row] = connection.execute(select(approval_requests).where(approval_requests.c.approval_id == own))
        filled = [
            dict(row._mapping)
            | {"approval_id": f"apr_own_{number}", "address": f"own {number}", "amount": number + 1}
            | {"requested_by": Actor("key", "key_noisy"), "created_at": now_ms()}
            for number in range(MAX_PENDING // 4 + 5)
        ]
        connection.execute(insert(approval_requests), filled)
        noisy = NewRequest(**{one.name: getattr(row, one.name) for one in fields(NewRequest)})
        more: dict[str, Any] = {
            "approval_id": "apr_more",
            "address": "more",
            "amount": 10**9,
            "created_at": now_ms() + 1,
        }
        add_request(connection, replace(noisy, requested_by=Actor("key", "key_noisy"), **more))

    await world.service.db.write(fill)

    assert (await _get(world, own))["status"] == "pending"
    kept = world.service.db.read_now(
        lambda conn: conn.scalar(
            select(func.count()).where(approval_requests.c.requested_by == Actor("key", "key_noisy"))
        )
    )
    assert kept == MAX_PENDING // 4


async def test_requests_that_nobody_decided_on_are_forgotten_after_90_days(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approved, rejected, undecided = await agent.refused("21"), await agent.refused("22"), await agent.refused("23")
    await _approve(world, approved)
    assert (await _decide(world, rejected, "reject")).status_code == 200
    asked = parse_iso_ms((await _get(world, undecided))["created_at"])

    def rounds(now: int) -> Housekeeping:
        return Housekeeping(world.service.db, interval=60, days=90, requests=0, chain_clock=lambda: now)

    await rounds(asked + 90 * _DAY * 1000).tick()
    assert (await _get(world, undecided))["approval_id"] == undecided
    await rounds(asked + 90 * _DAY * 1000 + 1).tick()

    error_of(await world.call("GET", f"/v1/approvals/{undecided}"), 404, "approval_not_found")
    assert (await _get(world, approved))["status"] == "approved"
    assert (await _get(world, rejected))["status"] == "rejected"


# Permissions and lists


async def test_agents_and_viewers_decide_nothing(world: ServiceWorld) -> None:
    agent = await _agent(world)
    approval_id = await agent.refused()

    for key in (agent.key, world.key("viewer")):
        for decision in ("approve", "reject"):
            error_of(await _decide(world, approval_id, decision, key=key), 403, "insufficient_permissions")
    assert (await _get(world, approval_id))["status"] == "pending"


async def test_agent_sees_its_own_wallets_approvals_only(world: ServiceWorld) -> None:
    agent, other = await _agent(world), await _agent(world)
    own, theirs = await agent.refused(), await other.refused()

    listed = await world.ok("GET", "/v1/approvals", key=agent.key)

    assert [one["approval_id"] for one in listed["data"]] == [own]
    assert (await world.ok("GET", f"/v1/approvals/{own}", key=agent.key))["approval_id"] == own
    error_of(await world.call("GET", f"/v1/approvals/{theirs}", key=agent.key), 404, "approval_not_found")
    path = f"/v1/approvals?walletId={other.wallet['wallet_id']}"
    error_of(await world.call("GET", path, key=agent.key), 403, "insufficient_permissions")
    assert (await world.ok("GET", f"/v1/approvals/{theirs}", key=world.key("viewer")))["approval_id"] == theirs


@pytest.mark.proves("GET /v1/approvals/{approval_id}", "error approval_not_found")
async def test_unknown_approval_and_that_of_another_organisation_are_not_found(world: ServiceWorld) -> None:
    agent, neighbour = await _agent(world), await world.organisation("approvals-neighbour")
    approval_id, theirs = await agent.refused(), world.key("admin", org=neighbour)

    for identifier, key in ((approval_id, theirs), ("apr_unknown", None), (f"{approval_id}x", None)):
        error_of(await world.call("GET", f"/v1/approvals/{identifier}", key=key), 404, "approval_not_found")
        for decision in ("approve", "reject"):
            error_of(await _decide(world, identifier, decision, key=key), 404, "approval_not_found")
    assert (await world.ok("GET", "/v1/approvals", key=theirs))["data"] == []


@pytest.mark.proves("GET /v1/approvals", "GET /v1/approvals(status, walletId)", "Approval(created_at)")
async def test_list_is_paged_newest_first_and_narrowed_by_status_and_wallet(world: ServiceWorld) -> None:
    agent, other = await _agent(world), await _agent(world)
    ids = [await agent.refused(f"2{number}") for number in range(5)]
    elsewhere = await other.refused()
    await _approve(world, ids[0])
    assert (await _decide(world, ids[1], "reject")).status_code == 200
    await _approve(world, ids[2])
    assert (await agent.pay("22")).status_code == 200
    path = f"/v1/approvals?walletId={agent.wallet['wallet_id']}"

    async def found(query: str) -> list[str]:
        return [one["approval_id"] for one in (await world.ok("GET", f"{path}{query}"))["data"]]

    assert await found("") == ids[::-1]
    assert await found("&status=approved") == [ids[0]]
    assert await found("&status=rejected") == [ids[1]]
    assert await found("&status=used") == [ids[2]]
    assert await found("&status=pending") == [ids[4], ids[3]]
    assert await found("&status=expired") == []
    first = await world.ok("GET", f"{path}&limit=2")
    assert ([one["approval_id"] for one in first["data"]], first["has_more"]) == ([ids[4], ids[3]], True)
    assert await found(f"&limit=3&cursor={first['next_cursor']}") == [ids[2], ids[1], ids[0]]
    everything = (await world.ok("GET", "/v1/approvals?limit=1"))["data"]
    assert [one["approval_id"] for one in everything] == [elsewhere]
    error_of(await world.call("GET", f"{path}&status=open"), 400, "invalid_request")
    error_of(await world.call("GET", f"{path}&cursor=nonsense"), 400, "invalid_request")
    error_of(await world.call("GET", "/v1/approvals?walletId=wal_unknown"), 404, "wallet_not_found")
