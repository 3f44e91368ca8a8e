"""Budgets: made, changed and deleted over HTTP; shared by wallets whose payments and escrows they bound together."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.pubkey import Pubkey

from app.chain.rules import BudgetLimits
from app.core.signers import read_key
from app.store.attempts import attempt
from app.store.budgets import budget as budget_record
from tests.api.test_signed_transactions import Hardened
from tests.support.escrows import A2A, agent, of, shows_output, terms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _budget(world: ServiceWorld, **limits: Any) -> Json:
    return await world.ok("POST", "/v1/budgets", {"name": "Team", **limits})


def _path(budget: Json) -> str:
    return f"/v1/budgets/{budget['budget_id']}"


async def _put(world: ServiceWorld, wallet: Json, budget: Json | None, **options: Any) -> Json:
    body = {"budgetId": None if budget is None else budget["budget_id"]}
    return await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", body, **options)


@pytest.mark.proves(
    "POST /v1/budgets",
    "GET /v1/budgets",
    "GET /v1/budgets/{budget_id}",
    "action budget.create",
    "event budget.created",
    "CreateBudget(name, maxPerDay, maxPerMonth, velocityCap)",
    "Budget(budget_id, id, wallet_count, created_at)",
    "BudgetConsumption(month, payments_in_hour)",
    "BudgetHeadroom(day, month, payments_in_hour)",
)
async def test_new_budget_reads_back_as_written(world: ServiceWorld) -> None:
    made = await world.ok(
        "POST", "/v1/budgets", {"name": "Research", "maxPerDay": "20", "maxPerMonth": "100.5", "velocityCap": 7}
    )

    assert made["budget_id"].startswith("bud_")
    assert (made["id"], made["name"], made["wallet_count"]) == (made["budget_id"], "Research", 0)
    assert (made["max_per_day"], made["max_per_month"], made["velocity_cap"]) == ("20.00", "100.50", 7)
    assert (made["max_total"], made["expires_at"], made["parent_id"], made["status"]) == (None, None, None, "active")
    nothing = {"day": "0.00", "month": "0.00", "payments_in_hour": 0, "total": "0.00", "held": "0.00"}
    assert made["consumption"] == nothing
    assert made["headroom"] == {"day": "20.00", "month": "100.50", "payments_in_hour": 7, "total": None}
    assert made["warnings"] == []
    assert await world.ok("GET", _path(made)) == made
    assert made in (await world.ok("GET", "/v1/budgets"))["data"]
    [event] = (await world.ok("GET", "/v1/events?event=budget.created&limit=1"))["data"]
    assert (event["budget_id"], event["max_per_day"], event["version"]) == (made["id"], "20.00", made["version"])
    [entry] = (await world.ok("GET", "/v1/audit-log?action=budget.create&limit=1"))["data"]
    assert entry["object"] == made["budget_id"]


@pytest.mark.proves(
    "GET /v1/budgets/{budget_id}",
    "rule budget_max_per_day",
    "rule budget_max_per_month",
    "rule budget_velocity_cap",
    "CreateWallet(budgetId)",
    "CreateBudget(maxPerDay, maxPerMonth, velocityCap)",
    "Budget(max_per_day, max_per_month, velocity_cap, consumption, headroom, wallet_count)",
    "BudgetConsumption(day, payments_in_hour)",
    "BudgetHeadroom(day, month, payments_in_hour)",
)
@pytest.mark.parametrize(
    ("limit", "rule", "allowed", "shown"),
    [
        ({"maxPerDay": "10"}, "budget_max_per_day", "10.00", "12.00"),
        ({"maxPerMonth": "10"}, "budget_max_per_month", "10.00", "12.00"),
        ({"velocityCap": 1}, "budget_velocity_cap", "1", "2"),
    ],
)
async def test_limit_holds_for_two_wallets_together(
    world: ServiceWorld, limit: Json, rule: str, allowed: str, shown: str
) -> None:
    budget, to = await _budget(world, **limit), await world.payee()
    first = await world.wallet(budgetId=budget["budget_id"])
    second = await world.wallet()
    await _put(world, second, budget)

    assert (await world.pay(first, to, "6")).json()["status"] == "confirmed"
    check = {"walletId": second["wallet_id"], "to": to, "amount": "6", "currency": "USDC"}
    verdicts = await world.ok("POST", "/v1/payments/simulate", check)
    error = error_of(await world.pay(second, to, "6"), 402, "policy_violation")

    expected = {"rule": rule, "limit": allowed, "attempted": shown, "budget_id": budget["budget_id"]}
    assert error["violation"] == expected
    [refused] = [one for one in verdicts["rules"] if not one["passed"]]
    assert (refused["rule"], refused["limit"], refused["attempted"]) == (rule, allowed, shown)
    assert len(verdicts["rules"]) == 17
    assert verdicts["retry_at"] == refused["retry_at"] is not None
    after = await world.ok("GET", _path(budget))
    assert (after["wallet_count"], after["consumption"]["day"]) == (2, "6.00")
    left = {"maxPerDay": "day", "maxPerMonth": "month", "velocityCap": "payments_in_hour"}[next(iter(limit))]
    assert after["headroom"][left] == refused["headroom"] or str(after["headroom"][left]) == refused["headroom"]
    assert (await world.ok("GET", f"/v1/payments/{error['tx_id']}"))["status"] == "blocked"


@pytest.mark.proves(
    "PATCH /v1/budgets/{budget_id}",
    "action budget.update",
    "event budget.updated",
    "UpdateBudget(name, maxPerDay, maxPerMonth, velocityCap)",
    "Budget(name, headroom, version)",
)
async def test_change_keeps_what_is_not_given_and_what_was_spent(world: ServiceWorld) -> None:
    budget, to = await _budget(world, maxPerDay="10", velocityCap=5), await world.payee()
    wallet = await world.wallet(budgetId=budget["budget_id"])
    await world.pay(wallet, to, "6")

    changed = await world.ok("PATCH", _path(budget), {"maxPerDay": "11", "velocityCap": None, "name": "Larger"})

    assert (changed["max_per_day"], changed["max_per_month"], changed["velocity_cap"]) == ("11.00", None, None)
    assert (changed["name"], changed["headroom"]["day"]) == ("Larger", "5.00")
    assert changed["version"] > budget["version"]
    error_of(await world.pay(wallet, to, "5.5"), 402, "policy_violation")
    assert (await world.pay(wallet, to, "5")).status_code == 200
    events = (await world.ok("GET", "/v1/events?event=budget.updated&limit=2"))["data"]
    assert {one.get("name") for one in events} == {None, "Larger"}


@pytest.mark.proves("PATCH /v1/budgets/{budget_id}")
async def test_change_of_another_version_is_refused(world: ServiceWorld) -> None:
    budget = await _budget(world, maxPerDay="10")
    tag = (await world.call("GET", _path(budget))).headers["etag"]
    await world.ok("PATCH", _path(budget), {"maxPerDay": "12"}, headers={"If-Match": tag})

    for method, body in (("PATCH", {"maxPerDay": "1"}), ("PATCH", {"name": "Late"}), ("DELETE", {})):
        late = await world.call(method, _path(budget), body, headers={"If-Match": tag})
        error_of(late, 409, "version_conflict")

    assert (await world.ok("GET", _path(budget)))["max_per_day"] == "12.00"


@pytest.mark.proves(
    "DELETE /v1/budgets/{budget_id}",
    "action budget.delete",
    "error budget_not_found",
    "error budget_in_use",
    "event budget.deleted",
    "Budget(consumption)",
)
async def test_budget_in_use_is_deleted_only_when_its_wallets_have_left(world: ServiceWorld) -> None:
    budget = await _budget(world, maxPerDay="10")
    wallet = await world.wallet(budgetId=budget["budget_id"], funds=None)
    archived = await world.wallet(budgetId=budget["budget_id"], funds=None)
    error_of(await world.call("DELETE", _path(budget), {}), 422, "budget_in_use")

    await _put(world, wallet, None)
    # An archived wallet leaves its budget.
    await world.ok("DELETE", f"/v1/wallets/{archived['wallet_id']}")
    deleted = await world.ok("DELETE", _path(budget), {})

    assert (deleted["budget_id"], deleted["max_per_day"], deleted["consumption"]) == (budget["id"], "10.00", None)
    for call in (("GET", None), ("PATCH", {"maxPerDay": "1"}), ("DELETE", {})):
        error_of(await world.call(call[0], _path(budget), call[1]), 404, "budget_not_found")
    error_of(
        await world.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"budgetId": budget["id"]}),
        404,
        "budget_not_found",
    )
    [event] = (await world.ok("GET", "/v1/events?event=budget.deleted&limit=1"))["data"]
    assert event["budget_id"] == budget["budget_id"]


@pytest.mark.proves("event wallet.budget_set", "UpdateWallet(budgetId)", "Wallet(budget_id)")
async def test_operators_attach_the_first_budget_and_only_admins_move_on(world: ServiceWorld) -> None:
    one, other = await _budget(world), await _budget(world)
    wallet, operator = await world.wallet(funds=None), world.key("operator")
    path = f"/v1/wallets/{wallet['wallet_id']}"
    error_of(await world.call("POST", "/v1/budgets", {"name": "Mine"}, key=operator), 403, "insufficient_permissions")

    assert (await _put(world, wallet, one, key=operator))["budget_id"] == one["budget_id"]
    for budget in (other["budget_id"], None):
        answer = await world.call("PATCH", path, {"budgetId": budget}, key=operator)
        error_of(answer, 403, "insufficient_permissions")
    assert (await _put(world, wallet, other))["budget_id"] == other["budget_id"]
    assert (await _put(world, wallet, None))["budget_id"] is None

    events = (await world.ok("GET", f"/v1/events?event=wallet.budget_set&walletId={wallet['wallet_id']}"))["data"]
    moves = [(event["previous_budget_id"], event["budget_id"]) for event in reversed(events)]
    ids = one["budget_id"], other["budget_id"]
    assert moves == [(None, ids[0]), ids, (ids[1], None)]
    entries = (await world.ok("GET", "/v1/audit-log?action=wallet.update&limit=3"))["data"]
    assert [entry["details"]["budget_id"] for entry in entries] == [None, ids[1], ids[0]]


@pytest.mark.proves("Wallet(warnings)", "Budget(warnings)")
async def test_wallet_that_can_use_up_a_budget_alone_is_warned_of(world: ServiceWorld) -> None:
    bounded = await world.policy(maxPerDay="5", velocityCap=3)
    half = await world.policy(maxPerDay="5")
    budget = await _budget(world, maxPerDay="10")

    quiet = await world.wallet(bounded["policy_id"], funds=None, budgetId=budget["budget_id"])
    assert quiet["warnings"] == []
    loud = await world.wallet(half["policy_id"], funds=None)
    assert loud["warnings"] == []
    [warning] = (await _put(world, loud, budget))["warnings"]

    assert "velocityCap" in warning
    assert "maxPerDay" not in warning
    [said] = (await world.ok("GET", _path(budget)))["warnings"]
    assert said.startswith("1 of its wallets")


@pytest.mark.proves("POST /v1/budgets")
async def test_same_key_makes_one_budget_and_null_is_not_absence(world: ServiceWorld) -> None:
    body, headers = {"name": "Once", "maxPerDay": "3"}, {"Idempotency-Key": "one-budget"}
    made = await world.ok("POST", "/v1/budgets", body, headers=headers)

    assert await world.ok("POST", "/v1/budgets", body, headers=headers) == made
    wallet = await world.wallet(funds=None, budgetId=made["budget_id"])
    path, headers = f"/v1/wallets/{wallet['wallet_id']}", {"Idempotency-Key": "one-change"}
    await world.ok("PATCH", path, {"label": "New"}, headers=headers)
    late = await world.call("PATCH", path, {"label": "New", "budgetId": None}, headers=headers)
    error_of(late, 409, "idempotency_conflict")
    assert (await world.ok("GET", path))["budget_id"] == made["budget_id"]


@pytest.mark.proves("GET /v1/budgets", "error budget_not_found", "CreateWallet(budgetId)")
async def test_budget_of_another_organisation_does_not_exist(world: ServiceWorld) -> None:
    theirs = world.key("admin", org=await world.organisation("budget-neighbour"))
    budget = await _budget(world)

    for method in ("GET", "PATCH", "DELETE"):
        body = {"maxPerDay": "1"} if method == "PATCH" else None
        error_of(await world.call(method, _path(budget), body, key=theirs), 404, "budget_not_found")
    body = {"agentId": "thief", "label": "Thief", "policyId": "pol_moderate", "budgetId": budget["budget_id"]}
    error_of(await world.call("POST", "/v1/wallets", body, key=theirs), 404, "budget_not_found")
    assert (await world.ok("GET", "/v1/budgets", key=theirs))["data"] == []


@pytest.mark.proves("BudgetConsumption(day, month)")
async def test_escrow_is_charged_to_its_budget_and_refunded_there(world: ServiceWorld) -> None:
    budget = await _budget(world, maxPerDay="10")
    sender, receiver = await agent(world), await agent(world)
    await _put(world, sender.wallet, budget)
    locked = await sender.lock(receiver, "6")
    error_of(await sender.call("POST", A2A, terms(sender, receiver, "6")), 402, "policy_violation")
    assert (await world.ok("GET", _path(budget)))["consumption"]["day"] == "6.00"

    # When the wallet has moved on before the escrow times out
    await _put(world, sender.wallet, None)
    other = await sender.lock(receiver, "1")
    await world.later(7200)
    await world.keeper().tick()
    await world.catch_up()

    # Then what it was charged to gets it back
    for escrow in (locked, other):
        shown = await world.ok("GET", of(escrow))
        assert shown["status"] == "refunded"
    assert (await world.ok("GET", _path(budget)))["consumption"] == {
        "day": "0.00",
        "month": "0.00",
        "payments_in_hour": 0,
        "total": "0.00",
        "held": "0.00",
    }


async def test_escrow_ends_after_its_budget_was_deleted(world: ServiceWorld) -> None:
    budget = await _budget(world, maxPerDay="10")
    sender, receiver = await agent(world), await agent(world)
    await _put(world, sender.wallet, budget)
    completed, refunded = await sender.lock(receiver, "2"), await sender.lock(receiver, "3", timeoutSeconds=60)
    await _put(world, sender.wallet, None)
    await world.ok("DELETE", _path(budget), {})

    await receiver.ok("POST", of(completed, "complete"), shows_output())
    await world.later(120)
    await world.keeper().tick()
    await world.catch_up()

    shown = [(await world.ok("GET", of(one)))["status"] for one in (completed, refunded)]
    assert shown == ["released", "refunded"]


async def test_preview_of_a_policy_does_not_undo_what_a_budget_refused(world: ServiceWorld) -> None:
    budget, to = await _budget(world, maxPerDay="10"), await world.payee()
    policy = await world.policy(maxPerTx="7")
    wallet = await world.wallet(policy["policy_id"], budgetId=budget["budget_id"])
    await world.pay(wallet, to, "6")
    error_of(await world.pay(wallet, to, "6.5"), 402, "policy_violation")

    preview = await world.ok("POST", f"/v1/policies/{policy['policy_id']}/preview", {"maxPerTx": "100"})

    assert (preview["payments"], preview["newly_confirmed"], preview["newly_blocked"]) == (2, 0, 0)


async def test_change_that_another_overtook_is_made_anew(world: ServiceWorld) -> None:
    budget = await _budget(world, maxPerDay="10", velocityCap=5)
    authority = world.service.signers.require_authority()
    theirs = world.build.update_budget(
        authority=authority.pubkey(),
        budget=Pubkey.from_string(_address(world, budget)),
        expected_version=budget["version"],
        limits=BudgetLimits(velocity_cap=9),
    )

    async def overtake() -> None:
        world.line.hold = lambda _method: None
        await world.land([theirs], authority)

    world.line.hold = lambda method: overtake() if method == "simulateTransaction" else None
    changed = await world.ok("PATCH", _path(budget), {"maxPerMonth": "50"})

    assert (changed["max_per_day"], changed["max_per_month"], changed["velocity_cap"]) == (None, "50.00", 9)


async def test_limit_that_lands_while_it_is_taken_back_is_taken_back(world: ServiceWorld) -> None:
    budget, service = await _budget(world, maxPerDay="10"), world.service
    world.line.lose_requests = lambda method: method == "sendTransaction"
    lost = error_of(await world.call("PATCH", _path(budget), {"maxPerDay": "1000"}), 503, "chain_unavailable")["tx_id"]
    world.line.mend()
    earlier = service.db.read_now(lambda conn: attempt(conn, lost))
    assert earlier is not None
    signature = str(earlier.signature)

    async def land() -> None:
        world.line.hold = lambda _method: None
        await service.submitter.resend(earlier)
        assert await service.chain.confirm(signature, timeout=5)

    world.line.hold = lambda method: land() if method == "getEpochInfo" else None
    assert (await world.ok("PATCH", _path(budget), {"maxPerDay": "10"}))["max_per_day"] == "10.00"
    assert (await world.ok("GET", _path(budget)))["version"] == budget["version"] + 2


async def test_budget_made_past_the_service_is_honoured(world: ServiceWorld) -> None:
    wallet, to, budget = await world.wallet(), await world.payee(), await _budget(world, maxPerDay="10")
    vault, build = Pubkey.from_string(wallet["chain_address"]), world.build
    operator, authority = world.service.signers.operator, world.service.signers.require_authority()
    address = Pubkey.from_string(_address(world, budget))

    # Given a payment that was simulated before the wallet was put into the budget
    async def attach() -> None:
        world.line.hold = lambda _method: None
        await world.land([build.set_wallet_budget(signer=operator.pubkey(), vault=vault, new_budget=address)], operator)

    world.line.hold = lambda method: attach() if method == "sendTransaction" else None
    key = {"Idempotency-Key": "overtaken"}
    error_of(await world.pay(wallet, to, "6", headers=key), 503, "chain_unavailable")

    # Then the chain refused it, and repeated it passes under the budget
    assert (await world.pay(wallet, to, "6", headers=key)).json()["status"] == "confirmed"
    error = error_of(await world.pay(wallet, to, "6"), 402, "policy_violation")
    assert error["violation"]["rule"] == "budget_max_per_day"
    # Out of it again, without the service: what the read models say is read again
    leave = build.set_wallet_budget(signer=authority.pubkey(), vault=vault, budget=address)
    await world.land([leave], authority)
    assert (await world.pay(wallet, to, "6")).json()["status"] == "confirmed"


async def test_under_the_flag_the_first_budget_needs_the_authority(own_world: ServiceWorld) -> None:
    world = own_world
    authority = world.service.signers.require_authority()
    wallet, budget, operator = await world.wallet(), await _budget(world), world.key("operator")
    await world.land([await world.org_update(authority.pubkey(), authority_attaches=True)], authority)
    await world.catch_up()

    answer = await world.call(
        "PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"budgetId": budget["budget_id"]}, key=operator
    )
    error_of(answer, 403, "insufficient_permissions")
    assert (await _put(world, wallet, budget))["budget_id"] == budget["budget_id"]
    made = await world.wallet(funds=None, budgetId=budget["budget_id"])
    assert made["budget_id"] == budget["budget_id"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hardened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hardened]:
    folder: Path = tmp_path_factory.mktemp("hardened")
    async with ServiceWorld(folder) as world:
        authority = read_key(folder / "keys" / "authority.json")
        (folder / "keys" / "authority.json").unlink()
        await world.restart()
        yield Hardened(world, authority)


async def test_budget_is_signed_elsewhere_from_creation_to_deletion(hardened: Hardened) -> None:
    world = hardened.world
    error_of(await world.call("POST", "/v1/budgets", {"name": "Late"}), 503, "authority_offline")

    made = await hardened.sent(await hardened.asked("POST", "/v1/budgets", {"name": "Mine", "maxPerDay": "5"}))
    assert (made["name"], made["max_per_day"]) == ("Mine", "5.00")
    changed = await hardened.sent(await hardened.asked("PATCH", _path(made), {"maxPerDay": "7"}))
    assert changed["headroom"]["day"] == "7.00"
    renaming = await world.call("PATCH", f"{_path(made)}?sign=offline", {"name": "Other"})
    error_of(renaming, 400, "invalid_request")
    # The operator puts a wallet in; the authority takes it out
    wallet = await world.wallet(funds=None, budgetId=made["budget_id"])
    path = f"/v1/wallets/{wallet['wallet_id']}"
    assert (await hardened.sent(await hardened.asked("PATCH", path, {"budgetId": None})))["budget_id"] is None
    deleted = await hardened.sent(await hardened.asked("DELETE", _path(made), {}))
    assert deleted["budget_id"] == made["budget_id"]
    error_of(await world.call("GET", _path(made)), 404, "budget_not_found")


def _address(world: ServiceWorld, budget: Json) -> str:
    found = world.service.db.read_now(lambda conn: budget_record(conn, world.org, budget["budget_id"]))
    assert found is not None
    return found.address
