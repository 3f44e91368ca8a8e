"""The pages for developers: keys, webhooks, the request log, exports and health."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from playwright.async_api import expect
from sqlalchemy import update

from app.access.request_log import RequestLog
from app.store.webhooks import table as webhooks
from tests.dashboard.browsing import Crafted, Served, findings, forget_step_up, log, overflow, refusals, sign_in
from tests.support.http import PATIENCE
from tests.support.service_world import ServiceWorld
from tests.support.webhooks import Receiver, broken, ok

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as opened:
        yield opened


async def test_secret_is_shown_whatever_its_address_asks_for(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    made = await admin.post("/dashboard/developers/keys?cursor=garbage", {"role": "viewer", "name": "Shown"})
    assert made.status_code == 200
    assert "avk_" in made.text

    fields = {"url": "https://example.com/shown", "events": "*"}
    registered = await admin.post("/dashboard/developers/webhooks?cursor=garbage&status=zzz", fields)
    assert registered.status_code == 200
    assert "whsec_" in registered.text


@pytest.mark.proves(
    "GET /dashboard/developers",
    "POST /dashboard/developers/keys",
    "POST /dashboard/developers/keys/{key_id}/rotate",
    "POST /dashboard/developers/keys/{key_id}/revoke",
)
async def test_key_is_shown_once_rotated_and_revoked(site: Served) -> None:
    world = site.world
    async with site.visit("admin") as page:
        await page.goto(f"{site.base}/developers")
        await page.get_by_label("Name").fill("Back <b>office</b>")
        await page.get_by_label("Role").select_option("agent")
        await page.get_by_role("button", name="Create").click()
        await page.locator("#wallet_id-says").get_by_text("is required.").wait_for()
        await expect(page.get_by_label("Name")).to_have_value("Back <b>office</b>")

        await page.get_by_label("Role").select_option("operator")
        async with page.expect_response(f"{site.base}/developers/keys") as answer:
            await page.get_by_role("button", name="Create").click()
        assert (await (await answer.value).all_headers())["cache-control"] == "no-store"
        key = await page.get_by_label("API key", exact=True).input_value()
        assert (await world.call("GET", "/v1/wallets", key=key)).status_code == 200
        assert await findings(page) == []

        # A reload shows it no more, and makes no other.
        await page.reload()
        await page.get_by_role("heading", name="Create a key").wait_for()
        assert key not in await page.content()
        row = page.get_by_role("row").filter(has_text="Back <b>office</b>")
        await expect(row).to_have_count(1)

        await row.get_by_role("button", name="Replace or revoke").click()
        assert await findings(page) == []
        await page.get_by_role("button", name="No: the old key works for another hour").click()
        new = await page.get_by_label("API key", exact=True).input_value()
        for one in (key, new):
            assert (await world.call("GET", "/v1/wallets", key=one)).status_code == 200
        await page.goto(f"{site.base}/feed")
        await page.go_back()
        await page.get_by_role("heading", name="Create a key").wait_for()
        assert new not in await page.content()
        await page.get_by_role("row").filter(has_text="Rotated").get_by_role("button", name="Revoke").click()
        # The key that replaced it is listed.
        assert await findings(page) == []
        await page.get_by_role("link", name="Keep them").click()
        await page.get_by_text("The key was revoked.").wait_for()
        assert (await world.call("GET", "/v1/wallets", key=key)).status_code == 401
        assert (await world.call("GET", "/v1/wallets", key=new)).status_code == 200
    assert {str(log(world, f"key.{one}")[0].actor.type) for one in ("create", "rotate", "revoke")} == {"person"}
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/developers/key-restrictions")
async def test_key_gets_an_end_and_addresses_and_both_may_be_required(world: ServiceWorld) -> None:
    org = await world.organisation("restricting-in-the-dashboard")
    admin, key = Crafted(world, sign_in(world, "admin", org=org)), world.key("admin", org=org)
    saved = await admin.post("/dashboard/developers/key-restrictions", {"required": "yes"})
    assert saved.headers["location"].endswith("done=key-restrictions-saved")
    fields = {"role": "viewer", "name": "Limited", "expires_at": "2126-01-01", "allowed_addresses": "10.1.0.0/16, ::1"}
    for lacking in ("expires_at", "allowed_addresses"):
        refused = await admin.post("/dashboard/developers/keys", {**fields, lacking: ""})
        assert (refused.status_code, "the organisation requires both" in refused.text) == (400, True)

    assert (await admin.post("/dashboard/developers/keys", fields)).status_code == 200

    [made, *_] = (await world.ok("GET", "/v1/keys", key=key))["data"]
    assert (made["name"], made["expires_at"]) == ("Limited", "2126-01-01T00:00:00.000Z")
    assert made["allowed_addresses"] == ["10.1.0.0/16", "::1/128"]
    assert "10.1.0.0/16, ::1/128" in (await admin.client.get("/dashboard/developers")).text
    await admin.post("/dashboard/developers/key-restrictions")
    assert not (await world.ok("GET", "/v1/organization", key=key))["restricts_keys"]


@pytest.mark.proves("POST /dashboard/developers/keys/{key_id}/revoke")
@pytest.mark.parametrize("kind", ["key", "person"])
async def test_key_or_person_ends_before_its_descendants_are_listed(world: ServiceWorld, kind: str) -> None:
    org = await world.organisation(f"ending-{kind}")
    admin, first = Crafted(world, sign_in(world, "admin", org=org)), world.key("admin", org=org)
    if kind == "key":
        leaked = await world.ok("POST", "/v1/keys", {"role": "admin"}, key=first)
        below = await world.ok("POST", "/v1/keys", {"role": "viewer", "name": "Below"}, key=leaked["key"])
        ending, path, done = leaked["key_id"], f"/dashboard/developers/keys/{leaked['key_id']}/revoke", "key-revoked"
    else:
        other = Crafted(world, sign_in(world, "admin", org=org))
        await other.post("/dashboard/developers/keys", {"role": "viewer", "name": "Below"})
        [below, *_] = (await world.ok("GET", "/v1/keys", key=first))["data"]
        ending, done = below["created_by"]["id"], "removed"
        path = f"/dashboard/people/{ending}/remove"

    async def in_force() -> set[str]:
        keys, people = [(await world.ok("GET", f"/v1/{one}", key=first))["data"] for one in ("keys", "people")]
        active = {one["key_id"] for one in keys if one["status"] == "active"}
        return active | {one["person_id"] for one in people}

    before = await in_force()
    listed = await admin.post(path)
    assert (listed.status_code, "Below" in listed.text, f"done={done}" in listed.text) == (200, True, True)
    assert await in_force() == before - {ending}

    ended = await admin.post(path, {"end_descendants": "true"})

    assert ended.headers["location"].endswith(f"done={done}")
    assert await in_force() == before - {ending, below["key_id"]}


@pytest.mark.proves(
    "POST /dashboard/developers/keys",
    "POST /dashboard/developers/keys/{key_id}/rotate",
    "POST /dashboard/developers/keys/{key_id}/revoke",
    "POST /dashboard/developers/webhooks/{webhook_id}/secret",
)
async def test_changes_of_keys_and_secrets_wait_for_a_step_up(world: ServiceWorld) -> None:
    made = await world.ok("POST", "/v1/keys", {"role": "viewer", "name": "Kept"})
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/", "events": ["ping"]})
    admin = Crafted(world, sign_in(world, "admin"))
    csrf = await admin.csrf()
    forget_step_up(world)
    for path in (
        "keys",
        "key-restrictions",
        f"keys/{made['key_id']}/rotate",
        f"keys/{made['key_id']}/revoke",
        f"webhooks/{hook['webhook_id']}/secret",
    ):
        answer = await admin.post(f"/dashboard/developers/{path}", {"role": "admin"}, csrf=csrf)
        assert answer.status_code == 403, path
        assert "Confirm that it is you" in answer.text
    assert (await world.call("GET", "/v1/wallets", key=made["key"])).status_code == 200


async def test_crafted_requests_of_those_who_may_not_are_on_record(world: ServiceWorld) -> None:
    made = await world.ok("POST", "/v1/keys", {"role": "viewer"})
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/", "events": ["ping"]})
    viewer, operator = (Crafted(world, sign_in(world, role)) for role in ("viewer", "operator"))
    one, key = f"webhooks/{hook['webhook_id']}", f"keys/{made['key_id']}"
    only_admins = [
        ("POST", "keys"),
        ("POST", "key-restrictions"),
        ("POST", f"{key}/rotate"),
        ("POST", f"{key}/revoke"),
        ("GET", "requests"),
    ]
    only_operators = [
        ("POST", "webhooks"),
        *(("POST", f"{one}/{what}") for what in ("ping", "enable", "secret", "delete", "deliveries/dlv_x/resend")),
    ]
    for who, refused in ((viewer, [*only_admins, *only_operators]), (operator, only_admins)):
        csrf = await who.csrf()
        for method, path in refused:
            place = f"/dashboard/developers/{path}"
            sent = who.client.get(place) if method == "GET" else who.post(place, {"role": "admin"}, csrf=csrf)
            assert (await sent).status_code == 403, path
    assert ("POST /dashboard/developers/keys/{key_id}/rotate") in {place for _, place in await refusals(world)}
    shown = (await viewer.client.get("/dashboard/developers")).text
    assert made["hint"] not in shown
    assert 'name="role"' not in shown
    assert (
        'method="post" action="/dashboard/developers'
        not in (await viewer.client.get(f"/dashboard/developers/{one}")).text
    )
    other = await world.organisation("strangers")
    stranger = Crafted(world, sign_in(world, "admin", org=other))
    for path in (f"{one}/ping", f"{one}/delete", f"{key}/revoke"):
        assert (await stranger.post(f"/dashboard/developers/{path}")).status_code == 404
    assert (await stranger.client.get(f"/dashboard/developers/{one}")).status_code == 404


@pytest.mark.proves(
    "GET /dashboard/developers/webhooks",
    "POST /dashboard/developers/webhooks",
    "GET /dashboard/developers/webhooks/{webhook_id}",
    "POST /dashboard/developers/webhooks/{webhook_id}/ping",
    "POST /dashboard/developers/webhooks/{webhook_id}/enable",
    "POST /dashboard/developers/webhooks/{webhook_id}/secret",
    "POST /dashboard/developers/webhooks/{webhook_id}/delete",
    "POST /dashboard/developers/webhooks/{webhook_id}/deliveries/{delivery_id}/resend",
)
async def test_webhook_is_registered_pinged_and_enabled_again(site: Served, receiver: Receiver) -> None:
    world = site.world
    async with site.visit("operator") as page:
        await page.goto(f"{site.base}/developers/webhooks")
        await page.get_by_label("URL").fill("ftp://example.com/")
        await page.get_by_label("All events").uncheck()
        await page.get_by_label("wallet.created").check()
        await page.get_by_role("button", name="Register").click()
        await expect(page.get_by_label("URL")).to_have_attribute("aria-invalid", "true")
        await expect(page.get_by_label("wallet.created")).to_be_checked()
        await expect(page.get_by_label("All events")).not_to_be_checked()
        await page.get_by_label("URL").fill(receiver.url)
        await page.get_by_role("button", name="Register").click()
        secret = await page.get_by_label("Signing secret", exact=True).input_value()
        await page.get_by_text("There are no deliveries yet.").wait_for()

        await page.get_by_role("button", name="Send a ping").click()
        await page.get_by_text("The receiver accepted the ping: 200").wait_for()
        assert secret not in await page.content()
        receiver.behave = broken
        await page.get_by_role("button", name="Send a ping").click()
        await page.get_by_text("The receiver did not accept the ping: 500").wait_for()

        # What happens is followed without a reload.
        await world.wallet(funds=None)
        place = page.url.removesuffix("/ping")
        await _until(lambda: len(receiver.received) == 3)
        await page.goto(place)
        row = page.get_by_role("row").filter(has_text="Wallet: created")
        await row.get_by_text("1, the last: 500").click()
        await expect(row.get_by_text("sorry")).to_be_visible()
        assert await findings(page) == []
        receiver.behave = ok
        await row.get_by_role("button", name="Resend").click()
        await page.get_by_text("The delivery is queued again. It is sent unless the webhook is paused.").wait_for()
        await row.get_by_text("Delivered").wait_for()

        world.service.db.write_now(
            lambda conn: conn.execute(update(webhooks).where(webhooks.c.url == receiver.url).values(status="degraded"))
        )
        await page.reload()
        await page.get_by_role("button", name="Enable again").click()
        await page.get_by_text("The webhook is enabled.").wait_for()
        await page.get_by_role("button", name="New secret").click()
        assert await page.get_by_label("Signing secret", exact=True).input_value() != secret
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_text("The webhook was deleted.").wait_for()
    done = ("create", "ping", "resend", "update", "rotate_secret", "delete")
    assert {log(world, f"webhook.{one}")[0].actor.type for one in done} == {"person"}
    assert site.violations == []


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.02)


@pytest.mark.proves("GET /dashboard/developers/requests")
async def test_request_log_is_narrowed_by_key_status_and_code(site: Served) -> None:
    world = site.world
    made = await world.ok("POST", "/v1/keys", {"role": "viewer", "name": "Report of ours"})
    await world.call("GET", "/v1/keys", key=made["key"])
    await world.call("GET", "/v1/wallets", key=made["key"])
    await world.service.part(RequestLog).tick()
    async with site.visit("admin") as page:
        await page.goto(f"{site.base}/developers/requests")
        await page.get_by_label("Key").select_option(made["key_id"])
        await page.get_by_role("button", name="Show").click()
        rows = page.get_by_role("region", name="Requests").get_by_role("row")
        await expect(rows).to_contain_text(["Time", "GET /v1/wallets", "GET /v1/keys"])
        await page.get_by_label("Error code").fill("insufficient_permissions")
        await page.get_by_role("button", name="Show").click()
        await expect(rows).to_have_count(2)
        reason = page.get_by_role("link", name="insufficient_permissions")
        await expect(reason).to_have_attribute("href", re.compile("/docs/errors/"))
        await page.get_by_label("Status").fill("teapot")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator("#status-says")).to_contain_text("whole number")
        await expect(page.get_by_label("Status")).to_have_value("teapot")
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/developers/exports", "POST /dashboard/developers/exports")
async def test_export_shows_its_progress_and_is_downloaded(site: Served) -> None:
    world, held = site.world, asyncio.Event()
    wallet = await world.wallet(label="Exported")
    world.line.hold = lambda method: held.wait() if method == "getSlot" else None
    async with site.visit("viewer") as page:
        await page.goto(f"{site.base}/developers/exports")
        await page.get_by_text("No export yet.").wait_for()
        await page.get_by_label("Vault").fill("wal_none")
        await page.get_by_role("button", name="Export").click()
        await page.get_by_text("No vault matches. An archived vault is found only by its id.").wait_for()
        await expect(page.get_by_label("Vault")).to_have_value("wal_none")
        await page.get_by_label("Vault").fill("Exported")
        await page.get_by_label("To").fill("2999-01-01")
        await page.get_by_label("byte order mark").check()
        await page.get_by_role("button", name="Export").click()
        await page.get_by_role("progressbar").wait_for()
        assert await findings(page) == []
        world.line.hold = lambda _method: None
        held.set()
        link = page.get_by_role("link", name="Download")
        await link.wait_for()
        await expect(page.get_by_role("row").nth(1)).to_contain_text("CSV of Exported")
        async with page.expect_download() as download:
            await link.click()
        content = (await (await download.value).path()).read_text()
        assert wallet["wallet_id"] in content
        assert content.startswith("\ufeff")
        await page.get_by_role("link", name="Last month for accounting").click()
        await expect(page.get_by_label("Format")).to_have_value("accounting")
        await expect(page.get_by_label("From")).to_have_value(re.compile(r"^\d{4}-\d\d-01$"))
        await page.get_by_role("button", name="Export").click()
        await page.get_by_text("Accounting CSV of all vaults").wait_for()
        async with page.expect_download() as download:
            await page.get_by_role("link", name="manifest").click()
        assert '"sha256"' in (await (await download.value).path()).read_text()
    assert log(world, "export.create")[0].actor.type == "person"
    assert site.violations == []


async def test_archived_vault_is_exported_by_its_id(world: ServiceWorld) -> None:
    wallet, viewer = await world.wallet(funds=None), Crafted(world, sign_in(world, "viewer"))
    await world.ok("DELETE", f"/v1/wallets/{wallet['wallet_id']}", {})
    fields = {"format": "csv", "wallet_id": wallet["wallet_id"], "to": "2999-12-31"}
    assert (await viewer.post("/dashboard/developers/exports", fields)).status_code == 303
    newest = (await world.ok("GET", "/v1/transactions/exports"))["data"][0]
    assert (newest["wallet_id"], newest["to"][:10]) == (wallet["wallet_id"], "3000-01-01")


async def test_json_is_exported_without_a_mark(world: ServiceWorld) -> None:
    viewer = Crafted(world, sign_in(world, "viewer"))
    assert (await viewer.post("/dashboard/developers/exports", {"format": "json", "bom": "true"})).status_code == 303
    newest = (await world.ok("GET", "/v1/transactions/exports"))["data"][0]
    assert (newest["format"], newest["bom"]) == ("json", False)


async def test_cursor_that_no_list_issued_is_refused(world: ServiceWorld) -> None:
    wallet, me = await world.wallet(funds=None), Crafted(world, sign_in(world, "admin"))
    for place in ("developers", "developers/exports", f"vaults/{wallet['wallet_id']}"):
        for cursor, status in (("", 200), ("x", 400), ("x" * 5_000, 400)):
            answer = await me.client.get(f"/dashboard/{place}?cursor={cursor}")
            assert answer.status_code == status, (place, cursor[:1])


@pytest.mark.proves("GET /dashboard/developers")
async def test_health_says_which_part_fails(own_world: ServiceWorld) -> None:
    me = Crafted(own_world, sign_in(own_world, "viewer"))
    assert "Failing" not in (await me.client.get("/dashboard/developers")).text
    await own_world.restart()
    own_world.line.lose_requests = lambda _method: True
    shown = (await Crafted(own_world, me.token).client.get("/dashboard/developers")).text
    assert '<dt>Chain</dt><dd><span class="badge failed">Failing</span>' in shown
    assert '<dt>Database</dt><dd><span class="badge active">Works</span>' in shown


async def test_pages_fit_a_phone_and_are_readable_in_the_dark(site: Served) -> None:
    world = site.world
    await world.ok("POST", "/v1/webhooks", {"url": f"https://example.com/{'long' * 40}", "events": ["*"]})
    [hook] = (await world.ok("GET", "/v1/webhooks?limit=1"))["data"]
    places = ("", "/webhooks", f"/webhooks/{hook['webhook_id']}", "/requests", "/exports")
    async with site.visit("admin", viewport={"width": 390, "height": 844}, color_scheme="dark") as page:
        for place in places:
            await page.goto(f"{site.base}/developers{place}")
            assert await findings(page) == [], place
            assert await overflow(page) <= 0, place
    assert site.violations == []
