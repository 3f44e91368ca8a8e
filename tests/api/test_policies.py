"""Policies: created with every rule, listed with the presets, shown once complete."""

from pathlib import Path

import pytest
from solders.keypair import Keypair

from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_EMPTY: dict[str, object] = {
    "max_per_tx": None,
    "max_per_day": None,
    "max_per_month": None,
    "velocity_cap": None,
    "allowed_recipients": [],
    "blocked_categories": [],
    "require_co_sign": None,
    "expiry": None,
}


@pytest.mark.proves(
    "Conventions: Times",
    "POST /v1/policies",
    "GET /v1/policies/{policy_id}",
    "CreatePolicy(name, maxPerTx, maxPerDay, maxPerMonth, velocityCap, allowedRecipients)",
    "CreatePolicy(blockedCategories, requireCoSign, expiry)",
    "Policy(policy_id, id)",
)
async def test_policy_with_every_rule_reads_back_as_written(world: ServiceWorld) -> None:
    friend = str(Keypair().pubkey())
    rules = {
        "maxPerTx": "5",
        "maxPerDay": "20.5",
        "maxPerMonth": "100",
        "velocityCap": 30,
        "allowedRecipients": [friend, "api.example.com"],
        "blockedCategories": ["weapons", "gambling"],
        "requireCoSign": "4",
        "expiry": "2030-01-01T00:00:00+02:00",
    }

    made = await world.ok("POST", "/v1/policies", {"name": "Everything", **rules})

    assert made["policy_id"].startswith("pol_")
    assert (made["id"], made["name"], made["wallet_count"]) == (made["policy_id"], "Everything", 0)
    assert (made["max_per_tx"], made["max_per_day"], made["max_per_month"]) == ("5.00", "20.50", "100.00")
    assert (made["velocity_cap"], made["require_co_sign"]) == (30, "4.00")
    assert sorted(made["allowed_recipients"]) == sorted([friend, "api.example.com"])
    assert made["blocked_categories"] == ["gambling", "weapons"]
    assert made["expiry"] == "2029-12-31T22:00:00Z"
    assert await world.ok("GET", f"/v1/policies/{made['policy_id']}") == made


@pytest.mark.proves(
    "POST /v1/policies",
    "CreatePolicy(maxPerTx, maxPerDay, maxPerMonth, velocityCap, allowedRecipients, blockedCategories)",
    "CreatePolicy(requireCoSign, expiry)",
    "Policy(allowed_recipients)",
)
async def test_omitted_rules_are_null_or_empty(world: ServiceWorld) -> None:
    made = await world.ok("POST", "/v1/policies", {"name": "Nothing"})

    assert _EMPTY.items() <= made.items()


@pytest.mark.proves("Policy(max_per_tx)")
async def test_zero_is_a_limit_not_its_absence(world: ServiceWorld) -> None:
    made = await world.ok("POST", "/v1/policies", {"name": "Zero", "maxPerTx": "0", "velocityCap": 0})

    assert (made["max_per_tx"], made["velocity_cap"]) == ("0.00", 0)


@pytest.mark.proves("Conventions: Names")
async def test_both_spellings_make_the_same_policy(world: ServiceWorld) -> None:
    camel = await world.ok("POST", "/v1/policies", {"name": "A", "maxPerTx": "5", "blockedCategories": ["nft"]})
    snake = await world.ok("POST", "/v1/policies", {"name": "A", "max_per_tx": "5", "blocked_categories": ["nft"]})

    different = {"policy_id", "id", "created_at", "version"}
    assert {key: value for key, value in camel.items() if key not in different} == {
        key: value for key, value in snake.items() if key not in different
    }


@pytest.mark.proves("GET /v1/policies")
async def test_list_begins_with_the_presets(world: ServiceWorld) -> None:
    made = await world.policy(maxPerTx="1")

    found = (await world.ok("GET", "/v1/policies"))["data"]

    assert [one["policy_id"] for one in found[:4]] == [
        "pol_conservative",
        "pol_moderate",
        "pol_permissive",
        "pol_locked",
    ]
    assert [one["velocity_cap"] for one in found[:3]] == [10, 60, 600]
    assert found[3]["max_per_tx"] == "0.00"
    assert made["policy_id"] in [one["policy_id"] for one in found]


@pytest.mark.proves("Policy(wallet_count)")
async def test_wallet_count_follows_the_wallets(world: ServiceWorld) -> None:
    policy = await world.policy()
    path = f"/v1/policies/{policy['policy_id']}"
    first = await world.wallet(policy["policy_id"], funds=None)
    second = await world.wallet(policy["policy_id"], funds=None)
    assert (await world.ok("GET", path))["wallet_count"] == 2

    await world.ok("PATCH", f"/v1/wallets/{first['wallet_id']}", {"policyId": "pol_moderate"})
    await world.ok("DELETE", f"/v1/wallets/{second['wallet_id']}")

    assert (await world.ok("GET", path))["wallet_count"] == 0


@pytest.mark.proves("Limits: Recipients of an allowlist")
async def test_thousand_recipients_fit(world: ServiceWorld) -> None:
    recipients = [str(Keypair().pubkey()) for _ in range(1000)]

    made = await world.ok("POST", "/v1/policies", {"name": "Long", "allowedRecipients": recipients})

    assert len(made["allowed_recipients"]) == 1000
    body = {"name": "Too long", "allowedRecipients": [*recipients, str(Keypair().pubkey())]}
    error_of(await world.call("POST", "/v1/policies", body), 400, "invalid_request")


async def test_recipient_given_twice_counts_once(world: ServiceWorld) -> None:
    friend = str(Keypair().pubkey())

    made = await world.policy(allowedRecipients=[friend, friend])

    assert made["allowed_recipients"] == [friend]


@pytest.mark.proves("GET /v1/policies/{policy_id}", "error policy_not_found", "Authentication: Organisations")
async def test_foreign_policy_does_not_exist(world: ServiceWorld) -> None:
    neighbour = await world.organisation("policy-neighbour")
    theirs = world.key("admin", org=neighbour)
    policy = await world.policy()

    error_of(await world.call("GET", f"/v1/policies/{policy['policy_id']}", key=theirs), 404, "policy_not_found")
    body = {"agentId": "thief", "label": "Thief", "policyId": policy["policy_id"]}
    error_of(await world.call("POST", "/v1/wallets", body, key=theirs), 404, "policy_not_found")
    assert len((await world.ok("GET", "/v1/policies", key=theirs))["data"]) == 4


@pytest.mark.proves("error authority_offline")
async def test_without_the_authority_key_policies_and_unfreezing_are_refused(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        wallet, to = await world.wallet(), await world.payee()
        await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
        (tmp_path / "keys" / "authority.json").unlink()
        await world.restart()

        error_of(await world.call("POST", "/v1/policies", {"name": "Late"}), 503, "authority_offline")
        unfreeze = await world.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "active"})
        error_of(unfreeze, 503, "authority_offline")
        assert (await world.pay(await world.wallet(), to, "1")).json()["status"] == "confirmed"
