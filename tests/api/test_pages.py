"""The documentation covers every code, event, route and setting, and what it says is true."""

import ast
import json
import re
from html import unescape
from pathlib import Path

import pytest
from starlette.routing import Route

import app
from app.core.errors import CATALOGUE
from app.core.event_catalogue import EVENTS
from app.core.settings import Settings
from app.server.application import operations, routes
from app.store.alert_kinds import EVENT_OF
from app.store.audit_actions import ACTIONS
from app.store.feed import SEVERITIES
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SOURCES = [file for file in Path(app.__file__).parent.rglob("*.py") if "localnet" not in file.parts]


async def _page(world: ServiceWorld, path: str) -> str:
    response = await world.client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    return unescape(response.text)


@pytest.mark.proves("Conventions: Errors", "GET /docs/{path}", "ErrorBody(code, message)")
@pytest.mark.parametrize("code", CATALOGUE)
async def test_every_code_has_a_page_with_cause_example_and_remedy(world: ServiceWorld, code: str) -> None:
    page = await _page(world, f"/docs/errors/{code}")

    for title in ("Cause", "Example", "What to do"):
        assert re.search(rf"<h2 [^>]+>{title}</h2>\s*<(p|pre)>.{{10,}}?</\1>", page, re.DOTALL), title
    markdown = (await world.client.get(f"/docs/errors/{code}.md")).text
    [example] = re.findall(r"```json\nHTTP/1.1 (\d+) [^\n]+\n\n(.*?)```", markdown, re.DOTALL)
    assert int(example[0]) == CATALOGUE[code].status
    error = json.loads(example[1])["error"]
    assert error["code"] == code
    assert error["docs"].endswith(f"/docs/errors/{code}")
    assert {"message", "request_id"} <= set(error)


def _codes_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(code)), *_]):
            # The texts of the others are types, reasons for the audit log, or for the developer.
            carries = name.endswith("Error") and not name.startswith(("Pydantic", "SignIn", "Value"))
            return [code] if carries and re.fullmatch(r"[a-z]+(_[a-z]+)+", code) else []
    return []


async def test_every_code_that_is_raised_is_in_the_catalogue() -> None:
    raised = {code for file in _SOURCES for node in ast.walk(ast.parse(file.read_text())) for code in _codes_in(node)}

    assert "policy_not_found" in raised
    assert raised <= set(CATALOGUE)


@pytest.mark.proves("GET /docs/{path}")
async def test_every_event_has_its_place_on_the_page(world: ServiceWorld) -> None:
    page = await _page(world, "/docs/events")

    for name, kind in EVENTS.items():
        assert f'<h2 id="{name}">' in page
        assert kind.meaning.replace("`", "") in re.sub(r"</?code>", "", page)
        assert all(f"<code>{field}</code>" in page for field in (*kind.fields, *kind.optional))


async def test_every_event_that_is_emitted_is_in_the_catalogue() -> None:
    subjects = "|".join({name.partition(".")[0] for name in EVENTS} | {"webhook"})
    texts = {
        node.value
        for file in _SOURCES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    told = {one for one in texts if re.fullmatch(rf"({subjects})\.(?!html)[a-z_]+", one)}
    # Names such as f"alert.{kind}"
    begun = {one for one in texts if re.fullmatch(rf"({subjects})\.", one)}
    made = {*EVENT_OF.values(), *(f"budget.{one}" for one in ("created", "updated", "frozen", "unfrozen", "deleted"))}
    made |= {f"approval.{one}" for one in ("requested", "given", "reminder", "expired")}

    # Actions of the audit log have names of the same form.
    assert told - set(ACTIONS) <= set(EVENTS)
    assert begun == {"alert.", "approval.", "budget."}
    assert set(EVENTS) - told - made == {"ping"}
    assert set(SEVERITIES) <= set(EVENTS)


@pytest.mark.proves("GET /docs/{path}")
async def test_every_route_has_its_place_on_a_page(world: ServiceWorld) -> None:
    listed = await _page(world, "/docs/api")
    service = await _page(world, "/docs/api/service")

    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            name = f"<code>{method} {route.path_format}</code>"
            meaning = rf"{re.escape(name)}</td>\s*<td>[A-Z]"
            assert name in listed if route in operations else re.search(meaning, service), route.path


@pytest.mark.proves("GET /docs/{path}")
async def test_every_setting_has_its_place_on_the_page(world: ServiceWorld) -> None:
    page = await _page(world, "/docs/settings")

    for name, field in Settings.model_fields.items():
        assert f'<h3 id="{name}"><code>AGENT_VAULT_{name.upper()}</code></h3>' in page
        assert field.description, f"{name} has no description"
        assert field.description.split("`")[0].partition("\n")[0].strip() in page


async def test_first_page_leads_to_the_others(world: ServiceWorld) -> None:
    page = await _page(world, "/docs")

    for link in re.findall(r'href="(/[^"#]*)"', page):
        # The dashboard sends on to its sign-in.
        assert (await world.client.get(link)).status_code == (303 if link == "/dashboard" else 200), link
    assert {'href="/docs/events"', 'href="/docs/settings"'} <= set(re.findall(r'href="[^"]+"', page))


@pytest.mark.proves("Authentication: API key")
async def test_routes_that_need_a_key_are_those_of_the_interface(world: ServiceWorld) -> None:
    for route in routes:
        assert isinstance(route, Route)
        if "{" not in route.path and "GET" in (route.methods or ()):
            answer = await world.client.get(route.path)
            assert (answer.status_code == 401) == route.path.startswith("/v1/"), route.path
