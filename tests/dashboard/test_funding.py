"""Funding: where deposits go, money to vaults and back, top-ups; each amount before and after, and each moved once."""

import asyncio
from collections.abc import Callable

import pytest
from playwright.async_api import expect
from solders.keypair import Keypair

from app.organisations import deposits
from app.store.guard import mark_restored
from app.store.wallets import WalletRecord
from app.submission.database_guard import DatabaseGuard
from tests.dashboard.browsing import (
    LOOKS,
    Crafted,
    Served,
    choose,
    findings,
    forget_step_up,
    log,
    overflow,
    posted,
    refusals,
    sign_in,
    statements,
)
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _reserve(world: ServiceWorld) -> str:
    return str((await world.ok("GET", "/v1/organization"))["reserve_balance"])


async def _balance(world: ServiceWorld, wallet: Json) -> str:
    return str((await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"])


def _hidden(text: str, name: str) -> str:
    return text.partition(f'name="{name}" value="')[2].partition('"')[0]


@pytest.mark.proves("GET /dashboard/funding")
async def test_deposit_address_is_shown_with_its_code_and_its_mint(site: Served) -> None:
    world = site.world
    await world.wallet(label="Shown")
    shown = await world.ok("GET", "/v1/organization")
    for look in LOOKS:
        async with site.visit("operator", **look) as page:
            await page.goto(site.base)
            await choose(page, "Funding")
            await page.get_by_role("heading", name="Funding").wait_for()
            await expect(page.get_by_label("Deposit address")).to_have_value(shown["reserve_address"])
            code = page.get_by_role("img", name=f"QR code of {shown['reserve_address']}")
            box = await code.bounding_box()
            assert box is not None
            assert box["width"] > 150
            text = await page.locator("main").inner_text()
            assert shown["mint"] in text
            assert "Checked On the chain" in text
            assert "a test token, because Circle" in text
            assert await findings(page) == []
            assert await overflow(page) <= 0
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/funding")
async def test_mint_that_is_not_the_accounts_stops_deposits(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    monkeypatch.setattr(deposits, "_PATIENCE", 0.05)
    me = Crafted(world, sign_in(world, "viewer"))
    world.line.lose_requests = lambda method: method == "getMultipleAccounts"
    assert "Not checked" in (await me.client.get("/dashboard/funding")).text
    world.line.mend()
    world.line.hold = lambda method: asyncio.Event().wait() if method == "getMultipleAccounts" else None
    assert "Not checked" in (await me.client.get("/dashboard/funding")).text
    world.line.hold = lambda _method: None
    elsewhere = str(world.service.codec.program_id)
    broken: tuple[Callable[[Json], Json | None], ...] = (lambda _: None, lambda found: {**found, "owner": elsewhere})
    for instead in broken:
        world.line.alter = lambda _, result, instead=instead: {**result, "value": [instead(result["value"][0])]}
        text = (await me.client.get("/dashboard/funding")).text
        assert "Do not deposit" in text
        assert 'class="qr"' not in text
    world.line.mend()
    monkeypatch.undo()
    assert 'class="qr"' in (await me.client.get("/dashboard/funding")).text


async def test_reserve_that_the_organisation_does_not_derive_stops_deposits(own_world: ServiceWorld) -> None:
    # Given a row that was changed in the database, while no node can be asked
    world, thief = own_world, str(Keypair().pubkey())
    me = Crafted(world, sign_in(world, "viewer"))
    statement = f"UPDATE organisations SET reserve = '{thief}'"
    await world.service.db.write(lambda conn: conn.exec_driver_sql(statement))
    world.line.lose_requests = lambda method: method == "getMultipleAccounts"

    text = (await me.client.get("/dashboard/funding")).text

    assert ("Do not deposit" in text, 'class="qr"' in text, thief in text) == (True, False, False)


@pytest.mark.proves("POST /dashboard/funding/review", "POST /dashboard/funding/fund")
async def test_vaults_are_funded_together_once_the_amounts_are_confirmed(site: Served) -> None:
    world = site.world
    one, two = [await world.wallet(label=f"Hungry {number}", funds=f"{number + 1}") for number in range(2)]
    before = await _reserve(world)
    for look in reversed(LOOKS):
        async with site.visit("operator", **look) as page:
            await page.goto(f"{site.base}/funding?q=Hungry")
            await page.get_by_label("Add to Hungry 0").fill("2.5")
            await page.get_by_label("Add to Hungry 1").fill("4")
            await page.keyboard.press("Enter")
            await page.get_by_role("heading", name="Fund vaults").wait_for()
            assert await findings(page) == []
            assert await overflow(page) <= 0
            table = page.get_by_role("region", name="Before and after")
            rows = [await row.locator("th, td").all_inner_texts() for row in await table.locator("tbody tr").all()]
            assert rows[1:] == [["Hungry 0", "1.00", "3.50"], ["Hungry 1", "2.00", "6.00"]]
            assert (rows[0][0], rows[0][1].replace(",", "")) == ("Reserve", before)
            hidden = "one => one.scrollWidth - one.clientWidth"
            assert await table.evaluate(hidden) <= 0, "an amount is out of sight"
            await page.get_by_role("button", name="Change").click()
            await expect(page.get_by_label("Add to Hungry 0")).to_have_value("2.5")
            assert await _reserve(world) == before
            if look == LOOKS[0]:
                await page.get_by_role("button", name="Review").click()
                await page.get_by_role("button", name="Fund", exact=True).click()
                await page.get_by_text("The funding is confirmed.").wait_for()
    assert (await _balance(world, one), await _balance(world, two)) == ("3.50", "6.00")
    entry = log(world, "wallet.fund")[0]
    assert entry.actor.type == "person"
    assert entry.details["allocations"][0] == {"wallet_id": one["wallet_id"], "amount": "2.50"}
    assert site.violations == []


@pytest.mark.proves(
    "POST /dashboard/vaults/{wallet_id}/fund/review",
    "POST /dashboard/vaults/{wallet_id}/fund",
    "POST /dashboard/vaults/{wallet_id}/withdraw",
)
async def test_confirmation_sent_twice_moves_money_once(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="10")
    path = f"/dashboard/vaults/{wallet['wallet_id']}"
    operator = Crafted(world, sign_in(world, "operator"))
    for form, field, after in (("fund", "fund_amount", "15.00"), ("withdraw", "withdraw_amount", "10.00")):
        asked = await operator.post(f"{path}/{form}/review", {field: "5"})
        assert asked.status_code == 200
        confirmed = {field: "5", "idempotency_key": _hidden(asked.text, "idempotency_key")}
        for _ in range(2):
            assert (await operator.post(f"{path}/{form}", confirmed)).status_code == 303
        assert await _balance(world, wallet) == after
        other = await operator.post(f"{path}/{form}", {**confirmed, field: "6"})
        assert other.status_code == 409
        assert await _balance(world, wallet) == after


@pytest.mark.proves(
    "POST /dashboard/funding/fund",
    "GET /dashboard/vaults/{wallet_id}/funding",
    "POST /dashboard/vaults/{wallet_id}/withdraw/review",
    "POST /dashboard/vaults/{wallet_id}/withdraw",
)
async def test_withdrawal_shows_what_is_left_and_needs_a_step_up(site: Served) -> None:
    world = site.world
    wallet = await world.wallet(label="Rich", funds="97")
    place = f"{site.base}/vaults/{wallet['wallet_id']}/funding"
    for look in LOOKS:
        async with site.visit("operator", **look) as page:
            await page.goto(place)
            assert await findings(page) == []
            assert await overflow(page) <= 0
    async with site.visit("operator") as page:
        await page.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        await page.get_by_role("link", name="Fund or withdraw").click()
        await page.get_by_label("Back to the reserve").fill("all")
        await page.get_by_role("button", name="Review the withdrawal").click()
        table = page.get_by_role("region", name="Before and after")
        await expect(table).to_contain_text("Rich\t97.00\t0.00", use_inner_text=True)
        await page.get_by_role("button", name="Withdraw", exact=True).click()
        await page.get_by_text("The money is back in the reserve.").wait_for()
    assert await _balance(world, wallet) == "0.00"
    assert log(world, "wallet.withdraw")[0].actor.type == "person"
    assert site.violations == []

    operator = Crafted(world, sign_in(world, "operator"))
    csrf = await operator.csrf()
    forget_step_up(world)
    for path in (f"/dashboard/vaults/{wallet['wallet_id']}/withdraw", "/dashboard/funding/fund"):
        answer = await operator.post(path, {"withdraw_amount": "all"}, csrf=csrf)
        assert answer.status_code == 403
        assert "Confirm that it is you" in answer.text
    fields = {"fund_amount": "3"}
    funded = await operator.post(f"/dashboard/vaults/{wallet['wallet_id']}/fund", fields, csrf=csrf)
    assert funded.status_code == 303
    assert await _balance(world, wallet) == "3.00"


@pytest.mark.proves(
    "POST /dashboard/vaults/{wallet_id}/auto-topup/review", "POST /dashboard/vaults/{wallet_id}/auto-topup"
)
async def test_topup_rule_is_shown_before_and_after_it_is_saved(site: Served) -> None:
    world = site.world
    wallet = await world.wallet(label="Thirsty", funds="3")
    async with site.visit("operator") as page:
        await page.goto(f"{site.base}/vaults/{wallet['wallet_id']}/funding")
        await page.get_by_label("Rule").select_option("On")
        await page.get_by_label("When the vault holds less than").fill("5")
        await page.get_by_label("The reserve adds").fill("20")
        await page.get_by_role("button", name="Review the rule").click()
        await page.get_by_role("button", name="Save the rule").wait_for()
        text = await page.locator("main").inner_text()
        assert "Automatic top-up\toff\ton" in text
        assert "When the vault holds less than\t-\t5.00" in text
        assert "The reserve adds\t-\t20.00" in text
        assert "a top-up is due once the vault can be funded" in text
        await page.get_by_role("button", name="Save the rule").click()
        await page.get_by_text("The rule for automatic top-ups was saved.").wait_for()
        await expect(page.get_by_label("The reserve adds")).to_have_value("20.00")
        await page.goto(f"{site.base}/funding?q=Thirsty")
        await expect(page.get_by_role("row").nth(1)).to_contain_text("20.00 when below 5.00")
    rule = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/auto-topup")
    assert (rule["enabled"], rule["trigger_below"], rule["topup_amount"]) == (True, "5.00", "20.00")
    assert log(world, "topup.set")[0].actor.type == "person"
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/funding/review")
@pytest.mark.parametrize("amount", ["0", "-1", "1e3", "0.0000001", "99999999999999999999", "<b>"])
async def test_bad_amount_is_refused_at_its_field_and_kept(world: ServiceWorld, amount: str) -> None:
    wallet = await _cached(world)
    path = f"/dashboard/vaults/{wallet.wallet_id}"
    operator = Crafted(world, sign_in(world, "operator"))
    csrf = await operator.csrf()
    kept = f'value="{amount.replace("<", "&lt;").replace(">", "&gt;")}"'
    for place, field in (
        (f"{path}/fund", "fund_amount"),
        (f"{path}/withdraw", "withdraw_amount"),
        (f"{path}/auto-topup", "topup_amount"),
        ("/dashboard/funding", f"amount_{wallet.wallet_id}"),
    ):
        rule = {"enabled": "true", "trigger_below": "1"} if "topup" in place else {}
        last = "/fund" if place == "/dashboard/funding" else ""
        for step in ("/review", last) if amount == "-1" else ("/review",):
            answer = await operator.post(place + step, {**rule, field: amount}, csrf=csrf)
            assert answer.status_code == 400, place
            assert kept in answer.text, place
            says = answer.text.partition(f'id="{field}-says">')[2].partition("<")[0]
            assert says.removeprefix("This field ").startswith(
                ("is too large", "must be a decimal string", "must be greater")
            ), (place, says)
    assert world.wallet_record(wallet.wallet_id).balance == wallet.balance


async def _cached(world: ServiceWorld) -> WalletRecord:
    """The wallet of the tests that change none."""
    found = (await world.ok("GET", "/v1/wallets?tags=unchanged"))["data"]
    wallet = found[0] if found else await world.wallet(label="Unchanged", tags=["unchanged"], funds="7")
    return world.wallet_record(wallet["wallet_id"])


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/withdraw/review")
async def test_amount_that_nobody_has_is_refused_with_what_there_is(world: ServiceWorld) -> None:
    wallet = await _cached(world)
    path = f"/dashboard/vaults/{wallet.wallet_id}"
    operator = Crafted(world, sign_in(world, "operator"))
    csrf = await operator.csrf()
    for place, field in ((f"{path}/fund/review", "fund_amount"), ("/dashboard/funding/review", None)):
        name = field or f"amount_{wallet.wallet_id}"
        answer = await operator.post(place, {name: "2000000"}, csrf=csrf)
        assert answer.status_code == 422
        assert "The reserve holds" in answer.text
        assert 'value="2000000"' in answer.text
    answer = await operator.post(f"{path}/withdraw/review", {"withdraw_amount": "7.01"}, csrf=csrf)
    assert answer.status_code == 422
    assert "The vault holds 7.00 USDC." in answer.text
    empty = await world.wallet(funds=None)
    place = f"/dashboard/vaults/{empty['wallet_id']}/withdraw"
    for step in ("", "/review"):
        assert (await operator.post(place + step, {"withdraw_amount": "all"}, csrf=csrf)).status_code == 422
    none = await operator.post("/dashboard/funding/review", {}, csrf=csrf)
    assert "Type an amount next to each vault" in none.text
    eight = {f"amount_wal_{number}": "1" for number in range(8)}
    assert "at most 7 vaults" in (await operator.post("/dashboard/funding/review", eight, csrf=csrf)).text
    missing = await operator.post(f"{path}/auto-topup/review", {"enabled": "true", "topup_amount": "1"}, csrf=csrf)
    assert missing.status_code == 400


async def test_viewer_sees_no_form_and_crafted_requests_are_on_record(world: ServiceWorld) -> None:
    wallet = await _cached(world)
    path = f"/dashboard/vaults/{wallet.wallet_id}"
    viewer = Crafted(world, sign_in(world, "viewer"))
    for place in ("/dashboard/funding", f"{path}/funding"):
        text = (await viewer.client.get(place)).text
        assert "Unchanged" in text
        assert set(posted(text)) <= {"/dashboard/sign-out", "/dashboard/pause"}
    csrf = await viewer.csrf()
    for place in ("fund/review", "fund", "withdraw/review", "withdraw", "auto-topup/review", "auto-topup"):
        answer = await viewer.post(f"{path}/{place}", {"fund_amount": "1", "withdraw_amount": "1"}, csrf=csrf)
        assert answer.status_code == 403, place
        who, what = (await refusals(world))[0]
        assert who.startswith("person:")
        assert what == f"POST /dashboard/vaults/{{wallet_id}}/{place}"
    for place in ("review", "fund"):
        fields = {f"amount_{wallet.wallet_id}": "1"}
        assert (await viewer.post(f"/dashboard/funding/{place}", fields, csrf=csrf)).status_code == 403
    assert world.wallet_record(wallet.wallet_id).balance == wallet.balance


@pytest.mark.proves("GET /dashboard/vaults/{wallet_id}/funding")
async def test_another_organisations_vault_is_neither_shown_nor_funded(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(label="Secret")
    other = await world.organisation("other")
    stranger = Crafted(world, sign_in(world, "admin", org=other))
    path = f"/dashboard/vaults/{wallet['wallet_id']}"
    page = await stranger.client.get(f"{path}/funding")
    assert page.status_code == 404
    assert "Secret" not in page.text
    csrf = await stranger.csrf()
    for place in ("fund/review", "fund", "withdraw/review", "withdraw", "auto-topup/review", "auto-topup"):
        fields = {"fund_amount": "1", "withdraw_amount": "1", "enabled": "false"}
        answer = await stranger.post(f"{path}/{place}", fields, csrf=csrf)
        assert answer.status_code == 404, place
        assert "Secret" not in answer.text
    for place in ("review", "fund"):
        fields = {f"amount_{wallet['wallet_id']}": "1"}
        answer = await stranger.post(f"/dashboard/funding/{place}", fields, csrf=csrf)
        assert answer.status_code == 404
        assert "Secret" not in answer.text
    assert await _balance(world, wallet) == "100.00"


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/fund")
async def test_money_moves_after_a_restore_once_somebody_has_looked(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds="10")
    path = f"/dashboard/vaults/{wallet['wallet_id']}"
    await world.service.db.write(lambda conn: mark_restored(conn, gap_checked=False))
    await world.restart()
    await world.service.part(DatabaseGuard).tick()
    operator = Crafted(world, sign_in(world, "operator"))
    asked = await operator.post(f"{path}/fund/review", {"fund_amount": "5"})
    assert "I have checked" in asked.text
    fields = {"fund_amount": "5", "idempotency_key": _hidden(asked.text, "idempotency_key")}
    assert (await operator.post(f"{path}/fund", fields)).status_code == 409
    assert (await operator.post(f"{path}/fund", {**fields, "after_restore": "true"})).status_code == 303
    assert await _balance(world, wallet) == "15.00"


async def test_page_of_vaults_takes_three_statements_and_one_of_sums(world: ServiceWorld) -> None:
    await _cached(world)
    me = Crafted(world, sign_in(world, "viewer"))
    await me.client.get("/dashboard/funding")
    with statements() as executed:
        await me.client.get("/dashboard/funding")
    assert len([one for one in executed if "wallets" in one or "topup_rules" in one]) <= 4


@pytest.mark.proves("POST /dashboard/funding/sol")
async def test_admin_lowers_the_limits_of_network_fees(own_world: ServiceWorld) -> None:
    world = own_world
    await world.restart(sol_per_day="20")
    admin, viewer = (Crafted(world, sign_in(world, role)) for role in ("admin", "viewer"))
    path, fields = "/dashboard/funding/sol", {"sol_per_day": "2.5", "sol_per_wallet_day": "", "sol_held_per_wallet": ""}

    saved = await admin.post(path, fields)

    assert (saved.status_code, saved.headers["location"]) == (303, "/dashboard/funding?done=sol-limits-saved")
    text = (await admin.client.get("/dashboard/funding")).text
    assert "<dd>2.50</dd>" in text
    assert "<dd>no limit</dd>" in text
    refused = await admin.post(path, {**fields, "sol_per_day": "21"})
    assert "must not exceed the limit" in refused.text
    assert (await viewer.post(path, fields)).status_code == 403
    await admin.post(path, {**fields, "sol_per_day": ""})
    assert (await world.ok("GET", "/v1/organization"))["sol"]["sol_per_day"] == "20.00"
