"""Consent binds: what was approved, signed or granted before counts only for what it was given for."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from solders.pubkey import Pubkey

from tests.support.allowances import USDC, grant, known, settle
from tests.support.escrows import Agent, agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH_CHAINS = pytest.mark.parametrize(
    "own_world", ["embedded", pytest.param("validator", marks=pytest.mark.validator)], indirect=True
)


def _seconds_to_the_months_last_minute() -> float:
    now = datetime.now(UTC)
    first = (now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)
    return (first - timedelta(minutes=1) - now).total_seconds()


async def _attempted(world: ServiceWorld, one: Agent, amount: str) -> dict[str, str]:
    """Return the values that a payment would reach, by the rule."""
    body = {"walletId": one.id, "to": await world.payee(), "amount": amount, "currency": "USDC"}
    rules = (await world.ok("POST", "/v1/payments/simulate", body))["rules"]
    return {rule["rule"]: rule["attempted"] for rule in rules if rule["rule"].startswith("max_per_") and rule["set"]}


async def test_allowance_over_the_end_of_a_month_is_spent_in_the_next(own_world: ServiceWorld) -> None:
    world = own_world
    world.clock.ahead = _seconds_to_the_months_last_minute()
    await world.service.chain.blockhash(fresh=True)
    policy = await world.policy(allowAllowances=True, maxPerDay="10", maxPerMonth="20")
    one = await agent(world, policy["policy_id"])
    purse = await grant(world, one, 6 * USDC)
    await purse.pay(4 * USDC)
    await known(world, purse)
    assert await _attempted(world, one, "1") == {"max_per_day": "7.00", "max_per_month": "7.00"}

    await world.restart()
    await world.later(120)
    await settle(world, purse)

    assert (await known(world, purse)).spent == 4 * USDC
    assert await _attempted(world, one, "1") == {"max_per_day": "5.00", "max_per_month": "5.00"}
    # Two minutes later, no more than the day's limit has left, whatever the calendar says.
    refused = error_of(await world.pay(one.wallet, await world.payee(), "7"), 402, "policy_violation")
    assert refused["violation"] == {"rule": "max_per_day", "limit": "10.00", "attempted": "11.00"}


@BOTH_CHAINS
async def test_approved_escrow_with_changed_terms_is_refused(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(requireCoSign="10")
    one, to = await agent(world, policy["policy_id"]), await world.wallet(funds=None)
    body: Json = {"fromWallet": one.id, "toWallet": to["wallet_id"], "amount": "20", "currency": "USDC"}
    agreed = {**body, "taskDescription": "Translate the page", "expectedOutputHash": f"sha256:{'ab' * 32}"}
    approval = error_of(await one.call("POST", "/v1/payments/a2a", agreed), 402, "policy_violation")["approval_id"]
    await world.ok("POST", f"/v1/approvals/{approval}/approve", {})

    for changed in ({"taskDescription": "Nothing"}, {"expectedOutputHash": f"sha256:{'cd' * 32}"}):
        error_of(await one.call("POST", "/v1/payments/a2a", agreed | changed), 402, "policy_violation")

    assert (await one.ok("POST", "/v1/payments/a2a", agreed))["status"] == "locked"
    assert (await world.ok("GET", f"/v1/approvals/{approval}"))["status"] == "used"


@BOTH_CHAINS
async def test_rotation_that_was_signed_first_fails_after_a_later_one(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to, operator = await world.wallet(), await world.payee(), world.service.signers.operator
    earlier = world.service.instructions(world.org).update_wallet(
        operator=operator.pubkey(),
        vault=Pubkey.from_string(wallet["chain_address"]),
        session=(Pubkey.new_unique(), int(time.time()) + 600),
        expected_sessions=(await world.fields(wallet["chain_address"]))["sessions"],
    )
    signed = await world.signed_outside([earlier], operator)
    token = (await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/rotate-token", {}))["session_token"]

    await world.service.chain.send(signed.raw)
    status = await world.service.chain.confirm(signed.signature, timeout=30)

    assert status is not None
    assert world.service.codec.error_name(status.custom_error or 0) == "SequenceMismatch"
    assert (await world.pay(wallet, to, "1", session=token)).json()["status"] == "confirmed"
