"""Actions of a browser without a recent step-up: those that move much money or silence somebody wait for one."""

import asyncio
from typing import Any

import pytest

from tests.dashboard.browsing import Crafted, forget_step_up, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _idle(world: ServiceWorld) -> tuple[Crafted, str]:
    """Return an operator whose last step-up is older than five minutes, and the CSRF token."""
    me = Crafted(world, sign_in(world, "operator"))
    csrf = await me.csrf()
    forget_step_up(world)
    return me, csrf


async def _status(me: tuple[Crafted, str], path: str, **fields: Any) -> int:
    """Return 303 if the form took effect, and 403 if the dashboard asked for a step-up."""
    answer = await me[0].post(f"/dashboard/{path}", fields, csrf=me[1])
    assert answer.status_code == 303 or "Confirm that it is you" in answer.text, answer.text
    return answer.status_code


@pytest.mark.proves(
    "POST /dashboard/vaults/{wallet_id}/fund",
    "Limits: Fundings and top-ups of a vault within 24 hours, without a step-up in the dashboard",
)
async def test_fundings_above_the_daily_sum_wait_for_a_step_up(world: ServiceWorld) -> None:
    wallet, me = await world.wallet(funds=None), await _idle(world)
    path = f"vaults/{wallet['wallet_id']}/fund"
    assert await _status(me, path, fund_amount="100.01") == 403
    at_once = await asyncio.gather(*(_status(me, path, fund_amount="60") for _ in range(3)))
    assert sorted(at_once) == [303, 403, 403]
    assert await _status(me, path, fund_amount="40.000001") == 403
    assert await _status(me, path, fund_amount="40") == 303
    assert await _status(me, path, fund_amount="0.000001") == 403
    # API keys need none, and their fundings count.
    await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "500"})
    other = await world.wallet(funds="100")
    assert await _status(me, f"vaults/{other['wallet_id']}/fund", fund_amount="0.01") == 403
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"] == "600.00"
    fresh = Crafted(world, sign_in(world, "operator"))
    assert await _status((fresh, await fresh.csrf()), path, fund_amount="200") == 303


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/auto-topup")
async def test_wider_topup_rule_waits_for_a_step_up(world: ServiceWorld) -> None:
    wallet, me = await world.wallet(funds="1"), await _idle(world)
    path, fresh = f"vaults/{wallet['wallet_id']}/auto-topup", Crafted(world, sign_in(world, "operator"))
    rule = {"enabled": "true", "trigger_below": "0.5", "topup_amount": "1"}
    assert await _status(me, path, **rule) == 403
    assert await _status((fresh, await fresh.csrf()), path, **rule) == 303
    forget_step_up(world)
    for wider in ({"trigger_below": "0.6"}, {"topup_amount": "1.1"}):
        assert await _status(me, path, **{**rule, **wider}) == 403
    assert await _status(me, path, **{**rule, "topup_amount": "0.5"}) == 303
    assert await _status(me, path, enabled="false") == 303
    assert await _status(me, path, **rule) == 403


@pytest.mark.proves("POST /dashboard/alerts", "POST /dashboard/vaults/{wallet_id}/alerts")
async def test_weaker_alert_rule_waits_for_a_step_up(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, me = await world.wallet(), await _idle(world)
    rules = {
        "balanceLow": {"threshold": "5", "emails": ["ops@example.com"]},
        "velocitySpike": {"threshold": 10},
        "policyViolation": {"enabled": True, "emails": ["ops@example.com"]},
    }
    await world.ok("PUT", "/v1/alerts", rules)
    kept = {
        "balance_low_threshold": "5",
        "balance_low_emails": "ops@example.com",
        "velocity_spike_threshold": "10",
        "policy_violation_enabled": "yes",
        "policy_violation_emails": "ops@example.com",
    }
    assert await _status(me, "alerts", **kept) == 303
    stronger = {"balance_low_threshold": "6", "velocity_spike_threshold": "9", "inactivity_threshold": "4"}
    assert await _status(me, "alerts", **kept, large_transaction_threshold="1") == 303
    kept |= {**stronger, "balance_low_emails": "ops@example.com b@example.com", "large_transaction_threshold": "1"}
    kept["large_transaction_freeze"] = "yes"
    assert await _status(me, "alerts", **kept) == 303
    for weaker in (
        {"balance_low_threshold": ""},
        {"balance_low_threshold": "5.99"},
        {"balance_low_emails": "b@example.com"},
        {"velocity_spike_threshold": "10"},
        {"inactivity_threshold": ""},
        {"large_transaction_threshold": "9000000000"},
        {"large_transaction_freeze": ""},
        {"policy_violation_enabled": ""},
        {"policy_violation_emails": ""},
    ):
        assert await _status(me, "alerts", **{**kept, **weaker}) == 403, weaker
    own = f"vaults/{wallet['wallet_id']}/alerts"
    assert await _status(me, own, balance_low_own="yes", balance_low_threshold="") == 403
    assert await _status(me, own, balance_low_own="yes", balance_low_threshold="7", balance_low_emails="") == 303
    assert await _status(me, own) == 403, "the rule for all vaults is weaker"
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/alerts")
    assert (shown["balance_low"]["threshold"], shown["inactivity"]["threshold"]) == ("7.00", 4)
    await world.ok("PUT", "/v1/alerts", {})


@pytest.mark.proves("POST /dashboard/developers/webhooks/{webhook_id}/delete")
async def test_deletion_of_a_webhook_waits_and_a_brake_does_not(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, me = await world.wallet(), await _idle(world)
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/", "events": ["ping"]})
    path = f"developers/webhooks/{hook['webhook_id']}/delete"
    assert await _status(me, path) == 403
    assert await _status(me, f"vaults/{wallet['wallet_id']}/freeze") == 303
    assert await _status(me, "pause") == 303
    fresh = Crafted(world, sign_in(world, "operator"))
    assert await _status((fresh, await fresh.csrf()), path) == 303
