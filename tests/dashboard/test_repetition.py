"""Forms that are sent twice: by a double click, again with other values, and after a crash that lost the answer."""

import asyncio
import re

import pytest
from playwright.async_api import Route, expect
from sqlalchemy import update

from app.store.audit_actions import Action
from app.store.idempotency import table as idempotency
from tests.dashboard.browsing import Crafted, Served, forget_step_up, log, sign_in
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Page, where its form goes, what is typed, the action on record, and whether the answer shows a secret.
_Form = tuple[str, str, Json, Action, bool]
_HOOKS = "/developers/webhooks"
_VAULT: Json = {"label": "Once", "agent_id": "once", "policy_id": "pol_moderate"}
_FORMS: tuple[_Form, ...] = (
    ("/developers", "/developers/keys", {"name": "Once", "role": "viewer"}, "key.create", True),
    (_HOOKS, _HOOKS, {"url": "https://example.com/once", "events": ["*"]}, "webhook.create", True),
    ("/people", "/people/invite", {"name": "Once", "role": "viewer"}, "person.invite", True),
    ("/vaults/new", "/vaults", _VAULT, "wallet.create", False),
    ("/policies/new", "/policies", {"name": "Once", "max_per_tx": "5"}, "policy.create", False),
    ("/developers/exports", "/developers/exports", {"format": "csv"}, "export.create", False),
)


def _key(page: str, path: str) -> str:
    """The idempotency key of the form on a page that goes to a path."""
    found = re.search(rf'action="/dashboard{path}">.*?</form>', page, re.DOTALL)
    assert found is not None
    return found[0].partition('name="idempotency_key" value="')[2].partition('"')[0]


def _secret(page: str) -> str:
    return page.partition('data-copy="')[2].partition('"')[0]


@pytest.mark.proves("Idempotency: A form of the dashboard")
@pytest.mark.parametrize("form", _FORMS, ids=[one[3] for one in _FORMS])
async def test_form_that_is_sent_twice_takes_effect_once(world: ServiceWorld, form: _Form) -> None:
    page, path, typed, action, secret = form
    admin = Crafted(world, sign_in(world, "admin"))
    csrf, before = await admin.csrf(), len(log(world, action))
    fields = {**typed, "idempotency_key": _key((await admin.client.get(f"/dashboard{page}")).text, path)}

    first, second = await asyncio.gather(*(admin.post(f"/dashboard{path}", fields, csrf=csrf) for _ in range(2)))
    late = await admin.post(f"/dashboard{path}", fields, csrf=csrf)

    assert len(log(world, action)) == before + 1
    assert first.status_code == second.status_code == late.status_code == (200 if secret else 303)
    assert _secret(first.text) == _secret(second.text) == _secret(late.text)
    assert bool(_secret(first.text)) == secret
    assert first.headers.get("location") == late.headers.get("location")
    if secret:
        # The page has a form again, for another one.
        shown = (await admin.client.get(f"/dashboard{page}")).text
        assert _key(shown, path) not in {"", fields["idempotency_key"]}


async def test_form_sent_again_with_other_values_does_nothing_more(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    fields = {"name": "First", "role": "viewer"}
    fields["idempotency_key"] = _key((await admin.client.get("/dashboard/developers")).text, "/developers/keys")
    assert (await admin.post("/dashboard/developers/keys", fields)).status_code == 200
    before = len(log(world, "key.create"))
    other = await admin.post("/dashboard/developers/keys", {**fields, "name": "Second"})
    assert (other.status_code, "This form was sent before with other values" in other.text) == (409, True)
    assert 'value="Second"' in other.text
    assert len(log(world, "key.create")) == before


async def test_refused_form_can_be_corrected_and_sent(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    key = _key((await admin.client.get("/dashboard/developers")).text, "/developers/keys")
    fields = {"name": "Bound", "role": "viewer", "wallet_id": "wal_unknown", "idempotency_key": key}
    refused = await admin.post("/dashboard/developers/keys", fields)
    assert refused.status_code == 400
    # What failed may have had an effect, so its form stays the same one.
    assert _key(refused.text, "/developers/keys") == key
    assert (await admin.post("/dashboard/developers/keys", {**fields, "wallet_id": ""})).status_code == 200


async def test_lost_answer_of_an_invitation_is_replaced(world: ServiceWorld) -> None:
    admin, before = Crafted(world, sign_in(world, "admin")), len(log(world, "person.invite"))
    fields = {"name": "Lost", "role": "viewer"}
    fields["idempotency_key"] = _key((await admin.client.get("/dashboard/people")).text, "/people/invite")
    first = await admin.post("/dashboard/people/invite", fields)
    mine = idempotency.c.key.endswith(fields["idempotency_key"])
    await world.service.db.write(lambda conn: conn.execute(update(idempotency).where(mine).values(state="running")))

    again = await admin.post("/dashboard/people/invite", fields)

    tokens = [_secret(one.text).partition("#")[2].partition("&")[0] for one in (first, again)]
    assert tokens[0] != tokens[1]
    visitor = Crafted(world)
    csrf = await visitor.csrf("/dashboard/join")
    answers = [
        (await visitor.post("/dashboard/join/options", {"token": one, "name": "Lost"}, csrf=csrf)).status_code
        for one in tokens
    ]
    assert answers == [401, 200]
    assert len(log(world, "person.invite")) == before + 1


async def test_answer_is_stored_so_that_only_the_browser_opens_it(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    fields = {"name": "Sealed", "role": "viewer"}
    fields["idempotency_key"] = _key((await admin.client.get("/dashboard/developers")).text, "/developers/keys")
    key = _secret((await admin.post("/dashboard/developers/keys", fields)).text)
    mine = idempotency.c.key.endswith(fields["idempotency_key"])
    stored = world.service.db.read_now(lambda conn: str(conn.execute(idempotency.select().where(mine)).one()))
    assert key.startswith("avk_")
    assert key not in stored


async def test_confirmed_form_keeps_its_key(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    fields = {"name": "Confirmed", "role": "viewer"}
    fields["idempotency_key"] = _key((await admin.client.get("/dashboard/developers")).text, "/developers/keys")
    forget_step_up(world)
    asked = await admin.post("/dashboard/developers/keys", fields)
    assert (asked.status_code, fields["idempotency_key"] in asked.text) == (403, True)


async def test_second_click_shows_the_key_that_the_first_one_made(site: Served) -> None:
    before, done = len(log(site.world, "key.create")), asyncio.Event()

    async def lose_the_first_answer(route: Route) -> None:
        if done.is_set():
            await route.continue_()
        else:
            await route.fetch()
            done.set()
            await route.abort("aborted")

    async with site.visit("admin") as page:
        await page.goto(f"{site.base}/developers")
        await page.route("**/developers/keys", lose_the_first_answer)
        await page.get_by_label("Name").fill("Double")
        create = page.get_by_role("button", name="Create")
        await create.click(no_wait_after=True)
        await done.wait()
        await create.click()
        await expect(page.get_by_label("API key", exact=True)).to_have_value(re.compile("^avk_"))
        await expect(page.get_by_role("row").filter(has_text="Double")).to_have_count(1)
    assert len(log(site.world, "key.create")) == before + 1
    assert site.violations == []
