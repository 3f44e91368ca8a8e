"""The audit log in sentences, and the sums of approvals by approver."""

import pytest
from markupsafe import escape

from app.dashboard.forms.audit_sentences import sentence
from tests.dashboard.browsing import Crafted, asking, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_audit_log_names_objects_and_sums(world: ServiceWorld) -> None:
    policy = await world.policy(name="Ads", maxPerDay="100")
    budget = await world.ok("POST", "/v1/budgets", {"name": "Team", "maxPerDay": "50", "velocityCap": 3})
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerDay": "200"})
    await world.ok("PATCH", f"/v1/budgets/{budget['budget_id']}", {"maxPerDay": "20", "velocityCap": None})
    await asking(world, "6", "7")
    for one in (await world.ok("GET", "/v1/approvals"))["data"]:
        await world.ok("POST", f"/v1/approvals/{one['approval_id']}/approve")

    admin = Crafted(world, sign_in(world, "admin"))
    shown = (await admin.client.get("/dashboard/audit")).text
    approvals = (await admin.client.get("/dashboard/approvals")).text

    assert "raised “In 24 hours” of Ads from 100.00 USDC to 200.00 USDC" in shown
    assert "changed Team: In 24 hours from 50.00 USDC to 20.00 USDC; Payments an hour from 3 to no cap" in shown
    assert "approved 7.00 USDC to " in shown
    assert "created the policy Ads" in shown
    assert "API key test 2 for 13.00 USDC" in approvals


async def test_altered_details_and_hostile_names_are_shown_safely() -> None:
    hostile = "<b>{who}</b>"
    for details in ({}, {"changes": 5}, {"changes": {"max_per_day": {"from": "x", "to": []}}}, {"amount": "NaN"}):
        assert "Wallet: withdraw" in sentence("wallet.withdraw", "Ada", None, details)

    shown = sentence("wallet.withdraw", hostile, hostile, {"amount": "1.00"})

    assert shown == f"{escape(hostile)} moved 1.00 USDC from {escape(hostile)} to the reserve"
