"""A policy judges an escrow like a payment: limits, allowlists, co-signatures and approvals."""

import pytest

from tests.support.escrows import A2A, Agent, agent, of, shows_output, terms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _refused(paying: Agent, to: Agent | str, amount: str) -> Json:
    return error_of(await paying.call("POST", A2A, terms(paying, to, amount)), 402, "policy_violation")


@pytest.mark.proves("Conventions: Refusals", "error policy_violation")
async def test_blocked_escrow_is_on_record_and_changes_nothing_on_the_chain(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    before = await world.accounts(*world.vault_accounts(paying.wallet))

    error = await _refused(paying, receiving, "6")

    assert error["violation"] == {"rule": "max_per_tx", "limit": "5.00", "attempted": "6.00"}
    assert (error["wallet_id"], error["policy_id"]) == (paying.id, policy["policy_id"])
    assert await world.accounts(*world.vault_accounts(paying.wallet)) == before
    [row] = (await world.ok("GET", f"/v1/wallets/{paying.id}/transactions?status=blocked"))["data"]
    assert (row["type"], row["amount"], row["recipient"]) == ("a2a_send", "6.00", receiving.vault)
    assert (row["violation"], row["policy_triggered"]) == ({**error["violation"], "budget_id": None}, True)
    [event] = (await world.ok("GET", f"/v1/events?event=transaction.blocked&walletId={paying.id}"))["data"]
    assert (event["tx_id"], event["attempted_amount"]) == (row["tx_id"], "6.00")
    assert error["tx_id"] == row["tx_id"]
    assert (await world.ok("GET", f"{A2A}?walletId={paying.id}"))["data"] == []
    assert (await world.ok("GET", f"/v1/wallets/{paying.id}"))["status"] == "policy_violation"


@pytest.mark.proves("POST /v1/payments/a2a", "Limits: Spending")
async def test_limits_count_escrows_and_payments_together_less_refunds(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerDay="10")
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    made = await paying.lock(receiving, "8")
    assert (await _refused(paying, receiving, "3"))["violation"]["rule"] == "max_per_day"

    await paying.ok("POST", of(made, "dispute"), {"reason": "no"})
    await world.ok("POST", of(made, "resolve"), {"decision": "split", "releasedAmount": "2"})

    assert (await _refused(paying, receiving, "8.01"))["violation"]["attempted"] == "10.01"
    assert (await paying.lock(receiving, "8"))["status"] == "locked"


async def test_allowlist_names_the_receiving_wallet(world: ServiceWorld) -> None:
    receiving, other = await agent(world), await agent(world)
    policy = await world.policy(allowedRecipients=[receiving.id])
    paying = await agent(world, policy["policy_id"])

    assert (await _refused(paying, other, "1"))["violation"]["rule"] == "allowed_recipients"
    assert (await paying.lock(receiving, "1"))["status"] == "locked"


async def test_operator_key_co_signs_what_the_session_signs(world: ServiceWorld) -> None:
    policy = await world.policy(requireCoSign="5")
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    headers = {"Session-Token": paying.session}

    made = await world.ok("POST", A2A, terms(paying, receiving, "6"), key=world.key("operator"), headers=headers)

    lock = await world.ok("GET", f"/v1/transactions/{made['tx_id']}")
    assert (lock["policy_triggered"], lock["type"]) == (True, "escrow_lock")
    assert lock["agent_attestation_hash"].startswith("sha256:")


async def test_agent_locks_above_the_threshold_once_an_operator_has_approved(world: ServiceWorld) -> None:
    policy = await world.policy(requireCoSign="5")
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    error = await _refused(paying, receiving, "6")
    approval = f"/v1/approvals/{error['approval_id']}"
    assert (await world.ok("GET", approval))["recipient_address"] == receiving.vault
    await world.ok("POST", f"{approval}/approve", {})

    made = await paying.lock(receiving, "6")

    assert made["status"] == "locked"
    assert (await world.ok("GET", f"/v1/transactions/{made['tx_id']}"))["policy_triggered"] is True
    assert (await world.ok("GET", approval))["status"] == "used"
    assert (await _refused(paying, receiving, "6"))["approval_id"] != error["approval_id"]
    assert (await receiving.ok("POST", of(made, "complete"), shows_output()))["status"] == "released"
