"""The flag of a policy by which its wallets may hand money to a delegate."""

import pytest

from app.core.identifiers import PRESET_POLICY_IDS
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves(
    "CreatePolicy(allowAllowances)",
    "UpdatePolicy(allowAllowances)",
    "ClonePolicy(allowAllowances)",
    "PreviewPolicy(allowAllowances)",
    "Policy(allow_allowances)",
)
async def test_policy_says_whether_allowances_may_be_granted(world: ServiceWorld) -> None:
    presets = [await world.ok("GET", f"/v1/policies/{one}") for one in PRESET_POLICY_IDS]
    assert {one["allow_allowances"] for one in presets} == {False}
    made = await world.policy(allowAllowances=True, maxPerTx="5")
    assert made["allow_allowances"] is True
    path = f"/v1/policies/{made['policy_id']}"

    kept = await world.ok("PATCH", path, {"maxPerTx": "6"})
    copied = await world.ok("POST", f"{path}/clone", {"name": "Copy"})
    changed = await world.ok("PATCH", path, {"allowAllowances": False})

    assert (kept["allow_allowances"], copied["allow_allowances"], changed["allow_allowances"]) == (True, True, False)
    assert (await world.fields(world.policy_record(made["policy_id"]).address))["flags"] >> 8 & 1 == 0
    [*_, entry] = (await world.ok("GET", f"{path}/audit-log"))["data"]
    assert entry["changes"] == {"allow_allowances": {"from": True, "to": False}}
    wrong = {"name": "A", "allowAllowances": "perhaps"}
    error_of(await world.call("POST", "/v1/policies", wrong), 400, "invalid_request")


async def test_preview_of_the_flag_changes_no_payment(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    wallet = await world.wallet(policy["policy_id"])
    assert (await world.pay(wallet, await world.payee(), "1")).status_code == 200

    preview = await world.ok("POST", f"/v1/policies/{policy['policy_id']}/preview", {"allowAllowances": True})

    assert (preview["payments"], preview["newly_blocked"], preview["newly_confirmed"]) == (1, 0, 0)
