"""Budgets that are part of another budget, with a total and an end; freezing a budget stops everything below it."""

from typing import Any

import pytest
from solders.keypair import Keypair

from app.core.timestamps import iso
from tests.support.escrows import agent, of
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _budget(world: ServiceWorld, parent: Json | None = None, **limits: Any) -> Json:
    above = {} if parent is None else {"parentId": parent["budget_id"]}
    return await world.ok("POST", "/v1/budgets", {"name": "Team", **above, **limits})


def _path(budget: Json) -> str:
    return f"/v1/budgets/{budget['budget_id']}"


async def _now(world: ServiceWorld, budget: Json) -> Json:
    return await world.ok("GET", _path(budget))


async def _refusal(world: ServiceWorld, wallet: Json, to: str, amount: str) -> Json:
    """Return the violation of a payment, which the simulation names too, with its time to retry."""
    body = {"walletId": wallet["wallet_id"], "to": to, "amount": amount, "currency": "USDC"}
    verdicts = await world.ok("POST", "/v1/payments/simulate", body)
    error = error_of(await world.pay(wallet, to, amount), 402, "policy_violation")
    first = next(one for one in verdicts["rules"] if not one["passed"])
    violation: Json = error["violation"]
    assert {name: first[name] for name in violation} == violation
    assert violation.get("budget_id", "policy") in error["message"]
    return {**violation, "retry_at": first["retry_at"], "verdicts": len(verdicts["rules"])}


@pytest.mark.proves(
    "POST /v1/budgets",
    "CreateBudget(parentId)",
    "Budget(parent_id, parent_headroom, budget_count, status)",
    "BudgetHeadroom(total)",
    "BudgetConsumption(total)",
    "UpdateBudget(status)",
    "RuleVerdict(budget_id)",
    "Violation(budget_id)",
    "rule budget_frozen",
)
async def test_two_teams_share_the_companys_budget_until_it_is_full(world: ServiceWorld) -> None:
    company = await _budget(world, maxPerDay="20", maxTotal="100")
    red, blue = await _budget(world, company, maxPerDay="15"), await _budget(world, company)
    first, second = [await world.wallet(budgetId=one["budget_id"]) for one in (red, blue)]
    to = await world.payee()

    for wallet, amount in ((first, "12"), (second, "6")):
        assert (await world.pay(wallet, to, amount)).json()["status"] == "confirmed"
    full = await _refusal(world, first, to, "3")
    assert (full["rule"], full["budget_id"]) == ("budget_max_per_day", company["budget_id"])
    assert (full["limit"], full["attempted"], full["verdicts"]) == ("20.00", "21.00", 23)
    own = await _refusal(world, first, to, "4")
    assert (own["budget_id"], own["attempted"]) == (red["budget_id"], "16.00")
    above = await _now(world, company)
    assert (above["consumption"]["day"], above["consumption"]["total"], above["headroom"]["total"]) == (
        *("18.00", "18.00"),
        "82.00",
    )
    assert (above["wallet_count"], above["budget_count"], above["parent_id"]) == (0, 2, None)
    below = await _now(world, red)
    assert (below["parent_id"], below["headroom"]["day"]) == (company["budget_id"], "3.00")
    assert (below["parent_headroom"]["day"], above["parent_headroom"]) == ("2.00", None)

    # When one team is frozen, only the other can spend the rest
    await world.ok("PATCH", _path(red), {"status": "frozen"}, key=world.key("operator"))
    stopped = await _refusal(world, first, to, "1")
    assert (stopped["rule"], stopped["budget_id"], stopped["retry_at"]) == ("budget_frozen", red["budget_id"], None)
    assert (await world.pay(second, to, "2")).json()["status"] == "confirmed"
    assert (await _now(world, blue))["parent_headroom"]["day"] == "0.00"
    # And nobody once the company is
    await world.ok("PATCH", _path(company), {"status": "frozen"})
    assert (await _refusal(world, second, to, "1"))["budget_id"] == company["budget_id"]


@pytest.mark.proves("CreateBudget(maxTotal)", "UpdateBudget(maxTotal)", "Budget(max_total)", "rule budget_max_total")
async def test_total_runs_out_and_refunds_lower_it(world: ServiceWorld) -> None:
    company = await _budget(world, maxTotal="10")
    team = await _budget(world, company, maxTotal="50")
    sender, receiver = await agent(world), await agent(world)
    await world.ok("PATCH", f"/v1/wallets/{sender.id}", {"budgetId": team["budget_id"]})
    to = await world.payee()

    locked = await sender.lock(receiver, "4", timeoutSeconds=60)
    assert (await world.pay(sender.wallet, to, "5")).json()["status"] == "confirmed"
    spent = await _refusal(world, sender.wallet, to, "2")
    assert (spent["rule"], spent["budget_id"]) == ("budget_max_total", company["budget_id"])
    assert (spent["limit"], spent["attempted"], spent["retry_at"]) == ("10.00", "11.00", None)

    await world.later(40 * 86_400)
    await world.keeper().tick()
    await world.catch_up()
    assert (await world.ok("GET", of(locked)))["status"] == "refunded"
    shown = await _now(world, company)
    assert (shown["consumption"]["month"], shown["consumption"]["total"]) == ("0.00", "5.00")
    assert (await world.ok("PATCH", _path(company), {"maxTotal": "6"}))["headroom"]["total"] == "1.00"
    assert (await world.pay(sender.wallet, to, "1")).json()["status"] == "confirmed"
    await _refusal(world, sender.wallet, to, "1")


@pytest.mark.proves("CreateBudget(expiresAt)", "UpdateBudget(expiresAt)", "Budget(expires_at)", "rule budget_expired")
async def test_expired_budget_refuses_until_its_end_is_moved(world: ServiceWorld) -> None:
    ends = iso(int(world.clock()) + 3600)
    company = await _budget(world, expiresAt=ends)
    team = await _budget(world, company)
    wallet, to = await world.wallet(budgetId=team["budget_id"]), await world.payee()
    assert (company["expires_at"], team["expires_at"]) == (ends, None)
    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"

    await world.later(7200)
    late = await _refusal(world, wallet, to, "1")

    assert (late["rule"], late["budget_id"], late["limit"]) == ("budget_expired", company["budget_id"], ends)
    assert late["retry_at"] is None
    assert (await world.ok("PATCH", _path(company), {"expiresAt": None}))["expires_at"] is None
    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"


@pytest.mark.proves("DELETE /v1/budgets/{budget_id}", "error budget_in_use", "error budget_nested")
async def test_parent_is_deleted_only_after_its_parts(world: ServiceWorld) -> None:
    company = await _budget(world)
    team = await _budget(world, company)

    nested = await world.call("POST", "/v1/budgets", {"name": "Project", "parentId": team["budget_id"]})
    error_of(nested, 422, "budget_nested")
    unknown = await world.call("POST", "/v1/budgets", {"name": "Project", "parentId": "bud_none"})
    error_of(unknown, 404, "budget_not_found")
    error_of(await world.call("DELETE", _path(company), {}), 422, "budget_in_use")

    await world.ok("DELETE", _path(team), {})
    assert (await _now(world, company))["budget_count"] == 0
    await world.ok("DELETE", _path(company), {})


@pytest.mark.proves(
    "PATCH /v1/budgets/{budget_id}",
    "UpdateBudget(status)",
    "Budget(status)",
    "action budget.freeze",
    "action budget.unfreeze",
    "event budget.frozen",
    "event budget.unfrozen",
    "error budget_frozen",
)
async def test_operator_freezes_and_only_an_admin_unfreezes(world: ServiceWorld) -> None:
    budget, operator = await _budget(world, maxPerDay="10"), world.key("operator")
    wallet, to, path = await world.wallet(budgetId=budget["budget_id"]), await world.payee(), _path(budget)

    for _ in range(2):
        frozen = await world.ok("PATCH", path, {"status": "frozen"}, key=operator)
        assert (frozen["status"], frozen["version"]) == ("frozen", budget["version"])
    assert (await _refusal(world, wallet, to, "1"))["rule"] == "budget_frozen"
    for body in ({"status": "active"}, {"maxPerDay": "1"}, {"name": "Mine"}, {"maxTotal": None}):
        error_of(await world.call("PATCH", path, body, key=operator), 403, "insufficient_permissions")
    viewing = await world.call("PATCH", path, {"status": "frozen"}, key=world.key("viewer"))
    error_of(viewing, 403, "insufficient_permissions")
    mixed = await world.call("PATCH", path, {"status": "active", "maxPerDay": "1"})
    error_of(mixed, 400, "invalid_request")
    leaving = await world.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"budgetId": None})
    error_of(leaving, 422, "budget_frozen")
    # Limits may be changed while it is frozen
    assert (await world.ok("PATCH", path, {"maxPerDay": "12"}))["status"] == "frozen"

    for _ in range(2):
        assert (await world.ok("PATCH", path, {"status": "active"}))["status"] == "active"
    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"
    for kind in ("frozen", "unfrozen"):
        [event] = (await world.ok("GET", f"/v1/events?event=budget.{kind}&limit=1"))["data"]
        assert event["budget_id"] == budget["budget_id"]
    for action in ("freeze", "unfreeze"):
        [entry] = (await world.ok("GET", f"/v1/audit-log?action=budget.{action}&limit=1"))["data"]
        assert entry["object"] == budget["budget_id"]


async def test_wallet_moves_between_a_budget_and_its_parent(world: ServiceWorld) -> None:
    company = await _budget(world)
    team = await _budget(world, company)
    wallet = await world.wallet(budgetId=company["budget_id"])
    path = f"/v1/wallets/{wallet['wallet_id']}"

    for budget in (team, company, team, None):
        wanted = None if budget is None else budget["budget_id"]
        assert (await world.ok("PATCH", path, {"budgetId": wanted}))["budget_id"] == wanted
    for budget in (team, company):
        assert (await _now(world, budget))["wallet_count"] == 0


async def test_frozen_budget_ends_the_allowances_below_it(world: ServiceWorld) -> None:
    company = await _budget(world, maxPerDay="10")
    team = await _budget(world, company)
    policy = await world.policy(allowAllowances=True)
    paying = await agent(world, policy["policy_id"])
    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"budgetId": team["budget_id"]})
    granted = {"amount": "6", "destination": await world.payee(), "delegate": str(Keypair().pubkey())}
    held = await world.ok("POST", f"/v1/wallets/{paying.id}/allowances", granted)
    shown = await _now(world, company)
    assert (shown["consumption"]["held"], shown["headroom"]["day"]) == ("6.00", "4.00")
    body = {"walletId": paying.id, "to": await world.payee(), "amount": "5", "currency": "USDC"}
    refused = error_of(await world.call("POST", "/v1/payments", body), 402, "policy_violation")
    assert refused["violation"]["budget_id"] == company["budget_id"]
    assert refused["open_allowances"] == [held["allowance_id"]]

    await world.ok("PATCH", _path(company), {"status": "frozen"})
    await world.keeper().tick()
    await world.catch_up()

    assert (await _now(world, company))["consumption"]["held"] == "0.00"
    [ended] = (await world.ok("GET", f"/v1/wallets/{paying.id}/allowances"))["data"]
    assert (ended["status"], ended["returned_amount"]) == ("settled", "6.00")
