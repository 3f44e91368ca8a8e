"""Policies with `newRecipientCap`: a new recipient gets at most the cap until it is known."""

import pytest

from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves(
    "CreatePolicy(newRecipientCap)",
    "UpdatePolicy(newRecipientCap)",
    "ClonePolicy(newRecipientCap)",
    "PreviewPolicy(newRecipientCap)",
    "Policy(new_recipient_cap)",
    "rule new_recipient",
    "POST /v1/wallets/{wallet_id}/forget-recipient",
    "action wallet.forget_recipient",
    "ForgetRecipient(recipient)",
    "event recipient.first_paid",
    "event recipient.known",
    "event recipient.forgotten",
)
async def test_first_payment_is_capped_and_an_approval_makes_known(world: ServiceWorld) -> None:
    policy = await world.policy(newRecipientCap="5")
    assert policy["new_recipient_cap"] == "5.00"
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    agent, session = world.key("agent", wallet["wallet_id"]), await world.session(wallet)
    simulated = {"walletId": wallet["wallet_id"], "to": to, "amount": "6", "currency": "USDC"}

    # Given a first payment within the cap
    assert (await world.pay(wallet, to, "3", key=agent, session=session)).json()["status"] == "confirmed"
    # When the agent pays more than the rest
    error = error_of(await world.pay(wallet, to, "6", key=agent, session=session), 402, "policy_violation")
    # Then the refusal names the rule, the remedy and the time from which the payment passes
    assert error["violation"] == {"rule": "new_recipient", "limit": "5.00", "attempted": "9.00"}
    verdict = (await world.ok("POST", "/v1/payments/simulate", simulated, key=agent))["rules"][-1]
    assert (verdict["rule"], verdict["passed"], verdict["headroom"]) == ("new_recipient", False, "2.00")
    assert f"passes from {verdict['retry_at']} on" in error["message"]
    # When an operator approves it
    await world.ok("POST", f"/v1/approvals/{error['approval_id']}/approve", {}, key=world.key("operator"))
    assert (await world.pay(wallet, to, "6", key=agent, session=session)).json()["status"] == "confirmed"
    # Then the recipient is known
    assert (await world.pay(wallet, to, "20", key=agent, session=session)).json()["status"] == "confirmed"
    # Until an operator declares it unknown
    forget = f"/v1/wallets/{wallet['wallet_id']}/forget-recipient"
    await world.ok("POST", forget, {"recipient": to}, key=world.key("operator"))
    error_of(await world.pay(wallet, to, "20", key=agent, session=session), 402, "policy_violation")
    error_of(await world.call("POST", forget, {"recipient": to}), 404, "recipient_not_found")
    events = (await world.ok("GET", f"/v1/events?wallet_id={wallet['wallet_id']}"))["data"]
    kinds = [one["event"] for one in reversed(events) if one["event"].startswith("recipient.")]
    assert kinds == ["recipient.first_paid", "recipient.known", "recipient.forgotten"]
    # And the audit log has the declaration
    [entry] = (await world.ok("GET", "/v1/audit-log?action=wallet.forget_recipient"))["data"]
    assert entry["object"] == wallet["wallet_id"]
