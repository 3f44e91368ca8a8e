"""Changes that others make on the chain meanwhile: pauses, limits, expiries, approvals, last-moment changes."""

import time
from typing import Any

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.access.keyring import system
from app.chain.instructions import UNLIMITED
from app.core.identifiers import allowance_id, new_reference
from tests.support.allowances import USDC, granting_of
from tests.support.escrows import agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _update_org(world: ServiceWorld, **changes: Any) -> None:
    authority = world.service.signers.require_authority()
    change = await world.org_update(authority.pubkey(), **changes)
    assert (await world.land([change], authority)).err is None


@pytest.mark.proves("rule paused", "error org_paused")
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


@pytest.mark.proves("Wallets: any to frozen")
async def test_expired_wallet_is_frozen_by_anyone_and_freed_with_another_policy(own_world: ServiceWorld) -> None:
    world = own_world
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    policy = await world.policy(expiry=soon)
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    path, operator = f"/v1/wallets/{wallet['wallet_id']}", world.key("operator")
    world.clock.ahead += 7200
    assert error_of(await world.pay(wallet, to, "1"), 402, "policy_violation")["violation"]["rule"] == "expiry"
    stranger = world.service.signers.fee_payer
    expire = world.build.freeze_wallet(
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
    approve = world.build.approve_payment(
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


@pytest.mark.proves("Transactions: pending to failed")
async def test_refusal_that_still_lands_is_failed_and_answers_402(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(maxPerTx="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    found = world.policy_record(policy["policy_id"])
    authority = world.service.signers.require_authority()
    tighten = world.build.update_policy(
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


@pytest.mark.proves("Transactions: pending to failed")
async def test_freeze_at_the_last_moment_fails_the_payment(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    operator = world.service.signers.operator
    found = world.wallet_record(wallet["wallet_id"])
    freeze = world.build.freeze_wallet(
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
    rotate = world.build.update_wallet(
        operator=operator.pubkey(), vault=_vault(wallet), session=(Pubkey.new_unique(), int(time.time()) + 600)
    )
    assert (await world.land([rotate], operator)).err is None

    error_of(await world.pay(wallet, to, "1", session=token), 401, "session_token_invalid")


def _rotation(world: ServiceWorld, wallet: Json) -> Instruction:
    return world.build.update_wallet(
        operator=world.service.signers.operator_address,
        vault=_vault(wallet),
        session=(Pubkey.new_unique(), world.service.clock.now() + 600),
    )


async def test_operators_rotation_ends_a_session_that_was_made_just_before(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    _just_before_sending(world, [_rotation(world, wallet)], world.service.signers.operator)

    token = (await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/rotate-token", {}))["session_token"]

    assert (await world.pay(wallet, to, "1", session=token)).json()["status"] == "confirmed"


async def test_agent_gets_no_new_token_while_an_operator_rotates_it(world: ServiceWorld) -> None:
    one, brake = await agent(world), world.service.brake
    path = f"/v1/wallets/{one.id}/rotate-token"
    hold = brake.engage(system(world.org, "test"), one.id, "session")
    error_of(await one.call("POST", path, {}), 401, "session_token_invalid")
    await brake.release(hold)

    await one.ok("POST", path, {})


async def test_wallet_is_archived_although_it_was_changed_just_before(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    _just_before_sending(world, [_rotation(world, wallet)], world.service.signers.operator)

    archived = await world.ok("DELETE", f"/v1/wallets/{wallet['wallet_id']}")

    assert archived["status"] == "archived"


@pytest.mark.proves("PolicyViolationBody(open_allowances)")
async def test_late_refusal_names_the_allowance_that_holds_the_money(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True, maxPerDay="10")
    one, to = await agent(world, policy["policy_id"]), await world.payee()
    purse, granting = await granting_of(world, one, 6 * USDC)
    _just_before_sending(world, [granting], one.session_key, world.service.signers.operator)

    error = error_of(await world.pay(one.wallet, to, "5"), 402, "policy_violation")

    assert error["violation"] == {"rule": "max_per_day", "limit": "10.00", "attempted": "11.00"}
    assert error["open_allowances"] == [allowance_id(purse.address)]


async def test_authority_signs_nothing_that_an_old_state_outdates(own_world: ServiceWorld) -> None:
    world = own_world
    old = await world.service.chain.call("getMultipleAccounts", [[world.org], {"encoding": "base64"}])
    await _update_org(world, operator_daily_limit=UNLIMITED)
    await world.catch_up()

    world.line.alter = lambda method, result: old if method == "getMultipleAccounts" else result
    error_of(await world.call("POST", "/v1/budgets", {"name": "New"}), 503, "chain_unavailable")
    world.line.mend()

    await world.ok("POST", "/v1/budgets", {"name": "New"})


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
