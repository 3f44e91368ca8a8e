"""What the dashboard refuses without a browser: forged, replayed and crafted requests; and that it is on record."""

import json

import httpx
import pytest

from app.access.keyring import system
from app.core.paths import ConfigurationError
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.people.relying_party import dashboard_url, relying_party
from app.people.service import invite
from app.people.sessions import digest
from app.server.application import create_app
from app.store.people import challenges, invitations
from app.store.people import sessions as browser_sessions
from tests.dashboard.browsing import Crafted, add_person, forget_step_up, refusals, sign_in
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.proves("error form_outdated")
async def test_change_needs_the_csrf_token_of_the_session(world: ServiceWorld) -> None:
    me, other = Crafted(world, sign_in(world, "admin")), Crafted(world, sign_in(world, "admin"))
    for wrong in ("", "0" * 64, await other.csrf(), "ä"):
        answer = await me.post("/dashboard/pause", csrf=wrong)
        assert answer.status_code == 403
        assert "Form outdated" in answer.text
    assert not (await world.ok("GET", "/v1/organization"))["paused"]
    assert (await refusals(world))[0][1] == "POST /dashboard/pause"


@pytest.mark.parametrize("origin", ["http://localhost:9999", "https://localhost", "http://evil.example", "null", ""])
async def test_change_needs_the_origin_of_the_dashboard(world: ServiceWorld, origin: str) -> None:
    me = Crafted(world, sign_in(world, "admin"))
    answer = await me.post("/dashboard/pause", origin=origin)
    assert answer.status_code == 403
    assert not (await world.ok("GET", "/v1/organization"))["paused"]
    assert (await refusals(world))[0][0].startswith("person:")


async def test_no_get_changes_anything_and_every_page_needs_a_session(world: ServiceWorld) -> None:
    me, nobody = Crafted(world, sign_in(world, "admin")), Crafted(world)
    for path in ("/dashboard/pause", "/dashboard/unpause", "/dashboard/freeze", "/dashboard/sign-out"):
        assert (await me.client.get(path)).status_code == 405
    for path in ("/dashboard", "/dashboard/people"):
        answer = await nobody.client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")
    answer = await nobody.post("/dashboard/pause", csrf=await nobody.csrf("/dashboard/sign-in"))
    assert answer.status_code == 401


@pytest.mark.proves("POST /dashboard/sign-in")
async def test_cookie_put_into_the_browser_is_replaced_at_sign_in(own_world: ServiceWorld) -> None:
    thief = Crafted(own_world, "put-there-by-somebody-else")
    csrf = await thief.csrf("/dashboard/sign-in")

    answer = await thief.post("/dashboard/sign-in", {"admin_key": own_world.keys["admin"]}, csrf=csrf)

    assert answer.status_code == 303
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=lax" in answer.headers["set-cookie"]
    fresh = answer.cookies["agent-vault-session"]
    assert fresh != "put-there-by-somebody-else"
    assert (await Crafted(own_world, fresh).client.get("/dashboard")).status_code == 200
    assert (await Crafted(own_world, "put-there-by-somebody-else").client.get("/dashboard")).status_code == 303
    # Once the organisation has a person, the key signs in no more, and its sessions have ended.
    add_person(own_world, "admin")
    assert (await Crafted(own_world, fresh).client.get("/dashboard")).status_code == 303
    again = Crafted(own_world)
    answer = await again.post(
        "/dashboard/sign-in", {"admin_key": own_world.keys["admin"]}, csrf=await again.csrf("/dashboard/sign-in")
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_only_digests_of_cookies_and_links_are_stored(world: ServiceWorld) -> None:
    token = sign_in(world, "viewer")
    made = world.service.db.write_now(lambda conn: invite(conn, system(world.org, "test"), "A", "viewer", now_ms()))
    rows = world.service.db.read_now(
        lambda conn: [str(conn.execute(one.select()).all()) for one in (browser_sessions, invitations)]
    )
    assert digest(token) in rows[0]
    assert digest(made.token) in rows[1]
    assert token not in rows[0]
    assert made.token not in rows[1]


@pytest.mark.proves("POST /dashboard/join/options", "POST /dashboard/join")
async def test_replayed_invitation_is_refused_and_on_record(world: ServiceWorld) -> None:
    made = world.service.db.write_now(lambda conn: invite(conn, system(world.org, "test"), "A", "viewer", now_ms()))
    visitor = Crafted(world)
    fields = {"token": made.token, "name": "A"}
    csrf = await visitor.csrf("/dashboard/join")
    assert (await visitor.post("/dashboard/join/options", fields, csrf=csrf)).status_code == 200
    world.service.db.write_now(
        lambda conn: conn.execute(
            invitations.update().where(invitations.c.digest == digest(made.token)).values(used_at=now_ms())
        )
    )
    for path, more in (("/dashboard/join/options", {}), ("/dashboard/join", {"credential": json.dumps({"id": "x"})})):
        answer = await visitor.post(path, {**fields, **more}, csrf=csrf, accept="application/json")
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "authentication_failed"
    assert ("system:invitation", "POST /dashboard/join/options") in await refusals(world)


async def test_expired_invitation_is_refused(world: ServiceWorld) -> None:
    long_ago = now_ms() - 72 * 3_600_000 - 1
    made = world.service.db.write_now(lambda conn: invite(conn, system(world.org, "test"), "A", "viewer", long_ago))
    visitor = Crafted(world)
    csrf = await visitor.csrf("/dashboard/join")
    answer = await visitor.post("/dashboard/join/options", {"token": made.token, "name": "A"}, csrf=csrf)
    assert answer.status_code == 401


@pytest.mark.proves("POST /dashboard/sign-in/passkey")
async def test_forged_passkey_signs_nobody_in(world: ServiceWorld) -> None:
    add_person(world, "admin")
    visitor = Crafted(world)
    csrf = await visitor.csrf("/dashboard/sign-in")
    await visitor.post("/dashboard/sign-in/options", csrf=csrf)
    for credential in ("{}", "xx", "[1]", '{"id": 5, "response": {"clientDataJSON": "e30"}}'):
        answer = await visitor.post("/dashboard/sign-in/passkey", {"credential": credential}, csrf=csrf)
        assert answer.status_code == 401


@pytest.mark.proves("POST /dashboard/sign-in/options", "Limits: Sign-ins that begin at the dashboard")
async def test_sign_ins_that_begin_are_limited_by_address(own_world: ServiceWorld) -> None:
    add_person(own_world, "admin")
    settings = own_world.settings.model_copy(update={"failed_authentications": 4})
    application = create_app(settings, own_world.service)

    def visitor(address: str) -> Crafted:
        found = Crafted(own_world)
        found.client._transport = httpx.ASGITransport(application, client=(address, 50_000))
        return found

    def begun() -> int:
        return own_world.service.db.read_now(lambda conn: len(conn.execute(challenges.select()).all()))

    flood, path = visitor("192.0.2.1"), "/dashboard/sign-in/options"
    csrf = await flood.csrf("/dashboard/sign-in")
    answers = [await flood.post(path, csrf=csrf, accept="application/json") for _ in range(24)]
    assert [one.status_code for one in answers] == [200] * 20 + [429] * 4
    assert begun() == 20
    error = error_of(answers[-1], 429, "rate_limited")
    assert "from this address" in error["message"]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    # Others are not concerned, nor is what fails here.
    other = visitor("192.0.2.2")
    others_csrf = await other.csrf("/dashboard/sign-in")
    assert (await other.post(path, csrf=others_csrf, accept="application/json")).status_code == 200
    failed = await flood.post("/dashboard/sign-in/passkey", {"credential": "{}"}, csrf=csrf, accept="application/json")
    error_of(failed, 401, "authentication_failed")


async def test_viewers_crafted_requests_are_refused_and_on_record(world: ServiceWorld) -> None:
    viewer = Crafted(world, sign_in(world, "viewer"))
    csrf = await viewer.csrf()
    for path in ("/dashboard/pause", "/dashboard/unpause", "/dashboard/freeze", "/dashboard/people/invite"):
        answer = await viewer.post(path, {"name": "A", "role": "admin"}, csrf=csrf)
        assert answer.status_code == 403, path
        assert "Insufficient permissions" in answer.text
        assert (await refusals(world))[0][1] == f"POST {path}"
    operator = Crafted(world, sign_in(world, "operator"))
    for path in ("/dashboard/unpause", "/dashboard/people/invite"):
        assert (await operator.post(path, {"name": "A", "role": "admin"})).status_code == 403


@pytest.mark.proves("POST /dashboard/people/invite", "error form_outdated", "error step_up_required")
async def test_change_that_needs_it_waits_for_a_step_up(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    csrf = await admin.csrf()
    forget_step_up(world)
    answer = await admin.post("/dashboard/people/invite", {"name": "A", "role": "admin"}, csrf=csrf)
    assert answer.status_code == 403
    assert "Confirm that it is you" in answer.text
    asked = await admin.post(
        "/dashboard/people/invite", {"name": "A", "role": "admin"}, csrf=csrf, accept="application/json"
    )
    assert asked.json()["error"]["code"] == "step_up_required"
    outdated = await admin.post("/dashboard/people/invite", {}, csrf="no", accept="application/json")
    assert outdated.json()["error"]["code"] == "form_outdated"


async def test_another_passkey_is_offered_after_a_confirmation(world: ServiceWorld) -> None:
    for viewer in (True, False):
        me = Crafted(world, sign_in(world, "viewer" if viewer else "admin"))
        assert "<h1>Make a passkey</h1>" in (await me.client.get("/dashboard/passkey")).text
        forget_step_up(world)
        asked = await me.client.get("/dashboard/passkey")
        assert asked.status_code == 403
        assert "<h1>Confirm that it is you</h1>" in asked.text
        # The confirmation leads back by GET, whose address must not have the form's secret.
        _, _, resume = asked.text.partition('<form id="resume"')
        resume, _, _ = resume.partition("</form>")
        assert 'method="get" action="/dashboard/passkey"' in resume
        assert "csrf" not in resume


async def test_form_says_what_is_wrong_at_the_field_and_keeps_the_rest(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    answer = await admin.post("/dashboard/people/invite", {"name": "x" * 300, "role": "king"})
    assert answer.status_code == 400
    assert "x" * 300 in answer.text
    assert "must have at most" in answer.text


async def test_field_that_a_form_lacks_is_named(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    answer = await admin.post("/dashboard/people/invite", {"name": "x" * 300})
    assert answer.status_code == 400
    assert '<p class="notice bad" role="alert">role: This field is required.</p>' in answer.text
    assert "must have at most" in answer.text
    both = await admin.post("/dashboard/people/invite")
    assert (
        '<p class="notice bad" role="alert">name: This field is required. role: This field is required.</p>'
        in both.text
    )


@pytest.mark.proves("POST /dashboard/sessions/{session_id}/end", "action person.sign_out")
async def test_session_ends_where_its_person_ends_it_and_at_no_other(world: ServiceWorld) -> None:
    mine, other = Crafted(world, sign_in(world, "admin")), sign_in(world, "viewer")
    theirs = world.service.db.read_now(
        lambda conn: conn.execute(browser_sessions.select().where(browser_sessions.c.digest == digest(other))).one()
    )
    answer = await mine.post(f"/dashboard/sessions/{theirs.session_id}/end")
    assert answer.status_code == 404
    assert (await refusals(world))[0][1] == "POST /dashboard/sessions/{session_id}/end"
    them = Crafted(world, other)
    assert (await them.post(f"/dashboard/sessions/{theirs.session_id}/end")).status_code == 303
    assert (await them.client.get("/dashboard")).status_code == 303


@pytest.mark.proves("POST /dashboard/people/{person_id}/remove", "action person.remove")
async def test_removed_person_is_signed_out_and_the_last_admin_stays(own_world: ServiceWorld) -> None:
    admin, leaver = Crafted(own_world, sign_in(own_world, "admin")), sign_in(own_world, "viewer", name="Leaver")
    page = (await admin.client.get("/dashboard/people")).text
    ids = {part.split("/")[0] for part in page.split("/dashboard/people/per_")[1:]}
    person_ids = [f"per_{one}" for one in ids]
    answers = {one: (await admin.post(f"/dashboard/people/{one}/remove")).status_code for one in person_ids}
    assert sorted(answers.values()) == [303, 422]
    assert (await Crafted(own_world, leaver).client.get("/dashboard")).status_code == 303


async def test_pages_forbid_scripts_frames_and_other_hosts(world: ServiceWorld) -> None:
    me = Crafted(world, sign_in(world, "admin"))
    for path in ("/dashboard", "/dashboard/people", "/dashboard/sign-in", "/dashboard/nothing"):
        answer = await me.client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.proves("GET /")
async def test_root_leads_people_to_the_dashboard_and_programs_on(world: ServiceWorld) -> None:
    people = await world.client.get("/", headers={"accept": "text/html,application/xhtml+xml"})
    programs = await world.client.get("/")
    assert (people.status_code, people.headers["location"]) == (303, "/dashboard")
    assert programs.json()["documentation"].endswith("/docs")


async def test_https_cookie_is_bound_to_its_host(own_world: ServiceWorld) -> None:
    settings = own_world.settings.model_copy(update={"public_url": "https://pay.example.com/vault"})
    application = create_app(settings, own_world.service)
    visitor = Crafted(own_world)
    visitor.client._transport.app = application  # type: ignore[attr-defined]
    answer = await visitor.client.get("https://pay.example.com/dashboard/sign-in")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-agent-vault-session=")
    assert "Path=/;" in cookie
    assert cookie.endswith("Secure")
    assert 'action="/vault/dashboard/sign-in"' in answer.text


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://localhost:8402/dashboard"),
        ({"host": "0.0.0.0"}, "http://localhost:8402/dashboard"),
        ({"public_url": "https://pay.example.com/vault"}, "https://pay.example.com/vault/dashboard"),
    ],
)
async def test_dashboard_is_where_browsers_have_passkeys(settings: dict[str, str], url: str) -> None:
    assert dashboard_url(Settings(**settings)) == url  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"public_url": "http://pay.example.com"}, {"host": "192.0.2.7"}])
async def test_dashboard_without_https_is_refused_elsewhere(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="needs https"):
        relying_party(Settings(**settings))  # type: ignore[arg-type]
