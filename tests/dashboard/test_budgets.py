"""Budgets: what vaults spend together, the forms that change it, conflicts, and who may do what."""

import re
from html import unescape
from typing import Any

import pytest
from playwright.async_api import expect

from tests.dashboard.browsing import (
    LOOKS,
    Crafted,
    Served,
    choose,
    findings,
    forget_step_up,
    log,
    refusals,
    sign_in,
)
from tests.dashboard.corpus import CORPUS
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

_LIMITS: Json = {"maxPerDay": "20", "maxPerMonth": "100", "velocityCap": 9}


async def _budget(world: ServiceWorld, name: str = "Team", **limits: Any) -> Json:
    return await world.ok("POST", "/v1/budgets", {"name": name, **limits})


def _path(budget: Json) -> str:
    return f"/dashboard/budgets/{budget['budget_id']}"


async def _now(world: ServiceWorld, budget: Json) -> Json:
    return await world.ok("GET", f"/v1/budgets/{budget['budget_id']}")


def _hidden(page: str) -> Json:
    """The hidden and the typed fields of the form of limits, as a browser would send them."""
    form = page.partition("/review")[2].partition("</form>")[0]
    found = {}
    for tag in re.findall(r"<input[^>]*>", form):
        name, value = (re.search(rf'\b{one}="([^"]*)"', tag) for one in ("name", "value"))
        if name and name[1] != "csrf":
            found[name[1]] = unescape(value[1]) if value else ""
    return found


@pytest.mark.proves("GET /dashboard/budgets", "GET /dashboard/budgets/{budget_id}")
async def test_budgets_show_what_is_spent_and_left(site: Served) -> None:
    world = site.world
    budget = await _budget(world, CORPUS[0], **_LIMITS)
    policy = await world.policy(maxPerDay="15", velocityCap=5)
    wallets = [
        await world.wallet(policy["policy_id"], label=f"Member {number}", budgetId=budget["budget_id"])
        for number in range(2)
    ]
    for wallet in wallets:
        await world.pay(wallet, await world.payee(), "6")
    for role, look in zip(("viewer", "admin"), LOOKS, strict=True):
        async with site.visit(role, **look) as page:  # type: ignore[arg-type]
            await page.goto(site.base)
            await choose(page, "Budgets")
            row = page.get_by_role("row").filter(has_text=CORPUS[0])
            for text in ("12.00 of 20.00", "8.00 left", "12.00 of 100.00", "2 of 9", "7 left"):
                await expect(row).to_contain_text(text)
            await expect(page.get_by_role("button", name="Create")).to_have_count(int(role == "admin"))
            await row.get_by_role("link").click()
            await expect(page.get_by_role("heading", name=CORPUS[0])).to_be_visible()
            await expect(page.locator("main")).to_contain_text("8.00 left")
            await expect(page.locator("main form")).to_have_count(0 if role == "viewer" else 5)
            if role == "viewer":
                said = "The budget's vaults together may spend at most 20.00 USDC in any 24 hours."
                await expect(page.get_by_text(said)).to_be_visible()
            await page.get_by_role("link", name="Member 1").click()
            await expect(page.get_by_role("heading", name="Budget")).to_be_visible()
            await expect(page.locator(".bars")).to_contain_text("12.00 of 20.00")
            await page.get_by_role("link", name=CORPUS[0]).click()
            await expect(page.get_by_role("link", name="Member 0")).to_be_visible()
    assert site.violations == []


@pytest.mark.proves(
    "POST /dashboard/budgets",
    "POST /dashboard/budgets/check",
    "POST /dashboard/budgets/{budget_id}/delete",
    "POST /dashboard/budgets/{budget_id}/vaults",
    "POST /dashboard/vaults/{wallet_id}/budget",
)
async def test_budget_is_made_and_bounds_the_vault_put_into_it(site: Served) -> None:
    world = site.world
    lax, payee = await world.policy(maxPerTx="50"), await world.payee()
    wallet = await world.wallet(lax["policy_id"], label="Spender")
    other = await world.wallet(label="Spender two")
    async with site.visit("admin", name="Ada") as page:
        await page.goto(f"{site.base}/budgets")
        await page.get_by_label("Name").fill("Made here")
        await page.get_by_label("In 24 hours").fill("1,5")
        says = page.locator("#max_per_day-says")
        await expect(says).to_contain_text("such as 12.50. Did you mean 1.5?")
        await page.get_by_label("In 24 hours").fill("10")
        await expect(says).to_have_text("The budget's vaults together may spend at most 10.00 USDC in any 24 hours.")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_text("The budget was created.")).to_be_visible()
        await expect(page.get_by_text("The budget has no vaults, so it limits no payments.")).to_be_visible()
        await page.get_by_label("Put a vault in").fill("Spender")
        await page.get_by_role("button", name="Put in").click()
        await expect(page.get_by_text("the chain counts all payments of the vault from now on")).to_be_visible()
        await expect(page.get_by_text("1 vault might use up this budget alone")).to_be_visible()
        made = page.url.rpartition("/")[2].partition("?")[0]
        assert (await world.pay(wallet, payee, "6")).json()["status"] == "confirmed"
        # The open page follows.
        await expect(page.locator("main")).to_contain_text("6.00 of 10.00")
        violation = error_of(await world.pay(wallet, payee, "6"), 402, "policy_violation")["violation"]
        assert violation["rule"] == "budget_max_per_day"
        # The other one joins on its own page, and leaves again.
        await page.goto(f"{site.base}/vaults/{other['wallet_id']}")
        await page.get_by_label("Another budget").select_option("Made here")
        await page.get_by_role("button", name="Move").click()
        await expect(page.get_by_role("link", name="Made here")).to_be_visible()
        await page.get_by_label("Another budget").select_option("None")
        await page.get_by_role("button", name="Move").click()
        await expect(page.get_by_text("The vault is no longer in the budget.")).to_be_visible()
        await page.goto(f"{site.base}/budgets/{made}")
        await page.get_by_role("button", name="Take Spender out").click()
        await expect(page.get_by_text("The vault is no longer in the budget.")).to_be_visible()
        await page.get_by_text("Delete the budget").click()
        await page.get_by_role("button", name="Delete").click()
        await expect(page.get_by_text("The budget was deleted.")).to_be_visible()
        await expect(page.get_by_role("link", name="Made here")).to_have_count(0)
    for action in ("budget.create", "budget.delete"):
        assert (log(world, action)[0].actor.type, log(world, action)[0].object) == ("person", made)
    assert {one.object for one in log(world, "wallet.update")} >= {wallet["wallet_id"], other["wallet_id"]}
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/budgets/{budget_id}", "POST /dashboard/budgets/{budget_id}/review")
async def test_two_people_who_change_limits_at_once_lose_nothing(site: Served) -> None:
    world = site.world
    budget = await _budget(world, "Shared", **_LIMITS)
    async with site.visit("admin", name="Slow") as slow, site.visit("admin", name="Quick") as quick:
        for page in (slow, quick):
            await page.goto(f"{site.base}/budgets/{budget['budget_id']}")
        await slow.get_by_label("In 24 hours").fill("33")
        await slow.get_by_label("Payments an hour").fill("")
        await slow.get_by_role("button", name="Review the change").click()
        await expect(slow.get_by_role("region", name="Before and after")).to_contain_text("20.00 USDC")
        assert (await _now(world, budget)) == budget
        await quick.get_by_label("Per month").fill("150")
        await quick.get_by_label("Name").fill("Renamed")
        await quick.get_by_role("button", name="Review the change").click()
        await expect(quick.get_by_role("button", name="Save")).to_be_visible()
        assert await findings(quick) == []
        await quick.get_by_role("button", name="Save").click()
        await expect(quick.get_by_text("Saved. New limits apply to all vaults of the budget")).to_be_visible()
        await expect(quick.locator(".history li").first).to_contain_text("Quick")
        now = await _now(world, budget)

        await slow.get_by_role("button", name="Save").click()
        await expect(slow.get_by_role("alert")).to_contain_text("Another change was saved while you were editing.")
        meanwhile = slow.locator("section", has_text="Changed by others")
        await expect(meanwhile).to_contain_text("100.00 USDC → 150.00 USDC")
        for name, value in (("name", "Renamed"), ("max_per_day", "33.00"), ("max_per_month", "150.00")):
            await expect(slow.locator(f"#{name}")).to_have_value(value)
        await expect(slow.get_by_label("Payments an hour")).to_have_value("")
        assert (await _now(world, budget)) == now
        await slow.get_by_role("button", name="Review the change").click()
        await slow.get_by_role("button", name="Save").click()
        await expect(slow.get_by_text("Saved. New limits apply to all vaults of the budget")).to_be_visible()
    after = await _now(world, budget)
    assert [after[name] for name in ("name", "max_per_day", "max_per_month", "velocity_cap")] == [
        *("Renamed", "33.00", "150.00"),
        None,
    ]
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/budgets/{budget_id}")
async def test_saved_twice_a_budget_changes_once(world: ServiceWorld) -> None:
    budget = await _budget(world, **_LIMITS)
    admin = Crafted(world, sign_in(world, "admin"))
    fields = _hidden((await admin.client.get(_path(budget))).text) | {"max_per_day": "21"}
    asked = await admin.post(f"{_path(budget)}/review", fields)
    key = asked.text.partition('name="idempotency_key" value="')[2].partition('"')[0]
    answers = [await admin.post(_path(budget), {**fields, "idempotency_key": key}) for _ in range(2)]
    assert [one.headers["location"] for one in answers] == [f"{_path(budget)}?done=budget-saved"] * 2
    assert len([one for one in log(world, "budget.update") if one.object == budget["budget_id"]]) == 1
    back = await admin.post(f"{_path(budget)}/review", {**fields, "expected_version": "1-0", "change": "1"})
    assert (back.status_code, 'value="21.00"' in back.text) == (200, True)
    same = await admin.post(f"{_path(budget)}/review", _hidden((await admin.client.get(_path(budget))).text))
    assert (same.status_code, "You have not changed any field." in same.text) == (400, True)


@pytest.mark.proves("POST /dashboard/budgets")
async def test_field_of_a_budget_is_refused_with_its_message(world: ServiceWorld) -> None:
    budget = await _budget(world, **_LIMITS)
    first, second = await world.wallet(label="Twin a"), await world.wallet(label="Twin b")
    elsewhere = await world.wallet(label="Elsewhere", budgetId=(await _budget(world))["budget_id"])
    admin = Crafted(world, sign_in(world, "admin"))
    for path, field, typed, message, more in (
        ("/dashboard/budgets", "name", " ", "is required.", {"max_per_day": "7"}),
        ("/dashboard/budgets", "max_per_month", "-1", "must be a decimal string", {"name": "Kept"}),
        ("/dashboard/budgets", "velocity_cap", "often", "must be a whole number.", {"name": "Kept"}),
        (f"{_path(budget)}/review", "max_per_day", "x", "must be a decimal string", {"name": "Kept"}),
        (f"{_path(budget)}/vaults", "vault", "", "is required.", {}),
        (
            f"{_path(budget)}/vaults",
            "vault",
            "nobody",
            "No vault matches. An archived vault is found only by its id.",
            {},
        ),
        (f"{_path(budget)}/vaults", "vault", "Twin", "2 vaults match. Type the id of one.", {}),
        (f"{_path(budget)}/vaults", "vault", "Elsewhere", "The vault is in another budget.", {}),
    ):
        fields = {**(_hidden((await admin.client.get(_path(budget))).text) if "review" in path else {}), **more}
        answer = await admin.post(path, {**fields, field: typed})
        says = re.search(rf'<p class="says wrong" id="{field}-says">([^<]*)', answer.text)
        assert says is not None, (path, field, answer.status_code)
        assert message in unescape(says[1])
        assert answer.status_code in {400, 422}
        for value in more.values():
            assert f'value="{value}"' in answer.text
    assert (await _now(world, budget))["wallet_count"] == 0
    shown = await world.ok("GET", f"/v1/wallets/{elsewhere['wallet_id']}")
    assert shown["budget_id"] == elsewhere["budget_id"]
    for wallet in (first, second):
        put = await admin.post(f"{_path(budget)}/vaults", {"vault": wallet["wallet_id"]})
        assert put.status_code == 303
    used = await admin.post(f"{_path(budget)}/delete", {"expected_version": str(budget["version"])})
    assert (used.status_code, "Vaults are still in the budget" in used.text) == (422, True)


@pytest.mark.proves(
    "POST /dashboard/budgets/{budget_id}/delete",
    "POST /dashboard/budgets/{budget_id}/vaults",
    "POST /dashboard/budgets/{budget_id}/vaults/{wallet_id}/take-out",
)
async def test_change_of_a_budget_waits_for_a_step_up(world: ServiceWorld) -> None:
    budget, wallet = await _budget(world, **_LIMITS), await world.wallet(label="Waits")
    admin = Crafted(world, sign_in(world, "admin"))
    fields = _hidden((await admin.client.get(_path(budget))).text) | {"max_per_day": "6"}
    forget_step_up(world)
    for path, sent in (
        ("/dashboard/budgets", {"name": "New"}),
        (_path(budget), fields),
        (f"{_path(budget)}/delete", fields),
        (f"{_path(budget)}/unfreeze", {}),
        (f"{_path(budget)}/vaults", {"vault": wallet["wallet_id"]}),
        (f"{_path(budget)}/vaults/{wallet['wallet_id']}/take-out", {}),
        (f"/dashboard/vaults/{wallet['wallet_id']}/budget", {"budget_id": budget["budget_id"]}),
    ):
        answer = await admin.post(path, sent)
        assert (answer.status_code, "Confirm that it is you" in answer.text) == (403, True), path
    assert await _now(world, budget) == budget
    assert (await admin.post(f"{_path(budget)}/review", fields)).status_code == 200


@pytest.mark.proves(
    "GET /dashboard/budgets",
    "POST /dashboard/budgets",
    "POST /dashboard/budgets/{budget_id}/freeze",
    "POST /dashboard/budgets/{budget_id}/unfreeze",
)
async def test_budgets_are_drawn_as_a_tree_and_frozen_at_once(site: Served) -> None:
    world = site.world
    company = await _budget(world, "Whole company", maxPerDay="20", maxTotal="50")
    async with site.visit("admin", name="Ada") as page:
        await page.goto(f"{site.base}/budgets")
        await page.get_by_label("Name").fill("Red team")
        await page.get_by_label("In total").fill("30")
        await page.get_by_label("Ends").fill("2099-01-31T10:00")
        await expect(page.locator("#expires_at-says")).to_contain_text(
            "every payment of the budget's vaults is refused"
        )
        await page.get_by_label("Part of").select_option("Whole company")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_text("The budget was created.")).to_be_visible()
        made = page.url.rpartition("/")[2].partition("?")[0]
        await expect(page.get_by_label("Ends")).to_have_value("2099-01-31T10:00")
        wallet, payee = await world.wallet(label="Red agent", budgetId=made), await world.payee()
        assert (await world.pay(wallet, payee, "6")).json()["status"] == "confirmed"
        await page.goto(f"{site.base}/budgets")
        rows = page.get_by_role("row").filter(has_text="company")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("6.00 of 50.00")
        await expect(rows.last).to_contain_text("part of Whole company")
        await expect(rows.last).to_contain_text("24.00 left")
        assert await findings(page) == []
        await rows.first.get_by_role("link", name="Whole company").click()
        await expect(page.get_by_role("link", name="Red team")).to_be_visible()
    async with site.visit("operator") as page:
        await page.goto(f"{site.base}/budgets/{company['budget_id']}")
        await page.get_by_role("button", name="Freeze").click()
        await expect(page.get_by_text("The chain refuses all payments under the budget")).to_be_visible()
        await expect(page.get_by_role("button", name="Unfreeze")).to_have_count(0)
        await page.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        await expect(page.get_by_text("It is frozen, so the vault cannot pay.")).to_be_visible()
        assert await findings(page) == []
    assert (await _now(world, company))["status"] == "frozen"
    violation = error_of(await world.pay(wallet, payee, "1"), 402, "policy_violation")["violation"]
    assert (violation["rule"], violation["budget_id"]) == ("budget_frozen", company["budget_id"])
    async with site.visit("admin", name="Eve") as page:
        await page.goto(f"{site.base}/budgets/{company['budget_id']}")
        await page.get_by_role("button", name="Unfreeze").click()
        await expect(page.get_by_text("The budget is active again.")).to_be_visible()
        await expect(page.locator(".history li").first).to_contain_text("Unfrozen")
    assert (await world.pay(wallet, payee, "1")).json()["status"] == "confirmed"
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/budget")
async def test_viewers_crafted_budget_requests_are_refused(world: ServiceWorld) -> None:
    budget, wallet = await _budget(world, **_LIMITS), await world.wallet()
    for role in ("viewer", "operator"):
        who = Crafted(world, sign_in(world, role))
        csrf = await who.csrf()
        for path in (
            "/dashboard/budgets",
            "/dashboard/budgets/check",
            *(f"/dashboard/budgets/{{budget_id}}{end}" for end in ("", "/review", "/delete", "/vaults", "/unfreeze")),
            "/dashboard/budgets/{budget_id}/vaults/{wallet_id}/take-out",
            "/dashboard/vaults/{wallet_id}/budget",
        ):
            fields = {"name": "Mine", "max_per_day": "500", "budget_id": budget["budget_id"]}
            sent = path.format(budget_id=budget["budget_id"], wallet_id=wallet["wallet_id"])
            assert (await who.post(sent, fields, csrf=csrf)).status_code == 403, path
            assert (await refusals(world))[0][1] == f"POST {path}"
    assert await _now(world, budget) == budget


@pytest.mark.proves(
    "GET /dashboard/budgets/{budget_id}", "POST /dashboard/budgets/{budget_id}/vaults/{wallet_id}/take-out"
)
async def test_budget_of_another_organisation_is_not_found(own_world: ServiceWorld) -> None:
    budget, wallet = await _budget(own_world, "Secret plan", **_LIMITS), await own_world.wallet(label="Theirs")
    other = await own_world.organisation("other")
    stranger = Crafted(own_world, sign_in(own_world, "admin", org=other))
    fields = {"name": "Mine", "was_name": "x", "max_per_day": "7", "expected_version": "1", "vault": "Theirs"}
    found = [
        await stranger.client.get(_path(budget)),
        *[await stranger.post(f"{_path(budget)}{end}", fields) for end in ("", "/review", "/delete", "/vaults")],
        await stranger.post(f"{_path(budget)}/vaults/{wallet['wallet_id']}/take-out"),
        await stranger.post(f"/dashboard/vaults/{wallet['wallet_id']}/budget", {"budget_id": budget["budget_id"]}),
    ]
    assert [one.status_code for one in found] == [404] * len(found)
    assert all("Secret plan" not in one.text for one in found)
    assert await _now(own_world, budget) == budget


@pytest.mark.proves("POST /dashboard/budgets/{budget_id}")
async def test_budget_without_the_authority_key_waits_for_its_signature(own_world: ServiceWorld) -> None:
    world = own_world
    budget, wallet = await _budget(world, **_LIMITS), await world.wallet(label="Member")
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"budgetId": budget["budget_id"]})
    (world.settings.data_dir / "keys" / "authority.json").unlink()
    await world.restart()
    admin = Crafted(world, sign_in(world, "admin"))
    page, new = (await admin.client.get(_path(budget))).text, (await admin.client.get("/dashboard/budgets")).text
    assert "This service does not have the key" in page
    key = new.partition('name="idempotency_key" value="')[2].partition('"')[0]
    for path, sent in (
        (_path(budget), _hidden(page) | {"max_per_day": "6"}),
        ("/dashboard/budgets", {"name": "New", "idempotency_key": key}),
        ("/dashboard/budgets", {"name": "New", "idempotency_key": key}),
        (f"{_path(budget)}/vaults/{wallet['wallet_id']}/take-out", {}),
    ):
        answer = await admin.post(path, sent)
        assert answer.headers["location"] == "/dashboard/signatures?done=awaiting-signature", path
    waiting = sorted(one["type"] for one in (await world.ok("GET", "/v1/signed-transactions"))["data"])
    assert waiting == ["create_budget", "update_budget", "update_wallet"]


async def test_pages_are_shown_while_the_chain_does_not_answer(own_world: ServiceWorld) -> None:
    budget = await _budget(own_world, "Silent", **_LIMITS)
    wallet = await own_world.wallet(label="Member", budgetId=budget["budget_id"])
    admin = Crafted(own_world, sign_in(own_world, "admin"))
    own_world.line.lose_requests = lambda _method: True
    found = [await admin.client.get(path) for path in (_path(budget), f"/dashboard/vaults/{wallet['wallet_id']}")]
    own_world.line.mend()
    assert [one.status_code for one in found] == [200, 200]
    assert all("chain does not answer" in one.text for one in found)
    assert ">Freeze</button>" in found[1].text


async def test_pages_of_budgets_ask_the_database_little(world: ServiceWorld) -> None:
    budget = await _budget(world, **_LIMITS)
    for _ in range(3):
        await world.wallet(budgetId=budget["budget_id"], funds=None)
    admin = Crafted(world, sign_in(world, "admin"))
    # The second has three tables: the limits, the vaults, and the changes with the names of who made them.
    for path, tables in (("/dashboard/budgets", 1), (_path(budget), 3)):
        asked = await admin.queries(path)
        assert len(asked) <= 3 * tables, asked
