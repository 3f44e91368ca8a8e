"""Policies: the list, the editor with its live check and preview, copies, conflicts, and who changed what."""

import re
from html import unescape
from typing import Any

import pytest
from playwright.async_api import expect
from solders.keypair import Keypair

from app.access.recorder import Recorder
from app.dashboard.forms.formatting import LABELS
from app.dashboard.forms.policy import blank
from app.dashboard.forms.policy_sentences import Reader, sentences
from app.dashboard.forms.policy_templates import TEMPLATES
from app.policies import preview as policy_preview
from tests.dashboard.browsing import (
    Crafted,
    Served,
    choose,
    findings,
    forget_step_up,
    log,
    overflow,
    sign_in,
)
from tests.dashboard.corpus import CORPUS
from tests.support.service_world import Json, ServiceWorld
from tests.support.unowned import unowned

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PHONE: Json = {"viewport": {"width": 390, "height": 844}}
_DARK: Json = {"color_scheme": "dark"}
#: Where the forms of one policy go.
_OF_ONE = ("", "/edit", "/review", "/preview", "/delete")
_LOWER = "The cap of 500.00 for 24 hours is lower, so it can refuse first."


def _path(policy: Json) -> str:
    return f"/dashboard/policies/{policy['policy_id']}"


def _text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


async def _form(who: Crafted, path: str) -> Json:
    """The fields of the form at this address, as a browser would send them."""
    page = (await who.client.get(path)).text
    fields: Json = {}
    for tag in re.findall(r"<input[^>]*>", page):
        name, value = (re.search(rf'\b{one}="([^"]*)"', tag) for one in ("name", "value"))
        if name and name[1] != "csrf" and ("checkbox" not in tag or " checked" in tag):
            fields.setdefault(name[1], []).append(unescape(value[1]) if value else "")
    for name, value in re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL):
        fields[name] = unescape(value)
    for name, options in re.findall(r'<select[^>]* name="(\w+)"[^>]*>(.*?)</select>', page, re.DOTALL):
        [first, *_] = re.findall(r'<option value="(\w*)"', options)
        chosen = re.search(r'<option value="(\w*)" selected>', options)
        fields[name] = chosen[1] if chosen else first
    return fields


@pytest.mark.proves("GET /dashboard/policies")
async def test_list_marks_presets_and_counts_vaults(site: Served) -> None:
    world = site.world
    made = await world.policy(name=CORPUS[0], maxPerTx="5", maxPerDay="2000", velocityCap=3)
    await world.wallet(made["policy_id"], label="Bound one", funds=None)
    for role, options in (("viewer", _PHONE | _DARK), ("admin", {})):
        async with site.visit(role, **options) as page:  # type: ignore[arg-type]
            await page.goto(site.base)
            await choose(page, "Policies")
            row = page.get_by_role("row").filter(has_text=CORPUS[0])
            await row.wait_for()
            shown = [await one.inner_text() for one in await row.locator("td").all()]
            assert shown == ["1", "5.00", "2,000.00", "no cap", "3", "never", "any"]
            await expect(page.locator("tr:has-text('Preset')")).to_have_count(4)
            assert await page.get_by_role("link", name="New policy").count() == (role == "admin")
            assert await findings(page) == []
            assert await overflow(page) <= 0
            await row.get_by_role("link").click()
            await page.get_by_role("heading", name=CORPUS[0]).wait_for()
            await expect(page.get_by_role("link", name="Bound one")).to_have_count(1)
            if role != "admin":
                await expect(page.locator("main form")).to_have_count(0)
                assert "Each vault may spend at most 2,000.00 USDC in any 24 hours." in await page.content()
            await page.get_by_role("link", name="Bound one").click()
            await page.get_by_role("link", name=CORPUS[0]).wait_for()
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/policies/check")
async def test_each_field_says_what_it_means_as_it_is_typed(site: Served) -> None:
    async with site.visit("admin") as page:
        await page.goto(f"{site.base}/policies/new?from=pol_moderate")
        amount, says = page.get_by_label("Per payment"), page.locator("#max_per_tx-says")
        await expect(says).to_have_text("A payment of more than 100.00 USDC is refused.")
        for typed, said in (
            ("1,5", "This field must be a decimal string with at most 6 decimals, such as 12.50. Did you mean 1.5?"),
            ("12.5", "A payment of more than 12.50 USDC is refused."),
            ("0", "Every payment is refused."),
            ("", "This policy has no cap for a single payment."),
            ("900", f"A payment of more than 900.00 USDC is refused. {_LOWER}"),
        ):
            await amount.fill(typed)
            await says.get_by_text(said, exact=True).wait_for()
            invalid = page.locator("#max_per_tx[aria-invalid=true]")
            await (invalid if typed == "1,5" else page.locator("#max_per_tx:not([aria-invalid])")).wait_for()
        await page.get_by_label("Only these recipients").fill("shop.example.com\n\nnot an address")
        await page.get_by_text("Entry 2: The recipient must be a chain address, a wallet id or a domain.").wait_for()
        await page.get_by_text("1 field is not valid yet.").wait_for()
        assert await findings(page) == []
        await page.get_by_label("Only these recipients").fill("shop.example.com")
        await page.get_by_text("Only this recipient can be paid.").wait_for()
        await page.get_by_label("Gambling").check()
        await page.get_by_label("Uncategorized").check()
        await page.get_by_text("Recipients in Uncategorized and Gambling are refused. So are unregistered").wait_for()
        await page.get_by_label("Ends (UTC)").fill("2020-01-01T00:00:00")
        await page.get_by_text("This time has passed: every payment is refused").wait_for()
        await page.get_by_label("Ends (UTC)").fill("2040-01-01T00:00:00")
        # The sentence has the reader's own time.
        await page.locator('#expiry-says time[datetime="2040-01-01T00:00:00.000Z"][data-local]').wait_for()
        await page.get_by_label("Approval above").fill("20")
        await page.get_by_label("Payments an hour").fill("1")
        await page.get_by_text("Each vault may make at most 1 payment in any hour.").wait_for()
        await page.get_by_text("An agent's payment of more than 20.00 USDC waits for an operator's").wait_for()
        assert await page.evaluate("document.activeElement.id") == "velocity_cap"
    assert site.violations == []


@pytest.mark.proves(
    "GET /dashboard/policies/{policy_id}",
    "POST /dashboard/policies/{policy_id}/review",
    "POST /dashboard/policies/{policy_id}/edit",
    "POST /dashboard/policies/{policy_id}/preview",
)
async def test_change_shows_vaults_and_last_week_before_it_is_saved(site: Served) -> None:
    world = site.world
    policy = await world.policy(name="Ads", maxPerTx="50", maxPerDay="200", blockedCategories=["mixer"])
    wallet, payee = await world.wallet(policy["policy_id"], label="Ad buyer"), await world.payee()
    for amount in ("5", "20", "60"):
        await world.pay(wallet, payee, amount)
    async with site.visit("admin", **_PHONE, **_DARK) as page:
        await page.goto(f"{site.base}/policies/{policy['policy_id']}")
        assert await findings(page) == []
        assert await overflow(page) <= 0
        await page.get_by_label("Per payment").fill("10")
        await page.get_by_label("In 24 hours").fill("")
        await page.get_by_label("Only these recipients").fill(f"{payee}\nads.example.com")
        await page.get_by_label("Mixer").uncheck()
        await page.get_by_role("button", name="Review the change").click()
        await page.get_by_role("heading", name="Review the change").wait_for()
        await page.get_by_text("20.00 is above the 10.00 limit per payment").wait_for()
        text = " ".join((await page.locator("main").inner_text()).split())
        for expected in (
            "Per payment 50.00 USDC → 10.00 USDC A payment of more than 10.00 USDC is refused.",
            "In 24 hours 200.00 USDC → no cap",
            "(any → 2 recipients)",
            "Blocked categories Mixer (1 category → none)",
            "1 vault is under this policy",
            "Judged again 3",
            "Newly refused 1",
            "Newly allowed 0",
        ):
            assert expected in text
        assert await findings(page) == []
        assert await overflow(page) <= 0
        await page.get_by_role("button", name="Back to the form").click()
        await expect(page.get_by_label("Per payment")).to_have_value("10")
        await page.get_by_role("button", name="Review the change").click()
        # Looking at it changed nothing.
        assert (await world.ok("GET", f"/v1/policies/{policy['policy_id']}"))["version"] == policy["version"]
        await page.get_by_role("button", name="Save", exact=True).click()
        await page.get_by_text("Saved. New rules apply to all vaults of the policy").wait_for()
        await expect(page.locator(".head")).to_contain_text("Version 2")
        await expect(page.locator(".history li").first).to_contain_text("Ada")
        await expect(page.locator(".history del", has_text="50.00 USDC")).to_have_count(1)
        assert await findings(page) == []
    changed = await world.ok("GET", f"/v1/policies/{policy['policy_id']}")
    assert (changed["max_per_tx"], changed["max_per_day"]) == ("10.00", None)
    assert (set(changed["allowed_recipients"]), changed["blocked_categories"]) == ({payee, "ads.example.com"}, [])
    entry = log(world, "policy.update")[0]
    assert (entry.actor.type, entry.object) == ("person", policy["policy_id"])
    fields = ["allowed_recipients", "blocked_categories", "max_per_day", "max_per_tx"]
    assert entry.details["fields"] == fields
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/policies/{policy_id}")
async def test_two_people_who_edit_at_once_lose_nothing(site: Served) -> None:
    world = site.world
    policy = await world.policy(name="Shared", maxPerTx="50", maxPerDay="200", velocityCap=9)
    address = f"{site.base}/policies/{policy['policy_id']}"
    async with site.visit("admin") as slow, site.visit("admin", **_PHONE) as quick:
        for page in (slow, quick):
            await page.goto(address)
        await slow.get_by_label("Per payment").fill("33")
        await slow.get_by_label("Payments an hour").fill("7")
        await slow.get_by_role("button", name="Review the change").click()
        await quick.get_by_label("In 24 hours").fill("150")
        await quick.get_by_label("Payments an hour").fill("8")
        await quick.get_by_label("Name").fill("Renamed")
        await quick.get_by_role("button", name="Review the change").click()
        await quick.get_by_role("button", name="Save", exact=True).click()
        await quick.get_by_text("Saved. New rules apply").wait_for()
        now = await world.ok("GET", f"/v1/policies/{policy['policy_id']}")

        await slow.get_by_role("button", name="Save", exact=True).click()
        await slow.get_by_text("Another change of the policy was saved while you edited it.").wait_for()
        meanwhile = " ".join((await slow.locator("section", has_text="Changed by others").inner_text()).split())
        assert "Ada" in meanwhile
        assert "In 24 hours 200.00 USDC → 150.00 USDC" in meanwhile
        assert "Payments an hour 9 → 8" in meanwhile
        assert "Name Shared → Renamed" in meanwhile
        typed = {name: await slow.locator(f"#{name}").input_value() for name in ("name", "max_per_tx", "max_per_day")}
        assert typed == {"name": "Renamed", "max_per_tx": "33.00", "max_per_day": "150.00"}
        await expect(slow.get_by_label("Payments an hour")).to_have_value("7")
        assert (await world.ok("GET", f"/v1/policies/{policy['policy_id']}")) == now
        assert await findings(slow) == []

        await slow.get_by_role("button", name="Review the change").click()
        await slow.get_by_role("button", name="Save", exact=True).click()
        await slow.get_by_text("Saved. New rules apply").wait_for()
    after = await world.ok("GET", f"/v1/policies/{policy['policy_id']}")
    values = ("name", "max_per_tx", "max_per_day", "velocity_cap")
    assert [after[name] for name in values] == ["Renamed", "33.00", "150.00", 7]
    assert site.violations == []


@pytest.mark.proves(
    "POST /dashboard/policies", "GET /dashboard/policies/new", "POST /dashboard/policies/{policy_id}/delete"
)
async def test_preset_is_copied_and_the_copy_deleted(site: Served) -> None:
    world = site.world
    async with site.visit("admin", **_PHONE) as page:
        await page.goto(f"{site.base}/policies/pol_conservative")
        await expect(page.locator("main")).to_contain_text("A preset cannot be changed.")
        await expect(page.get_by_role("button", name="Review the change")).to_have_count(0)
        await page.get_by_role("link", name="Copy", exact=True).click()
        await expect(page.get_by_label("Name")).to_have_value("Copy of Conservative")
        assert await findings(page) == []
        assert await overflow(page) <= 0
        await page.get_by_label("Per month").fill("333")
        await page.get_by_role("button", name="Create").click()
        await page.get_by_text("The policy was created.").wait_for()
        await expect(page.locator(".head")).to_contain_text("Version 1")
        made = page.url.rpartition("/")[2].partition("?")[0]
        copy = await world.ok("GET", f"/v1/policies/{made}")
        assert (copy["name"], copy["max_per_tx"], copy["max_per_month"]) == ("Copy of Conservative", "10.00", "333.00")
        assert log(world, "policy.clone")[0].details["source"] == "pol_conservative"
        await page.get_by_text("Delete the policy").click()
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_text("The policy was deleted.").wait_for()
    assert (await world.call("GET", f"/v1/policies/{made}")).status_code == 404
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/policies/new")
async def test_policy_starts_from_a_template_or_preset_compared_side_by_side(site: Served) -> None:
    async with site.visit("admin", **_PHONE | _DARK) as page:
        await page.goto(f"{site.base}/policies/new")
        table = page.get_by_role("region", name="Templates and presets")
        await expect(table.locator("tbody tr")).to_have_count(len(TEMPLATES) + 4)
        shown = await table.get_by_role("row").filter(has_text="Travel").locator("td").all_inner_texts()
        assert shown == ["2,000.00", "4,000.00", "20,000.00", "10", "500.00", "any, except 8 categories"]
        assert await findings(page) == []
        assert await overflow(page) <= 0
        await table.get_by_role("link", name="Travel").click()
        await page.get_by_text("The form starts as Travel.").wait_for()
        await page.get_by_label("Per month").fill("9000")
        await page.get_by_role("button", name="Create").click()
        await page.get_by_text("The policy was created.").wait_for()
        made = page.url.rpartition("/")[2].partition("?")[0]
    policy = await site.world.ok("GET", f"/v1/policies/{made}")
    rules = ("name", "max_per_tx", "max_per_day", "max_per_month", "velocity_cap", "require_co_sign")
    assert [policy[one] for one in rules] == ["Travel", "2000.00", "4000.00", "9000.00", 10, "500.00"]
    assert "gambling" in policy["blocked_categories"]
    assert site.violations == []


async def test_every_template_makes_a_policy(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    for name, one in TEMPLATES.items():
        answer = await admin.post("/dashboard/policies", await _form(admin, f"/dashboard/policies/new?template={name}"))
        assert answer.status_code == 303, _text(answer.text)
        made = answer.headers["location"].rpartition("/")[2].partition("?")[0]
        assert (await world.ok("GET", f"/v1/policies/{made}"))["name"] == one.body.name
    unknown = await admin.client.get("/dashboard/policies/new?template=none")
    assert (unknown.status_code, "An empty field sets no rule." in unknown.text) == (200, True)


async def test_every_rule_goes_through_the_form_and_back(world: ServiceWorld) -> None:
    rules: Json = {
        "name": 'All "eight" & more',
        "max_per_tx": "1.5",
        "max_per_day": "20",
        "max_per_month": "300.000001",
        "velocity_cap": "12",
        "require_co_sign": "1",
        "new_recipient_cap": "0.5",
        "expiry": "2040-02-03T04:05:06",
        "max_open_escrows": "0",
        "allow_allowances": "yes",
        "allowed_recipients": f"shop.example.com\r\n{Keypair().pubkey()}",
        "blocked_categories": ["gambling", "nft"],
        "x402_choice": "only",
        "x402_hosts": "api.example.com",
    }
    admin = Crafted(world, sign_in(world, "admin"))
    answer = await admin.post("/dashboard/policies", {**rules, "source": ""})
    assert answer.status_code == 303, _text(answer.text)
    made = await world.ok("GET", f"/v1/policies/{answer.headers['location'].rpartition('/')[2].partition('?')[0]}")
    assert made["expiry"] == "2040-02-03T04:05:06Z"
    assert (made["velocity_cap"], made["max_open_escrows"], made["x402_hosts"]) == (12, 0, ["api.example.com"])
    assert (made["allow_allowances"], made["new_recipient_cap"]) == (True, "0.50")
    assert (made["max_per_month"], made["blocked_categories"]) == ("300.000001", ["gambling", "nft"])
    assert len(made["allowed_recipients"]) == 2
    # The form as it is shown changes nothing.
    same = await admin.post(f"{_path(made)}/review", await _form(admin, _path(made)))
    assert (same.status_code, "You have not changed any field." in same.text) == (400, True)
    # An emptied field clears its rule.
    empty = dict.fromkeys(rules, "") | {"name": "None", "x402_choice": "default", "blocked_categories": []}
    empty["expected_version"] = (await _form(admin, _path(made)))["expected_version"]
    assert (await admin.post(_path(made), empty)).status_code == 303
    bare = await world.ok("GET", f"/v1/policies/{made['policy_id']}")
    assert {bare[name] for name in ("max_per_tx", "velocity_cap", "expiry", "max_open_escrows", "x402_hosts")} == {None}
    assert (bare["name"], bare["allowed_recipients"], bare["blocked_categories"]) == ("None", [], [])
    assert (bare["allow_allowances"], bare["new_recipient_cap"]) == (False, None)


async def test_every_field_of_a_policy_has_its_words(world: ServiceWorld) -> None:
    policy = await world.ok("GET", "/v1/policies/pol_locked")
    fields = policy.keys() - {"policy_id", "id", "wallet_count", "version", "created_at"}
    assert fields == set(blank())
    assert fields <= LABELS.keys()
    assert fields - {"name"} == sentences(blank(), Reader(0, any_host=True)).keys()


@pytest.mark.proves("POST /dashboard/policies")
async def test_field_is_refused_with_its_message_and_the_rest_is_kept(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    before = len((await world.ok("GET", "/v1/policies"))["data"])
    kept = {"name": "Kept <name>", "max_per_day": "77", "source": ""}
    for field, typed, message in (
        ("name", " ", "is required."),
        ("max_per_tx", "-5", "must be a decimal string"),
        ("velocity_cap", "soon", "must be a whole number."),
        ("expiry", "tomorrow", "must be an ISO 8601 timestamp"),
        ("max_open_escrows", "65", "must be at most 64."),
        (
            "allowed_recipients",
            "a.example.com\n??",
            "Entry 2: The recipient must be a chain address, a wallet id or a domain.",
        ),
        ("blocked_categories", ["adult", "fun"], "Entry 2 must be one of"),
        ("x402_hosts", "API", "Entry 1 must be a host in lower case"),
    ):
        fields: dict[str, Any] = {**kept, field: typed, **({"x402_choice": "only"} if field == "x402_hosts" else {})}
        answer = await admin.post("/dashboard/policies", fields)
        assert answer.status_code == 400, field
        says = re.search(rf'<p class="says wrong" id="{field}-says">([^<]*)', answer.text)
        assert says is not None, field
        assert message in unescape(says[1])
        assert 'value="77"' in answer.text
        if field != "name":
            assert 'value="Kept &lt;name&gt;"' in answer.text
        checked = await admin.post("/dashboard/policies/check", fields)
        assert (checked.status_code, message in unescape(checked.text)) == (200, True)
        assert "Each vault may spend at most 77.00 USDC" in checked.text
    assert len((await world.ok("GET", "/v1/policies"))["data"]) == before


async def test_recipient_without_an_owner_is_listed_by_a_box(world: ServiceWorld) -> None:
    admin, address = Crafted(world, sign_in(world, "admin")), unowned()
    policy = await world.policy(maxPerTx="5")
    box = {"allow_unverified_recipient": "yes"}
    for place, fields in (
        ("/dashboard/policies", {"name": "Boxed"}),
        (_path(policy), await _form(admin, _path(policy))),
    ):
        typed = {**fields, "allowed_recipients": address}
        assert "Allow new addresses" not in (await admin.client.get(_path(policy))).text

        refused = await admin.post(place, typed)
        assert (refused.status_code, f"{address}: The address has no known owner" in refused.text) == (422, True)
        assert "Allow new addresses" in refused.text
        made = await admin.post(place, {**typed, **box})
        assert made.status_code == 303, made.text

    listed = await world.ok("GET", "/v1/policies")
    assert [address] in [one["allowed_recipients"] for one in listed["data"]]
    assert (await world.ok("GET", f"/v1/policies/{policy['policy_id']}"))["allowed_recipients"] == [address]


async def test_allowed_recipients_are_shown_by_name(world: ServiceWorld) -> None:
    shop, other = await world.payee(), await world.payee()
    await world.ok("PUT", "/v1/recipients/shop.example.com", {"address": shop, "category": "marketplace"})
    own = await world.wallet(label="<Office>", funds=None)
    policy = await world.policy(allowedRecipients=[shop, other, own["wallet_id"]])
    for role in ("admin", "viewer"):
        page = (await Crafted(world, sign_in(world, role)).client.get(_path(policy))).text
        chips = dict(re.findall(r'<span class="chip" title="(\w+)">(.*?)</span>', page))
        assert len(chips) == 3
        assert (chips[shop], "&lt;Office&gt;" in chips.values()) == ("shop.example.com", True)
        assert f"{other[:4]}…{other[-4:]}" in chips[other]


@pytest.mark.proves("POST /dashboard/policies/{policy_id}/delete")
async def test_policy_with_vaults_or_of_another_version_is_not_deleted(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    admin = Crafted(world, sign_in(world, "admin"))
    tag = (await _form(admin, _path(policy)))["expected_version"]
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "6"})
    stale = await admin.post(f"{_path(policy)}/delete", {"expected_version": tag})
    assert stale.status_code == 409
    assert 'value="6.00"' in stale.text
    await world.wallet(policy["policy_id"], funds=None)
    page = (await admin.client.get(_path(policy))).text
    assert "Delete the policy" not in page
    used = await admin.post(f"{_path(policy)}/delete", await _form(admin, _path(policy)))
    assert (used.status_code, "Wallets are still attached" in used.text) == (422, True)
    preset = await admin.post("/dashboard/policies/pol_locked/delete", {"expected_version": "5"})
    assert (preset.status_code, "Preset policies cannot be changed." in preset.text) == (422, True)


async def test_change_of_a_policy_waits_for_a_step_up(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    admin = Crafted(world, sign_in(world, "admin"))
    fields = {**await _form(admin, _path(policy)), "max_per_tx": "6"}
    forget_step_up(world)
    before = await world.ok("GET", "/v1/policies")
    for place in ("/dashboard/policies", _path(policy), f"{_path(policy)}/delete"):
        answer = await admin.post(place, fields)
        assert (answer.status_code, "Confirm that it is you" in answer.text) == (403, True)
    assert await world.ok("GET", "/v1/policies") == before
    # Looking at the effect needs none.
    assert (await admin.post(f"{_path(policy)}/review", fields)).status_code == 200


async def test_viewers_crafted_policy_requests_are_refused_and_on_record(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    for role in ("viewer", "operator"):
        who = Crafted(world, sign_in(world, role))
        csrf = await who.csrf()
        fields = {"name": "Mine", "max_per_tx": "500", "expected_version": str(policy["version"])}
        for place in ("", "/check", *(f"/{{policy_id}}{end}" for end in _OF_ONE)):
            path = f"/dashboard/policies{place}"
            answer = await who.post(path.replace("{policy_id}", policy["policy_id"]), fields, csrf=csrf)
            assert answer.status_code == 403, path
            for _ in range(2):
                await world.service.part(Recorder).tick()
            entry = log(world, "access.refused")[0]
            assert (entry.actor.type, entry.details["operation"]) == ("person", f"POST {path}")
        assert (await who.client.get("/dashboard/policies/new")).status_code == 403
    assert await world.ok("GET", f"/v1/policies/{policy['policy_id']}") == policy


@pytest.mark.proves("GET /dashboard/policies/{policy_id}")
async def test_policy_of_another_organisation_is_not_found(own_world: ServiceWorld) -> None:
    policy = await own_world.policy(name="Secret plan", maxPerTx="5")
    other = await own_world.organisation("other")
    stranger = Crafted(own_world, sign_in(own_world, "admin", org=other))
    fields = {"name": "Mine", "expected_version": str(policy["version"])}
    found = [
        await stranger.client.get(_path(policy)),
        await stranger.client.get(f"/dashboard/policies/new?from={policy['policy_id']}"),
        *[await stranger.post(f"{_path(policy)}{end}", fields) for end in _OF_ONE],
        await stranger.post("/dashboard/policies", {**fields, "source": policy["policy_id"]}),
    ]
    for answer in found:
        assert answer.status_code == 404
        assert "Policy not found" in answer.text
        assert "Secret plan" not in answer.text
    assert await own_world.ok("GET", f"/v1/policies/{policy['policy_id']}") == policy


@pytest.mark.proves("POST /dashboard/policies/{policy_id}")
async def test_change_without_the_authority_key_waits_for_its_signature(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(name="Offline", maxPerTx="5")
    (world.settings.data_dir / "keys" / "authority.json").unlink()
    await world.restart()
    admin = Crafted(world, sign_in(world, "admin"))
    for path in (_path(policy), "/dashboard/policies/new"):
        page = (await admin.client.get(path)).text
        assert "This service does not have the key" in page
        assert 'href="/dashboard/signatures"' in page
    fields = await _form(admin, _path(policy))
    renamed = await admin.post(_path(policy), {**fields, "name": "Renamed"})
    assert renamed.headers["location"] == f"{_path(policy)}?done=policy-saved"
    fields = {**await _form(admin, _path(policy)), "max_per_tx": "6"}
    both = await admin.post(_path(policy), {**fields, "name": "Both"})
    assert (both.status_code, "The change needs no signature by the authority" in both.text) == (400, True)
    assert (await admin.post(f"{_path(policy)}/review", fields)).status_code == 200
    for place, sent in (
        (_path(policy), fields),
        ("/dashboard/policies", {"name": "New", "max_per_tx": "7"}),
        (f"{_path(policy)}/delete", fields),
    ):
        answer = await admin.post(place, sent)
        assert answer.status_code == 303, _text(answer.text)
        assert answer.headers["location"] == "/dashboard/signatures?done=awaiting-signature"
    waiting = {one["type"] for one in (await world.ok("GET", "/v1/signed-transactions"))["data"]}
    assert waiting == {"update_policy", "create_policy", "close_policy"}
    shown = await world.ok("GET", f"/v1/policies/{policy['policy_id']}")
    assert (shown["name"], shown["max_per_tx"]) == ("Renamed", "5.00")


@pytest.mark.proves("POST /dashboard/policies/{policy_id}/preview")
async def test_preview_that_cannot_be_made_says_why(own_world: ServiceWorld) -> None:
    policy = await own_world.policy(maxPerTx="5")
    await own_world.wallet(policy["policy_id"])
    admin = Crafted(own_world, sign_in(own_world, "admin"))
    fields = {**await _form(admin, _path(policy)), "max_per_tx": "6"}
    own_world.line.lose_requests = lambda _method: True
    answer = await admin.post(f"{_path(policy)}/preview", fields)
    own_world.line.mend()
    assert answer.status_code == 200
    assert "You can still save" in answer.text


async def test_review_judges_thirty_days_or_a_week_if_they_are_too_many(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, policy = own_world, await own_world.policy(maxPerTx="50")
    wallet, payee = await world.wallet(policy["policy_id"]), await world.payee()
    await world.ok("PUT", "/v1/recipients/shop.example.com", {"address": payee, "category": "marketplace"})
    await world.pay(wallet, payee, "20")
    await world.later(20 * 86_400)
    for _ in range(2):
        await world.pay(wallet, payee, "30")
    admin = Crafted(world, sign_in(world, "admin"))
    fields = {**await _form(admin, _path(policy)), "max_per_tx": "10"}
    for most, judged in ((policy_preview.MAX_PAYMENTS, 3), (2, 2)):
        monkeypatch.setattr(policy_preview, "MAX_PAYMENTS", most)

        found = _text((await admin.post(f"{_path(policy)}/preview", fields)).text)

        assert f"Judged again {judged} payments and escrows of 1 vault since" in found
        assert f"Newly refused {judged}" in found
        assert ("20.00 is above the 10.00 limit" in found) == (judged == 3)
        assert "shop.example.com" in found
    week = await world.ok("POST", f"/v1/policies/{policy['policy_id']}/preview", {"maxPerTx": "10"})
    assert week["payments"] == 2


async def test_pages_of_policies_ask_the_database_little(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    for number in range(3):
        await world.wallet(policy["policy_id"], funds=None)
        await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": str(6 + number)})
    admin = Crafted(world, sign_in(world, "admin"))
    # The second has four tables: the rules, the vaults, the changes, and the names of who made them.
    for path, tables in (("/dashboard/policies", 1), (_path(policy), 4)):
        asked = await admin.queries(path)
        assert len(asked) <= 3 * tables, asked
