"""Changes that others make on the chain meanwhile: pauses, limits, expiries, approvals, last-moment changes."""

import time
from typing import Any

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.instructions import UNLIMITED
from app.core.identifiers import new_reference
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _update_org(world: ServiceWorld, **changes: Any) -> None:
    authority = world.service.signers.require_authority()
    change = await world.org_update(authority.pubkey(), **changes)
    assert (await world.land([change], authority)).err is None


async def test_paused_organisation_neither_pays_nor_funds_but_lets_money_out(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(funds="10"), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await _update_org(world, paused=True)

    error_of(await world.pay(wallet, to, "1"), 422, "org_paused")
    error_of(await world.call("POST", f"{path}/fund", {"amount": "1"}), 422, "org_paused")
    assert (await world.ok("POST", f"{path}/withdraw", {"amount": "4"}))["usdc_balance"] == "6.00"

    await _update_org(world, paused=False)
    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"


async def test_funding_beyond_the_operators_daily_limit_is_refused(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}/fund"
    await _update_org(world, operator_daily_limit=1)

    error_of(await world.call("POST", path, {"amount": "1"}), 422, "operator_limit_exceeded")
    error_of(await world.call("POST", path, {"amount": "99999999"}), 422, "org_insufficient_balance")

    await _update_org(world, operator_daily_limit=UNLIMITED)
    assert (await world.ok("POST", path, {"amount": "1"}))["usdc_balance"] == "1.00"


async def test_expired_wallet_is_frozen_by_anyone_and_freed_with_another_policy(own_world: ServiceWorld) -> None:
    world = own_world
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    policy = await world.policy(expiry=soon)
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    path, operator = f"/v1/wallets/{wallet['wallet_id']}", world.key("operator")
    world.clock.ahead += 7200
    assert error_of(await world.pay(wallet, to, "1"), 402, "policy_violation")["violation"]["rule"] == "expiry"
    stranger = world.service.signers.fee_payer
    expire = world.service.instructions(world.org).freeze_wallet(
        signer=stranger.pubkey(), vault=_vault(wallet), policy=await _address(world, policy), action="Expire"
    )
    assert (await world.land([expire])).err is None
    await world.catch_up()

    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    assert (await world.ok("GET", path))["status"] == "frozen"
    error_of(await world.call("PATCH", path, {"status": "active"}, key=operator), 422, "wallet_frozen")
    await world.ok("PATCH", path, {"policyId": "pol_moderate", "status": "active"}, key=operator)

    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"


async def test_approval_on_the_chain_lets_the_agent_pay_above_the_threshold_once(world: ServiceWorld) -> None:
    policy = await world.policy(requireCoSign="10")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    session, agent = await world.session(wallet), world.key("agent", wallet["wallet_id"])
    operator = world.service.signers.operator
    approve = world.service.instructions(world.org).approve_payment(
        payer=world.service.signers.fee_payer_address,
        operator=operator.pubkey(),
        vault=_vault(wallet),
        policy=await _address(world, policy),
        reference=new_reference(),
        recipient=Pubkey.from_string(to),
        amount=20_000_000,
        expires_at=int(world.clock()) + 600,
    )
    assert (await world.land([approve], operator)).err is None
    await world.catch_up()

    error_of(await world.pay(wallet, to, "20.01", session=session, key=agent), 402, "policy_violation")
    paid = (await world.pay(wallet, to, "20", session=session, key=agent)).json()
    error_of(await world.pay(wallet, to, "20", session=session, key=agent), 402, "policy_violation")

    assert (paid["status"], paid["policy_triggered"]) == ("confirmed", True)
    shown = await world.ok("GET", f"/v1/payments/{paid['tx_id']}")
    assert paid.items() <= shown.items()


async def test_refusal_that_still_lands_is_failed_and_answers_402(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(maxPerTx="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    found = world.policy_record(policy["policy_id"])
    authority = world.service.signers.require_authority()
    tighten = world.service.instructions(world.org).update_policy(
        authority=authority.pubkey(),
        policy=await _address(world, policy),
        expected_version=found.version,
        rules=type(found.rules)(max_per_tx=1_000_000),
    )
    _just_before_sending(world, [tighten], authority)

    error = error_of(await world.pay(wallet, to, "2"), 402, "policy_violation")

    assert error["violation"] == {"rule": "max_per_tx", "limit": "1.00", "attempted": "2.00"}
    [row] = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions?type=payment"))["data"]
    assert (row["status"], row["amount"], row["tx_id"]) == ("failed", "2.00", error["tx_id"])
    assert row["tx_signature"] is not None
    assert await world.balance(to) == 0


async def test_freeze_at_the_last_moment_fails_the_payment(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    operator = world.service.signers.operator
    found = world.wallet_record(wallet["wallet_id"])
    freeze = world.service.instructions(world.org).freeze_wallet(
        signer=operator.pubkey(),
        vault=_vault(wallet),
        policy=Pubkey.from_string(found.policy.address),
        action="Freeze",
    )
    _just_before_sending(world, [freeze], operator)

    headers = {"Idempotency-Key": "frozen"}
    error_of(await world.pay(wallet, to, "2", headers=headers), 422, "wallet_frozen")

    [row] = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions?type=payment"))["data"]
    assert row["status"] == "failed"
    await world.catch_up()
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "active"})
    # The failure freed the key: the same request is a new payment now.
    assert (await world.pay(wallet, to, "2", headers=headers)).json()["status"] == "confirmed"
    assert await world.balance(to) == 2_000_000


async def test_session_rotated_past_the_service_ends_the_old_token(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    token = await world.session(wallet)
    assert (await world.pay(wallet, to, "1", session=token)).json()["status"] == "confirmed"
    operator = world.service.signers.operator
    rotate = world.service.instructions(world.org).update_wallet(
        operator=operator.pubkey(), vault=_vault(wallet), session=(Pubkey.new_unique(), int(time.time()) + 600)
    )
    assert (await world.land([rotate], operator)).err is None

    error_of(await world.pay(wallet, to, "1", session=token), 401, "session_token_invalid")


def _vault(wallet: Json) -> Pubkey:
    return Pubkey.from_string(wallet["chain_address"])


async def _address(world: ServiceWorld, policy: Json) -> Pubkey:
    return Pubkey.from_string(world.policy_record(policy["policy_id"]).address)


def _just_before_sending(world: ServiceWorld, instructions: list[Instruction], *signers: Any) -> None:
    """Land a transaction between the next payment's simulation and its sending."""
    through = world.line.through

    async def overtaken(body: bytes) -> bytes:
        if b"sendTransaction" in body:
            world.line.through = through
            assert (await world.land(instructions, *signers)).err is None
        return await through(body)

    world.line.through = overtaken
